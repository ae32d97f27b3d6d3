"""Verbs that only read: apps, graph, operators, status, history, show, changes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drainmark.jobs.errors import DrainmarkError, HomeNotFound, UnknownName, UsageError
from drainmark.jobs.printable import shell_word
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import AppName, AppOrRegion, Asked, Limit, RegionName, TableName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from drainmark.orchestration.workplace.workplace import Workplace
    from drainmark.resources.checkpoints.as_of import RegionReader
    from drainmark.resources.settings import Settings as ProjectSettings

_FORMS = ("text", "json", "mermaid")
_PATIENCE_SECONDS = 10.0
_STATE = "its id, its file, or a time"
_STATUS_COLUMNS = ("region", "state", "committed", "published", "epoch", "pending", "attempts")


def apps(
    asked: Asked,
    *,
    examples: Annotated[bool, typer.Option("--examples", help="List those that come with Drainmark.")] = False,
    left: Annotated[
        bool, typer.Option("--left", help="List the regions of this home that no application has now.")
    ] = False,
) -> None:
    """List the applications of drainmark.toml, and those that ran in this home."""
    from drainmark.jobs.graph.application import shipped_applications
    from drainmark.orchestration.workplace.declaration import own_applications

    if left and examples:
        raise UsageError("--left and --examples ask for different lists", remedy="give one of them")
    if left:
        _show_left(asked.workplace, as_json=asked.as_json)
        return
    workplace = _workplace_of(asked)
    own = own_applications(workplace) if workplace is not None else ()
    settings = workplace.settings if workplace is not None else None
    found = [_application(settings, name) for name in (shipped_applications() if examples else own)]
    if asked.as_json:
        output.emit(found)
        return
    if not found:
        output.say(
            'no application: `drainmark init` writes a drainmark.toml, which names them (applications = ["app.py"])'
        )
        output.say("those that are shipped: drainmark apps --examples")
        return
    rows = [(app["reference"], ", ".join(app["regions"]) or "none", app["error"]) for app in found]
    output.table(("application", "regions", "error"), rows)


def _show_left(workplace: Workplace, *, as_json: bool) -> None:
    from drainmark.orchestration.inspection.tables import regions_left

    found = regions_left(workplace)
    if as_json:
        output.emit(found)
        return
    if not found:
        output.say("every region of this home has its code")
        return
    columns = ("region", "tables", "committed", "error")
    output.table(columns, [(e["region"], len(e["tables"]), e["committed_sequence_id"], e["error"]) for e in found])
    for entry in found:
        if entry["error"] is None:
            output.say(f"its tables stay until: drainmark tables drop --region {shell_word(entry['region'])}")


def _workplace_of(asked: Asked) -> Workplace | None:
    """Return the project, None if there is none: the inspection of an application needs no home."""
    with suppress(HomeNotFound):
        return asked.workplace
    return None


def _application(settings: ProjectSettings | None, reference: str) -> dict[str, Any]:
    from drainmark.orchestration.workplace.workplace import open_in_time

    entry: dict[str, Any] = {"application": reference, "reference": reference, "origin": None}
    entry.update(regions=[], error=None)
    try:
        plan = open_in_time(settings, reference).plan
    except DrainmarkError as error:
        return {**entry, "error": error.message}
    except Exception as error:  # a module of the user may raise any error, and the other applications must be listed
        return {**entry, "error": f"{type(error).__name__}: {error}"}
    regions = [region.name for region in plan.regions]
    return {**entry, "application": plan.name, "origin": plan.application.origin, "regions": regions}


def graph(
    asked: Asked,
    *,
    app: AppName = None,
    form: Annotated[
        str, typer.Option("--format", help="text, json or mermaid.", autocompletion=lambda: list(_FORMS))
    ] = "text",
    analyse: Annotated[
        bool,
        typer.Option("--analyse", help="Also call its functions on empty frames, to find wrong columns. Starts Spark."),
    ] = False,
) -> None:
    """Show an application: regions, stages, channels, ports, tables, vectorisation, and the promise of each sink."""
    from drainmark.jobs.regions import explain
    from drainmark.orchestration.workplace.declaration import named_application, statement_text
    from drainmark.orchestration.workplace.workplace import open_in_time

    if form not in _FORMS:
        raise UsageError(f"--format {form!r} is not known", remedy="text, json or mermaid")
    workplace = _workplace_of(asked)
    if workplace is not None:
        reference = named_application(workplace, app)[0]
    elif app is not None:
        reference = app
    else:
        raise UsageError("no application is named, and here is no project", remedy="drainmark graph app.py")
    plan = open_in_time(workplace.settings if workplace is not None else None, reference).plan

    def statement(name: str) -> str:
        with suppress(UsageError):  # a run reports the missing statement
            return statement_text(plan.application, name, Path.cwd())
        return ""

    if analyse:
        with output.result_only(asked.as_json):
            _analyse(asked.workplace, reference)
    if asked.as_json or form == "json":
        output.emit(explain.as_json(plan, statement))
    else:
        output.say(explain.as_mermaid(plan) if form == "mermaid" else explain.as_text(plan, statement))


def _analyse(workplace: Workplace, reference: str) -> None:
    """Call an application's functions on empty frames, to find missing columns before a run."""
    from drainmark.orchestration.runs.region_runs import region_run
    from drainmark.orchestration.workplace.workplace import open_in_time

    opened = open_in_time(workplace.settings, reference)
    for region in opened.plan.regions:
        output.waiting(f"analysing {region.name} …")
        region_run(workplace, opened, region)


