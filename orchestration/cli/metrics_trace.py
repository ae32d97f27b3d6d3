"""The verbs metrics and trace."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.cli.terminal import completion, output
from drainmark.orchestration.cli.terminal.options import CONDITIONS, AppOrRegion, Asked, RegionName


def metrics(
    asked: Asked,
    *,
    app: AppOrRegion = None,
) -> None:
    """Print the metrics of every region in the text format of Prometheus."""
    from drainmark.orchestration.inspection.metrics import as_json as to_json
    from drainmark.orchestration.inspection.metrics import as_text, region_metrics

    workplace = asked.workplace
    names = workplace.known_regions()
    if app is not None:
        below = tuple(name for name in names if name.partition("/")[0] == app)
        names = below or (asked.region(app),)
    found = {name: region_metrics(workplace, name) for name in names}
    if asked.as_json:
        output.emit([to_json(name, entries) for name, entries in found.items()])
    elif not found:
        output.note("no region has run here yet: drainmark run APP")
    else:
        output.say(as_text(found).rstrip("\n"))


def trace(
    asked: Asked,
    *,
    region: RegionName,
    file: Annotated[str | None, typer.Option("--file", help="A file: its path or the end of it.")] = None,
    sequence: Annotated[int | None, typer.Option("--sequence", min=1, help="A sequence id.")] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", help="Rows of this table, chosen by --where.", autocompletion=completion.tables),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="CONDITION", help=f"Which of them: {CONDITIONS} `null` is no value."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All ids that ever changed the keys of the rows, not only the last.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="At most so many rows of a table; counts are exact.")
    ] = 10,
) -> None:
    """Follow a file to its ids and rows, or a row back to its file."""
    from drainmark.jobs.protocol.row_conditions import conditions
    from drainmark.orchestration.tracing.trace import Tracer
    from drainmark.orchestration.workplace.declaration import noted_folder

    if sum(asked is not None for asked in (file, sequence, table)) != 1:
        raise UsageError("nothing to trace", remedy="--file F, --sequence N, or --table T --where 'COLUMN = VALUE'")
    if (where or everything) and table is None:
        raise UsageError("--where and --all choose rows of a table", remedy="--table T --where 'COLUMN = VALUE'")
    workplace = asked.workplace
    name = asked.region(region)
    tracer = Tracer.of(workplace, name, limit=limit)
    if table is not None:
        found = tracer.row(table, conditions(where or ()), everything=everything)
    else:
        found = tracer.file(file) if file is not None else tracer.sequence(sequence or 0)
    show = _show_file if table is None else _show_rows
    asked.answer(found, lambda found: show(found, noted_folder(workplace, name)))


def _show_file(found: dict[str, Any], folder: str | None) -> None:
    from drainmark.jobs.regions.formatting import counted

    output.say(f"{found['trigger']} in {found['region']}")
    _show_ids(found["ids"], folder)
    _show_states("from", found["origins"])
    _show_states("read by", found["readers"])
    for sink in found["sinks"]:
        version = f"version {sink['version']}" if sink["version"] is not None else "not published yet"
        changed = f", {sink['changed']} keys changed" if sink["changed"] is not None else ""
        output.say(f"{sink['table']}: {counted(sink['rows'], 'row')} of id {found['sequence_id']}{changed} ({version})")
        _show_sample(sink["sample"], sink["rows"])


def _show_rows(found: dict[str, Any], folder: str | None) -> None:
    from drainmark.jobs.regions.formatting import counted

    output.say(f"{found['table']}: {counted(found['rows'], 'row')}")
    _show_sample(found["sample"], found["rows"])
    _show_ids(found["ids"], folder)
    _show_states("from", found["origins"])


def _show_states(how: str, states: list[dict[str, Any]]) -> None:
    """Print states of other regions, and their triggers."""
    if states:
        columns = (f"{how} region", "id", "trigger")
        output.table(columns, [(each["region"], each["sequence_id"], each["trigger"]) for each in states])


def _show_ids(ids: list[dict[str, Any]], folder: str | None) -> None:
    columns = ("id", "epoch", "status", "trigger", "rows", "committed (UTC)", "run", "")
    rows = []
    for entry in ids:
        ends = ("withdrawn_by", "replaced_by", "retracted_by")
        remarks = [f"by {entry[key]}" for key in ends if entry[key] is not None]
        remarks += [entry["reason"]] if entry["reason"] else []
        rows.append(
            (
                entry["sequence_id"],
                entry["epoch"],
                entry["status"],
                output.short_file(entry["trigger"], folder),
                entry["rows_in"],
                output.short_time(entry["committed_at"]),
                entry["run_id"][:8] if entry["run_id"] else None,
                ", ".join(remarks),
            )
        )
    output.table(columns, rows)


def _show_sample(sample: list[dict[str, Any]], count: int) -> None:
    if sample:
        output.table(list(sample[0]), [list(row.values()) for row in sample])
    if len(sample) < count:
        output.say(f"{len(sample)} of {count} rows are shown: --limit {count} shows all")
