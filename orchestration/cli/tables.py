"""`tables`, which lists the tables of a home; and below it `drop`, for what left the code."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.cli.interventions import carry_out, require_yes
from drainmark.orchestration.cli.terminal import completion, output
from drainmark.orchestration.cli.terminal.options import Asked, OneRegion, epilog, verb
from drainmark.orchestration.verbs.orders import Reason

app = typer.Typer(help="List the tables of this home; drop one that left the code.", epilog=epilog("tables"))

_COLUMNS = ("table", "region", "kind", "rows", "bytes", "files", "last id", "")


@app.callback(invoke_without_command=True)
@verb
def list_tables(
    asked: Asked,
    ctx: typer.Context,
    *,
    left: Annotated[bool, typer.Option("--left", help="Only what left the code.")] = False,
) -> None:
    """List all tables: those of the code, those that left it, and those that autonomous operators write."""
    if ctx.invoked_subcommand is not None:
        return
    from drainmark.orchestration.inspection.tables import tables_of_home

    found = tables_of_home(asked.workplace)
    found = [entry for entry in found if not left or not entry["is_of_code"]]
    if asked.as_json:
        output.emit(found)
        return
    if not found:
        output.say("nothing has left the code" if left else "there are no tables yet")
        return
    output.table(_COLUMNS, [_row(entry) for entry in found])


def _row(entry: dict[str, Any]) -> tuple[Any, ...]:
    numbers = (entry["rows"], entry["bytes"], entry["files"], entry["last_sequence_id"])
    remarks = ["adopted"] if entry["is_adopted"] else []
    if not entry["is_of_code"]:
        after = f" after id {entry['left_after']}" if entry["left_after"] is not None else ""
        remarks.append(f"left the code{after}")
    if not entry["is_there"]:
        remarks.append("is not there")
    return (entry["table"], entry["region"], entry["role"], *numbers, ", ".join(remarks))


@app.command(epilog=epilog("tables drop"))
@verb
def drop(
    asked: Asked,
    *,
    table: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="A table that left the code.", autocompletion=completion.former_tables),
    ] = None,
    region: OneRegion = None,
    reason: Reason = "dropped by hand",
) -> None:
    """Drop a table that left the code, with its history; or, with --region alone, a whole region that left it.

    Without --yes only the plan is shown. Adopted tables and sinks outside Delta keep their rows, and are released.
    """
    from drainmark.orchestration.verbs.removals.table_drops import drop_region, drop_table

    workplace = asked.workplace
    if table is not None:
        order = drop_table(workplace, region, table, reason)
    elif region is not None:
        order = drop_region(workplace, region, reason)
    else:
        raise UsageError("nothing is named", remedy="drainmark tables --left lists what can be dropped")
    require_yes(asked, order)
    carry_out(asked, order)