def operators(asked: Asked) -> None:
    """List the operators of the library: place, state, vectorisation; and the operators that are not supported.

    `start`: may start a region; `region`: in a region, never its start; `feed`: beside regions, read through an
    autonomous port. `vectorises`: many triggers at once, or `checked` on the author's function, or `no`.
    """
    from dataclasses import asdict

    from drainmark.jobs.operators.catalogue import entries, unsupported

    found = entries()
    if asked.as_json:
        lacking = [{"name": name, "why": why, "instead": instead} for name, (why, instead) in unsupported().items()]
        output.emit({"operators": [asdict(entry) for entry in found], "unsupported": lacking})
        return
    rows = [
        (
            entry.kind,
            entry.written,
            entry.place,
            entry.vectorises,
            "state" if entry.state else "",
            entry.guarantee,
            ", ".join(name for name in entry.configurations if name != "default"),
        )
        for entry in found
    ]
    output.table(("operator", "written", "place", "vectorises", "state", "guarantee", "configurations"), rows)
    output.say("")
    output.table(("not supported", "why", "instead"), [(name, *texts) for name, texts in unsupported().items()])


def status(
    asked: Asked,
    *,
    app: AppOrRegion = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 3 if a region is HALTED or cannot be checked.")
    ] = False,
) -> None:
    """Show the state of every region."""
    workplace = asked.workplace
    found, failures = _looked(workplace, app, is_thorough=check or not asked.as_json)
    asked.answer(found, lambda found: _show_status(found, workplace.home))
    for error in failures:
        output.complain(error, as_json=asked.as_json)
    broken = [error for error in failures if app is not None or error.id != "ANALYSIS_TIMEOUT"]  # slow is not broken
    if check and (broken or any(map(_is_alarming, found)) or _is_nowhere(workplace, found, as_json=asked.as_json)):
        raise typer.Exit(3)
    if app is not None and failures:
        raise typer.Exit(failures[0].exit_code)


def _is_alarming(entry: Mapping[str, Any]) -> bool:
    from drainmark.orchestration.inspection.status import REPAIR

    return entry["state"] == "HALTED" or REPAIR in entry["remedies"]


