"""The verbs by which something leaves for good: gc, erase."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from drainmark.jobs.errors import DrainmarkError, UsageError
from drainmark.jobs.regions.formatting import counted
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import CONDITIONS, Asked, RegionOrAll, nothing_changed


def gc(
    asked: Asked,
    *,
    region: RegionOrAll = None,
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
        _show_collected(done)
    if failed:
        raise failed[0]
    if any(entry["refused"] and not dry_run for entry in done):
        raise DrainmarkError("nothing was deleted where the clock is doubtful", remedy="set the clock, then repeat it")


def _show_collected(done: list[dict[str, Any]]) -> None:
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


def erase(
    asked: Asked,
    *,
    region: RegionOrAll = None,
    where: Annotated[
        list[str], typer.Option("--where", metavar="CONDITION", help=f"The rows of the person: {CONDITIONS}")
    ],
    also: Annotated[
        list[str] | None,
        typer.Option("--also", help="Another name that a column has in some tables.", metavar="COLUMN=NAME"),
    ] = None,
    passed: Annotated[
        list[str] | None,
        typer.Option("--except", help="Leave this table as it is; the certificate says so.", metavar="TABLE"),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Write the certificate to this new file.", metavar="PATH")
    ] = None,
) -> None:
    """Erase the rows of a person: from tables, histories, states, quarantine, sinks, logs, and files on disk.

    Rewinds stay possible, and give the past without these rows. Inputs are not changed: those that hold rows are
    listed, and no run reads them again while they are as they are. Without --yes only the plan is shown.
    """
    from drainmark.jobs.protocol.persons import Person
    from drainmark.orchestration.verbs.removals import erase as verb

    person, workplace = Person.parse(*where, also=also or ()), asked.workplace
    regions = verb.regions_of(workplace, region)
    left_out = verb.passed_tables(workplace, regions, passed or ())
    if certificate is not None and certificate.exists():
        raise UsageError(f"{certificate} exists", remedy="name a file that does not")
    if not asked.yes:
        planned = verb.plan(workplace, person, regions, passed=left_out, is_whole=region is None)
        asked.answer(planned, _show_erased)
        raise nothing_changed()
    done = verb.erase(workplace, person, regions, passed=left_out, is_whole=region is None)
    if certificate is not None:
        verb.write_certificate(certificate, done)
    asked.answer(done, _show_erased)


def _show_erased(found: dict[str, Any]) -> None:
    verb = "would leave" if found["dry_run"] else "left"
    for region in found["regions"]:
        rows = sum(table["rows"] for table in region["tables"])
        output.say(f"{region['region']}: {counted(rows, 'row')} {verb}, of {counted(len(region['ids']), 'id')}")
        for table in region["tables"]:
            if table["state"] != "searched":
                output.say(f"  {table['table']}: {_WHY.get(table['state'], table['state'])}")
            elif table["rows"] or table["copies"]:
                more = f", and {table['copies']} in files kept beside" if table["copies"] else ""
                output.say(f"  {table['table']}: {counted(table['rows'], 'row')}{more}")
        if region.get("removed"):
            output.say(f"  {counted(len(region['removed']), 'file')} deleted")
        for each in region["inputs"]:
            output.say(f"  input {each['uri']} {each['state'] or 'held rows'}: it is not changed")
    for each in found["outside"]:
        name = each.get("table") or each.get("file")
        output.say(
            f"{name}: {each['done'] if 'done' in each else counted(each.get('rows', each.get('entries', 0)), 'row')}"
        )
    for each in found.get("found_afterwards", ()):
        output.note(f"still found: {each['path']} ({each['found']})")
    for each in found.get("not_searched", ()):
        output.note(f"not searched: {each}")


_WHY = {"skipped": "has no such column, or none of a type with such a value", "passed": "left as it is"}
