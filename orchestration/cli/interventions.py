"""Verbs of an operator: reset (rewind), halt, skip, resume, backfill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.cli import output
from drainmark.orchestration.cli.options import AsJson, Home, Reason, RegionName, Yes, moment, workplace

if TYPE_CHECKING:
    from drainmark.orchestration.verbs.interventions import ResetPlan

_SHOWN = 10


def reset(
    *,
    region: RegionName,
    to: Annotated[int | None, typer.Option("--to", min=0, help="Go back to this sequence id.")] = None,
    to_file: Annotated[str | None, typer.Option("--to-file", help="… to the state right after this file.")] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-time", help="… to the last state committed by this time.")
    ] = None,
    by: Annotated[int | None, typer.Option("--by", min=0, help="… by so many states.")] = None,
    to_initial: Annotated[bool, typer.Option("--to-initial", help="… to the state before any file.")] = False,
    accept_loss: Annotated[bool, typer.Option("--accept-loss", help="Even if files are gone or changed.")] = False,
    home: Home = None,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Return to the last committed state, or rewind to an earlier one; without --yes only the plan is shown."""
    from drainmark.orchestration.verbs import interventions
    from drainmark.orchestration.workplace.workplace import find_region

    place = workplace(home)
    target = interventions.RewindTarget(
        to=to, to_file=to_file, to_time=moment(to_time, "--to-time", to_its_end=True), by=by, to_initial=to_initial
    )
    plan = interventions.plan_reset(place, find_region(region, workplace=place), target)
    if not yes:
        _show_plan(plan, as_json=as_json)
        raise UsageError("nothing was changed: this is the plan", remedy="repeat it with --yes to carry it out")
    done = interventions.reset(place, plan, accept_loss=accept_loss)
    if as_json:
        output.emit(done)
    elif plan.to is None:
        output.say(f"{plan.region}: reset to {done['committed_sequence_id']} under epoch {done['epoch']}")
    else:
        counts = f"{len(plan.withdrawn)} ids withdrawn, {done['requeued']} files pending again"
        output.say(f"{plan.region}: rewound to {plan.to}; {counts}")


def _show_plan(plan: ResetPlan, *, as_json: bool) -> None:
    if as_json:
        output.emit(plan.to_json())
        return
    if plan.to is None:
        output.say(f"{plan.region}: drop what is in flight and stay at {plan.committed_sequence_id}")
        return
    output.say(f"{plan.region}: rewind from {plan.committed_sequence_id} to {plan.to}")
    output.say(f"  {len(plan.withdrawn)} ids are withdrawn: {_some(plan.withdrawn)}")
    for repair in plan.repairs:
        output.say(f"  {repair.table} was changed by others, and is put right: see drainmark doctor --repair")
    for table, rows in plan.rows.items():
        output.say(f"  {table}: {rows} rows leave or change")
    output.say(f"  {len(plan.pending)} files become pending: {_some(plan.pending)}")
    for label, uris in (("gone", plan.gone), ("changed", plan.changed)):
        if uris:
            output.say(f"  {len(uris)} of them are {label}, which needs --accept-loss: {_some(uris)}")


def _some(values: Any) -> str:
    listed = ", ".join(str(value) for value in values[:_SHOWN])
    return f"{listed} …" if len(values) > _SHOWN else listed or "none"


def halt(*, region: RegionName, reason: Reason, home: Home = None, as_json: AsJson = False, yes: Yes = False) -> None:
    """Halt a region until it is resumed; a run that works on it ends after its group."""
    from drainmark.orchestration.verbs import interventions
    from drainmark.orchestration.workplace.workplace import find_region

    place = workplace(home)
    done = interventions.halt(place, find_region(region, workplace=place), reason)
    if as_json:
        output.emit(done)
    else:
        output.say(f"{done['region']} is halted; go on with: drainmark resume {done['region']}")


def resume(
    *,
    region: RegionName,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the history.")] = "resumed by hand",
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on behind input that its source has lost; the history keeps it.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Take a halt back and grant a fresh budget of attempts."""
    from drainmark.orchestration.verbs import accept_loss as losses
    from drainmark.orchestration.verbs import interventions
    from drainmark.orchestration.workplace.workplace import find_region

    place = workplace(home)
    verb = losses.accept_loss if accept_loss else interventions.resume
    done = verb(place, find_region(region, workplace=place), reason)
    if as_json:
        output.emit(done)
    else:
        if accept_loss:
            output.say(f"{done['region']}: {done['trigger']} stands for what is lost; the next run commits it")
        output.say(f"{done['region']} may go on, with a fresh budget of attempts")


def publish(*, region: RegionName, home: Home = None, as_json: AsJson = False, yes: Yes = False) -> None:
    """Bring large tables that lag behind what is committed up to it, now."""
    from drainmark.orchestration.verbs import interventions
    from drainmark.orchestration.workplace.workplace import find_region

    place = workplace(home)
    done = interventions.publish(place, find_region(region, workplace=place))
    if as_json:
        output.emit(done)
    else:
        tables = ", ".join(done["brought_up"]) or "all tables"
        output.say(f"{done['region']}: {tables} at {done['committed_sequence_id']}")


def skip(
    *,
    region: RegionName,
    file: Annotated[str, typer.Option("--file", help="A pending file: its path or the end of it.")],
    reason: Reason,
    home: Home = None,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Pass a pending file that cannot be mended: an empty state records it."""
    from drainmark.orchestration.verbs import interventions
    from drainmark.orchestration.workplace.workplace import find_region

    place = workplace(home)
    done = interventions.skip(place, find_region(region, workplace=place), file, reason)
    if as_json:
        output.emit(done)
    else:
        goes_on = "; the region may go on" if done["is_resumed"] else ""
        output.say(f"{done['region']}: {done['trigger']} is skipped as {done['sequence_id']}{goes_on}")


def backfill(
    *,
    region: RegionName,
    pattern: Annotated[str, typer.Option("--input", metavar="GLOB", help="Files to queue; a folder means all below.")],
    since: Annotated[str | None, typer.Option("--since", help="Only files modified at or after this time.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only files modified before this time.")] = None,
    output_name: Annotated[
        str | None, typer.Option("--output", help="Output of the source, if it has several.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also committed files: their new rows replace the present ones.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count and list only.")] = False,
    home: Home = None,
    as_json: AsJson = False,
    yes: Yes = False,
) -> None:
    """Queue files that the scan would not take; what is committed already is left alone, or replaced with --again."""
    from drainmark.orchestration.verbs.backfill import Wanted, queue
    from drainmark.orchestration.workplace.workplace import find_region

    place = workplace(home)
    wanted = Wanted(
        pattern=pattern,
        since=moment(since, "--since"),
        until=moment(until, "--until"),
        output=output_name,
        again=again,
    )
    done = queue(place, find_region(region, workplace=place), wanted, dry_run=dry_run)
    if as_json:
        output.emit(done)
        return
    counts = f"{done['committed']} committed before, {done['pending']} pending before, {done['passed']} passed before"
    verb = "would be queued" if dry_run else "queued"
    output.say(f"{done['region']}: {done['matched']} files match, {done['queued']} {verb}; {counts}")
    for replaced in done["replaces"]:
        would = "would be " if dry_run else ""
        output.say(f"  {replaced['file']} {would}processed anew; its new state replaces {replaced['sequence_id']}")
    for refused in done["refused"]:
        output.note(f"{done['region']}: left out {refused['file']}: {refused['reason']}")