def _is_nowhere(workplace: Workplace, found: Sequence[Mapping[str, Any]], *, as_json: bool) -> bool:
    """Say whether there is nothing to check, and report it on standard error: a missing home may be misspelt."""
    if workplace.home.is_dir() or any(entry["epoch"] for entry in found):
        return False
    error = HomeNotFound(
        f"there is no home {workplace.home}: nothing was checked", remedy="correct it, or: drainmark run APP"
    )
    output.complain(error, as_json=as_json)
    return True


def _looked(
    workplace: Workplace, app: str | None, *, is_thorough: bool
) -> tuple[list[dict[str, Any]], Sequence[DrainmarkError]]:
    """Return the statuses, and the errors of applications that cannot be loaded.

    If `app` cannot be loaded, the statuses are those that are known without its code. Without `app`, it loads the
    applications of the settings that have no region here; for the others, the status has the last error.

    Args:
        is_thorough: also load the applications of the settings.
    """
    from drainmark.jobs.errors import DeclarationError
    from drainmark.jobs.errors.environment import AnalysisTimeout, ApplicationBroken
    from drainmark.jobs.runtime.messages import classified
    from drainmark.orchestration.inspection.status import known_statuses, statuses
    from drainmark.orchestration.workplace.declaration import configured_applications, known_from

    try:
        found = statuses(workplace, app)
    except UnknownName:
        raise
    except (ApplicationBroken, AnalysisTimeout, DeclarationError, UsageError) as error:
        return known_statuses(workplace, app or ""), [error]
    if app is not None or not is_thorough:
        return found, []
    new = [
        reference for reference in configured_applications(workplace.settings) if not known_from(workplace, reference)
    ]
    if not new:  # the import below takes longer than all other work of this verb
        return found, []
    from drainmark.orchestration.runs.failures_before_claim import unopened

    return found, [classified(error) for error in unopened(workplace, new, most_seconds=_PATIENCE_SECONDS).values()]


def _show_status(found: Sequence[dict[str, Any]], home: Path) -> None:
    from drainmark.orchestration.inspection.reads import told_of, told_of_reader

    if not found:
        output.say(f"no region has run in {home} yet: drainmark run APP")
        return
    rows = []
    for entry in found:
        attempts = f"{entry['consecutive_reset_attempts']} of {entry['max_consecutive_reset_attempts']}"
        pending = "unknown" if entry["pending_triggers"] is None else entry["pending_triggers"]
        rows.append(
            (
                entry["region"],
                entry["state"],
                entry["committed_sequence_id"],
                entry["published_sequence_id"],
                entry["epoch"],
                pending,
                attempts,
            )
        )
    output.table(_STATUS_COLUMNS, rows)
    output.say(f"home {found[0]['home']}")
    for entry in found:
        for line in _causes(entry):
            output.say(f"{entry['region']} {line}")
        if split := entry["split"]:
            output.say(f"{entry['region']} did a group of {split['triggers']} files file by file: {split['message']}")
        for lacking in entry["unregistered"] or ():
            output.say(f"{entry['region']} {lacking['table']} has no name {lacking['name']}: {lacking['error']}")
        for reading in entry["reads"]:
            output.say(f"{entry['region']} {told_of(reading)}")
        for reader in entry["read_by"]:
            output.say(f"{entry['region']} {told_of_reader(reader)}")
        for line in _next_steps(entry):
            output.say(line)


def _next_steps(entry: dict[str, Any]) -> Iterator[str]:
    """Yield the commands that a region waits for, and the effect of the next run."""
    from drainmark.orchestration.inspection.status import REPAIR

    region, remedies = entry["region"], [remedy for remedy in entry["remedies"] if remedy != REPAIR]
    if entry["has_left"]:
        yield f"{region} left the code; its tables stay until you drop it: {remedies[0]}"
        return
    if entry["state"] == "HALTED":
        yield f"{region} waits for you: {', or: '.join(remedies)}"
    if entry["state"] == "UNHEALTHY" and remedies:
        yield f"{region} {_last_owner(entry['lost_owner'])}recovers with the next run: {', or: '.join(remedies)}"
    elif any(reading["stays"] is not None for reading in entry["reads"]) and entry["state"] != "HALTED":
        yield f"{region} goes back first: {', or: '.join(remedies)}"
    if REPAIR in entry["remedies"]:
        yield f"the registry of {region} is lost: {REPAIR}"


