"""Verbs below `quarantine`: list, show, redrive."""

from __future__ import annotations

from typing import Annotated

import typer

from drainmark.orchestration.cli.interventions import carry_out
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import Asked, RegionName, epilog, verb

app = typer.Typer(help="List and show what could not be read; read a fixed file again.", no_args_is_help=True)

_File = typer.Option("--file", help="Its path or the end of it.")


@app.command("list", epilog=epilog("quarantine list"))
@verb
def list_files(asked: Asked, *, region: RegionName) -> None:
    """List the files with quarantined rows, with numbers and reasons."""
    from drainmark.orchestration.verbs.inputs.quarantine import quarantined_files
    from drainmark.orchestration.workplace.declaration import noted_folder

    workplace = asked.workplace
    name = asked.region(region)
    found = quarantined_files(workplace, name)
    if asked.as_json:
        output.emit(found)
        return
    if not found:
        output.say(f"{name}: nothing is quarantined")
        return
    folder = noted_folder(workplace, name)
    columns = ("id", "file", "quarantined", "of", "reasons", "redriven as")
    rows = [
        (
            entry["sequence_id"],
            output.short_file(entry["file"], folder),
            "the whole file" if entry["is_whole"] else entry["rows_quarantined"],
            None if entry["is_whole"] else entry["rows_in"],
            "; ".join(entry["reasons"]),
            entry["redriven_as"],
        )
        for entry in found
    ]
    output.table(columns, rows)


@app.command(epilog=epilog("quarantine show"))
@verb
def show(
    asked: Asked,
    *,
    region: RegionName,
    file: Annotated[str | None, _File] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many rows; 50 on a terminal.")] = None,
) -> None:
    """Print the quarantined rows, of one file or of all."""
    from drainmark.orchestration.verbs.inputs.quarantine import quarantined_rows

    found = quarantined_rows(asked.workplace, asked.region(region), file)
    shown = found[: limit or (len(found) if asked.as_json else 50)]
    if asked.as_json:
        output.emit(shown)
        return
    columns = ("_sequence_id", "source_file", "position", "raw", "reason")
    output.table(columns, [[row[column] for column in columns] for row in shown])
    if len(shown) < len(found):
        output.say(f"{len(shown)} of {len(found)} rows: --limit {len(found)} shows all")


@app.command(epilog=epilog("quarantine redrive"))
@verb
def redrive(
    asked: Asked,
    *,
    region: RegionName,
    file: Annotated[str, _File],
) -> None:
    """Queue a fixed file that was quarantined whole. The good rows of other files are in the tables already."""
    from drainmark.orchestration.verbs import orders

    carry_out(asked, orders.redrive(asked.workplace, asked.region(region), file))
