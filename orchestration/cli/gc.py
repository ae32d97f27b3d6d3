"""The verb that frees space: gc."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from drainmark.jobs.errors import DrainmarkError
from drainmark.orchestration.cli.terminal import completion, output
from drainmark.orchestration.cli.terminal.options import Asked


def gc(
    asked: Asked,
    *,
    region: Annotated[
        str | None,
        typer.Argument(
            metavar="[REGION]", help="APP/START, or APP where it has one; else all.", autocompletion=completion.regions
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be deleted.")] = False,
    left_out: Annotated[
        bool, typer.Option("--left-out", help="Also the checkpoints that removed operators left in state_store.")
    ] = False,
) -> None:
    """Delete files that nothing needs any more.

    These are: unpublished files of attempts that are over; files that compactions and rewinds took out of tables more
    than a day ago; in state_store, checkpoints of dropped states that no rewind reaches; and, without REGION,
    files that autonomous operators wrote more than a day ago and that no table shows.
    """
    from drainmark.orchestration.verbs.removals.garbage import collect_outside_regions, collect_region

    workplace = asked.workplace
    regions = [asked.region(region)] if region is not None else workplace.known_regions()
    done: list[dict[str, Any]] = []
    failed: list[DrainmarkError] = []
    for name in regions:
        try:
            done.append(collect_region(workplace, name, dry_run=dry_run, left_out=left_out))
        except DrainmarkError as error:  # the other regions are still collected
            failed.append(error)
    outside = collect_outside_regions(workplace, dry_run=dry_run) if region is None else None
    if outside is not None and outside["files"]:
        done.append(outside)
    if asked.as_json:
        output.emit(done)
    elif done or not failed:
        _show(done)
    if failed:
        raise failed[0]
    if any(entry["refused"] and not dry_run for entry in done):
        raise DrainmarkError("nothing was deleted where the clock is doubtful", remedy="set the clock, then repeat it")


def _show(done: list[dict[str, Any]]) -> None:
    from drainmark.jobs.regions.formatting import counted

    for entry in done:
        verb = "would be deleted" if entry["dry_run"] or entry["refused"] else "deleted"
        spools = f", {entry['spools']} folders of dead attempts" if entry["spools"] else ""
        output.say(f"{entry['region']}: {counted(entry['files'], 'file')}, {entry['bytes']} bytes{spools} {verb}")
        for kept in entry["entries"]:
            output.say(f"  state_store: {kept}")
        for table in entry["tables"]:
            output.say(f"  {table['table']}: {counted(table['files'], 'file')}, {table['bytes']} bytes")
            for path in table["paths"] if entry["dry_run"] else ():
                output.say(f"    {path}")
        if entry["refused"]:
            output.note(f"{entry['region']}: kept, since {entry['refused']}")
    if not done:
        output.say("no region has run here yet")