def _last_owner(lost: Mapping[str, Any] | None) -> str:
    """Return a text if a region's owner ended without release of its lease, "" if it released it."""
    if lost is None:
        return ""
    return f"lost its owner, pid {lost['pid']} on {lost['host']}, which died or has no heartbeat; it "


def _causes(entry: dict[str, Any]) -> Iterator[str]:
    """Yield the owner of a region, the reason of its halt, and its last error with operator, file and remedy."""
    if owner := entry["owner"]:
        yield f"is owned by pid {owner['pid']} on {owner['host']} since {output.short_time(owner['since'])}"
    if begun := entry["begun"]:
        yield f"waits for pid {begun['pid']} on {begun['host']}, which starts Spark and tries functions, then claims"
    error = entry["last_error"] or {}
    if reason := entry["halt_reason"]:
        yield f"is halted: {reason}"
    if error.get("message") and error["message"] != reason:
        operator = f" in {error['operator']}" if error.get("operator") else ""
        workplace = f" ({error['location']})" if error.get("location") else ""
        file = f" at {output.short_file(error['trigger'], entry['folder'])}" if error.get("trigger") else ""
        remedy = f" → {error['remedy']}" if error.get("remedy") and not reason else ""
        message = error["message"].removeprefix(f"operator {error.get('operator')!r} failed: ")
        yield f"failed{operator}{workplace}{file}: {message}{remedy}"


def history(
    asked: Asked,
    *,
    region: RegionName,
    last: Annotated[int | None, typer.Option("--last", min=1, help="Only the newest so many.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also rewound ids, halts, skips, rewinds.")] = False,
) -> None:
    """List the consistent states of a region, oldest first."""
    from drainmark.orchestration.inspection.status import history_entries
    from drainmark.orchestration.workplace.declaration import noted_folder

    workplace = asked.workplace
    name = asked.region(region)
    entries = history_entries(workplace, name, last=last, everything=everything)
    if asked.as_json:
        output.emit(entries)
        return
    folder = noted_folder(workplace, name)
    columns: tuple[str, ...] = ("id", "epoch", "kind", "trigger", "group", "rows", "committed (UTC)", "")
    if not everything:
        columns = ("id", "trigger", "group", "rows", "committed (UTC)", "process s", "drain s", "checkpoint s", "")
    output.table(columns, [_history_row(entry, folder, everything=everything) for entry in entries])


def _history_row(entry: dict[str, Any], folder: str | None, *, everything: bool) -> tuple[Any, ...]:
    group = "..".join(str(number) for number in entry["group"]) if entry["group"] else ""
    remarks = ["withdrawn"] if entry["withdrawn"] else []
    remarks += [f"replaced by {entry['replaced_by']}"] if entry["replaced_by"] is not None else []
    remarks += [f"retracted by {entry['retracted_by']}"] if entry["retracted_by"] is not None else []
    remarks += [f"retracts {entry['retracts']}"] if entry["retracts"] is not None else []
    remarks += [f"to {entry['to']}"] if entry["to"] is not None else []
    remarks += [entry["reason"]] if entry["reason"] else []
    if entry["deployed"] is not None:
        changed = f" ({', '.join(entry['deployed'])})" if entry["deployed"] else ""
        remarks += [f"code {entry['code'][:8]}{changed}"]
    file, committed = output.short_file(entry["trigger"], folder), output.short_time(entry["committed_at"])
    of_group = (file, group, entry["rows_in"], committed)
    if everything:
        return (entry["sequence_id"], entry["epoch"], entry["kind"], *of_group, ", ".join(remarks))
    seconds = (entry["process_seconds"], entry["drain_seconds"], entry["checkpoint_seconds"])
    shown = ("" if each is None else f"{each:.2f}" for each in seconds)
    return (entry["sequence_id"], *of_group, *shown, ", ".join(remarks))


