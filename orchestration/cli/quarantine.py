"""Verbs below `quarantine`: list, show, redrive."""

from __future__ import annotations

from typing import Annotated

import typer

from drainmark.orchestration.cli.interventions import carry_out
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import AsJson, Home, RegionName, Yes, epilog, open_workplace

app = typer.Typer(help="List and show what could not be read; read a fixed file again.", no_args_is_help=True)

_File = typer.Option("--file", help="Its path or the end of it.")


@app.command("list", epilog=epilog("quarantine list"))
def list_files(*, region: RegionName, home: Home = None, as_json: AsJson = False, yes: Yes = False) -> None:
    """List the files with quarantined rows, with numbers and reasons."""
    from drainmark.orchestration.verbs.quarantine import quarantined_files
    from drainmark.orchestration.workplace.declaration import find_region, noted_folder

    workplace = open_workplace(home)
    name = find_region(workplace, region)
    found = quarantined_files(workplace, name)
    if as_json:
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
def show(
    *,
    region: RegionName,
    file: Annotated[str | None, _File] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many rows; 50 on a terminal.")] = None,
    home: Home = None,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Print the quarantined rows, of one file or of all."""
    from drainmark.orchestration.verbs.quarantine import quarantined_rows
    from drainmark.orchestration.workplace.declaration import find_region

    workplace = open_workplace(home)
    found = quarantined_rows(workplace, find_region(workplace, region), file)
    shown = found[: limit or (len(found) if as_json else 50)]
    if as_json:
        output.emit(shown)
        return
    columns = ("_sequence_id", "source_file", "position", "raw", "reason")
    output.table(columns, [[row[column] for column in columns] for row in shown])
    if len(shown) < len(found):
        output.say(f"{len(shown)} of {len(found)} rows: --limit {len(found)} shows all")


@app.command(epilog=epilog("quarantine redrive"))
def redrive(
    *,
    region: RegionName,
    file: Annotated[str, _File],
    home: Home = None,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Queue a fixed file that was quarantined whole. The good rows of other files are in the tables already."""
    from drainmark.orchestration.verbs import orders
    from drainmark.orchestration.workplace.declaration import find_region

    workplace = open_workplace(home)
    carry_out(workplace, orders.redrive(workplace, find_region(workplace, region), file), as_json=as_json)
