"""Verbs below `quarantine`: list, show, redrive."""

from __future__ import annotations

from typing import Annotated

import typer

from drainmark.orchestration.cli.interventions import command
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import Asked, Limit, RegionName, epilog, verb
from drainmark.orchestration.verbs.operator_verbs import REDRIVE

app = typer.Typer(help="List and show what could not be read; read a fixed file again.", no_args_is_help=True)


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
    file: Annotated[str | None, typer.Option("--file", help="Its path or the end of it.")] = None,
    limit: Limit = None,
) -> None:
    """Print the quarantined rows, of one file or of all."""
    from drainmark.orchestration.verbs.inputs.quarantine import quarantined_rows

    found = quarantined_rows(asked.workplace, asked.region(region), file)
    columns = ("_sequence_id", "source_file", "position", "raw", "reason")
    asked.answer_rows(columns, len(found), limit, lambda count: found[:count])


app.command("redrive", epilog=epilog("quarantine redrive"))(verb(command(REDRIVE)))