def show(
    asked: Asked,
    *,
    table: TableName,
    at: Annotated[str | None, typer.Option("--at", metavar="STATE", help=f"As it was at a state: {_STATE}.")] = None,
    limit: Limit = None,
) -> None:
    """Print the rows of a sink, as they are or as they were at a state, also of one that left the code.

    Of the state of a `dm.operator`, `state/APP/OPERATOR`, the values that `checkpoint` wrote.
    """
    from drainmark.jobs.state.handlers.handler_state import is_of_handler, values_shown
    from drainmark.resources.checkpoints.as_of import outside_at

    workplace = asked.workplace
    try:
        reader = _reader(workplace, table)
    except UnknownName:
        outside = outside_at(workplace.settings, table, at)
        if outside is None:
            raise
        _print_rows(asked, outside, limit)
        return
    rows = reader.now(table) if at is None else reader.as_of(table, _state(reader, at))
    rows = values_shown(rows) if is_of_handler(reader.named(table)) else rows
    _print_rows(asked, rows, limit)


def changes(
    asked: Asked,
    *,
    table: TableName,
    after: Annotated[
        str, typer.Option("--after", metavar="STATE", help=f"Changes behind a state: {_STATE}; 0: from the start.")
    ],
    through: Annotated[
        str | None, typer.Option("--through", metavar="STATE", help="Changes up to a state; by default the newest.")
    ] = None,
    limit: Limit = None,
) -> None:
    """Print what changed in a sink between two consistent states: the rows that came, left, or changed."""
    from drainmark.resources.checkpoints.table_changes import changes_of

    reader = _reader(asked.workplace, table)
    last = _state(reader, through) if through is not None else None
    found = changes_of(reader, table, after=_state(reader, after), through=last)
    _print_rows(asked, found, limit)


def _state(reader: RegionReader, text: str) -> int:
    """Return the sequence id of the state that an option names."""
    from drainmark.orchestration.verbs.rewinds.reset_plan import resolve_target, target_named

    return resolve_target(reader.history, target_named(text))


def _reader(workplace: Workplace, table: str) -> RegionReader:
    """Return a reader of the region that writes a table."""
    from drainmark.resources.checkpoints.as_of import reader_of

    return reader_of(workplace.settings, table, declared=lambda: _declared_tables(workplace, table))


def _print_rows(asked: Asked, found: pa.Table, limit: int | None) -> None:
    from drainmark.jobs.formats.values.far_times import python_rows

    asked.answer_rows(found.column_names, found.num_rows, limit, lambda count: python_rows(found.slice(0, count)))


def _declared_tables(workplace: Workplace, table: str) -> list[str]:
    """Return the names of the tables that the applications of the project declare.

    Raises:
        UnknownName: `table` is one of them; its region has not run.
    """
    from drainmark.orchestration.workplace.declaration import own_applications
    from drainmark.orchestration.workplace.workplace import opened_in_time
    from drainmark.resources.checkpoints.as_of import is_called

    names = list[str]()
    for reference, opened in opened_in_time(
        workplace.settings, own_applications(workplace), most_seconds=_PATIENCE_SECONDS
    ):
        for region in () if isinstance(opened, Exception) else opened.plan.regions:
            if any(is_called(found.name, table) for found in region.tables):
                msg = f"table {table!r} is not there yet: {region.name}, which writes it, has not run"
                raise UnknownName(msg, remedy=f"drainmark run {shell_word(_as_typed(reference))}")
            names += [found.name.removeprefix("lake/") for found in region.tables]
    return names


def _as_typed(reference: str) -> str:
    """Return a reference as the user would type it here: a path relative to the working directory if it is below it."""
    path = Path(reference)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else reference
