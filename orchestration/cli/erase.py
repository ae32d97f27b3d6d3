"""The verb by which the rows of a person leave: erase."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.cli.terminal import completion, output
from drainmark.orchestration.cli.terminal.options import Asked


def erase(
    asked: Asked,
    *,
    region: Annotated[
        str | None,
        typer.Argument(
            metavar="[REGION]",
            help="APP/START, or APP where it has one; else the whole home.",
            autocompletion=completion.regions,
        ),
    ] = None,
    where: Annotated[
        str, typer.Option("--where", help="COLUMN = VALUE, COLUMN IN (VALUE, …), joined by AND.", metavar="CONDITION")
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
    from drainmark.jobs.protocol.erasure import Person
    from drainmark.orchestration.verbs.removals import erase as verb

    person, workplace = Person.parse(where, also or ()), asked.workplace
    regions = verb.regions_of(workplace, region)
    left_out = verb.passed_tables(workplace, regions, passed or ())
    if certificate is not None and certificate.exists():
        raise UsageError(f"{certificate} exists", remedy="name a file that does not")
    if not asked.yes:
        found = verb.plan(workplace, person, regions, passed=left_out)
        if asked.as_json:
            output.emit(found)
        else:
            _show(found)
        raise UsageError("nothing was changed: this is the plan", remedy="repeat it with --yes to carry it out")
    done = verb.erase(workplace, person, regions, passed=left_out, is_whole=region is None)
    if certificate is not None:
        verb.write_certificate(certificate, done)
    if asked.as_json:
        output.emit(done)
    else:
        _show(done)


def _show(found: dict[str, Any]) -> None:
    from drainmark.jobs.regions.formatting import counted

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


_WHY = {"skipped": "has no such column", "passed": "left as it is"}
