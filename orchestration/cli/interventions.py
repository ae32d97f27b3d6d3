"""Verbs that change a region: reset (rewind), retract, halt, skip, resume, backfill, publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import Asked, Reason, RegionName
from drainmark.orchestration.dagster_assets.instance import has_instance, instance_at, instance_home
from drainmark.orchestration.verbs.orders import moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drainmark.orchestration.verbs.orders import Done, Order
    from drainmark.orchestration.workplace.workplace import Workplace


def reset(
    asked: Asked,
    *,
    region: RegionName,
    to: Annotated[int | None, typer.Option("--to", min=0, help="Go back to this sequence id.")] = None,
    to_file: Annotated[str | None, typer.Option("--to-file", help="… to the state right after this file.")] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-time", help="… to the last state committed by this time.")
    ] = None,
    by: Annotated[int | None, typer.Option("--by", min=0, help="… by so many states.")] = None,
    to_code: Annotated[
        str | None, typer.Option("--to-code", help="… to the last state that this code made; `history` names it.")
    ] = None,
    to_initial: Annotated[bool, typer.Option("--to-initial", help="… to the state before any file.")] = False,
    accept_loss: Annotated[bool, typer.Option("--accept-loss", help="Even if files are gone or changed.")] = False,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Also take back the regions that read rows which leave.")
    ] = False,
) -> None:
    """Return to the last committed state, or rewind to an earlier one. Without --yes only the plan is shown."""
    from drainmark.orchestration.verbs import orders
    from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget

    target = RewindTarget(
        to=to,
        to_file=to_file,
        to_time=moment(to_time, "--to-time", to_its_end=True),
        by=by,
        to_code=to_code,
        to_initial=to_initial,
    )
    order = orders.reset(asked.workplace, asked.region(region), target, accept_loss=accept_loss, cascade=cascade)
    if not asked.yes:
        show(order, as_json=asked.as_json)
        plans = (order.facts, *order.facts["chain"])
        flags = "--yes --accept-loss" if any(plan["gone"] or plan["changed"] for plan in plans) else "--yes"
        flags += " --cascade" if order.facts["chain"] else ""
        raise UsageError("nothing was changed: this is the plan", remedy=f"repeat it with {flags} to carry it out")
    carry_out(asked, order)


def halt(asked: Asked, *, region: RegionName, reason: Reason) -> None:
    """Halt a region until it is resumed. A run that works on it ends after its group."""
    from drainmark.orchestration.verbs import orders

    carry_out(asked, orders.halt(asked.workplace, asked.region(region), reason))


def resume(
    asked: Asked,
    *,
    region: RegionName,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the history.")] = "resumed by hand",
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on although the source has lost input; the history keeps that.")
    ] = False,
) -> None:
    """Let a halted region go on; its attempts are counted from zero again."""
    from drainmark.orchestration.verbs import orders

    order = orders.resume(asked.workplace, asked.region(region), reason, accept_loss=accept_loss)
    carry_out(asked, order)


def publish(asked: Asked, *, region: RegionName) -> None:
    """Bring large tables that lag up to the committed state now."""
    from drainmark.orchestration.verbs import orders

    carry_out(asked, orders.publish(asked.workplace, asked.region(region)))


def skip(
    asked: Asked,
    *,
    region: RegionName,
    file: Annotated[str, typer.Option("--file", help="A pending file: its path or the end of it.")],
    reason: Reason,
) -> None:
    """Skip a pending file that cannot be fixed: an empty state records it."""
    from drainmark.orchestration.verbs import orders

    carry_out(asked, orders.skip(asked.workplace, asked.region(region), file, reason))


def retract(
    asked: Asked,
    *,
    region: RegionName,
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="Committed files: paths or the ends of them.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the history.")] = "",
) -> None:
    """Take committed files back out of the tables, without reading later files again. Without --yes only the plan is
    shown."""
    from drainmark.orchestration.verbs import orders

    order = orders.retract(asked.workplace, asked.region(region), files, reason)
    if not asked.yes:
        show(order, as_json=asked.as_json)
        raise UsageError("nothing was changed: this is the plan", remedy="repeat it with --yes to carry it out")
    carry_out(asked, order)


def backfill(
    asked: Asked,
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
) -> None:
    """Queue files that the scan would not take. Committed files stay as they are; --again replaces them."""
    from drainmark.orchestration.verbs import orders
    from drainmark.orchestration.verbs.inputs.backfill import Wanted

    wanted = Wanted(
        pattern=pattern,
        since=moment(since, "--since"),
        until=moment(until, "--until"),
        output=output_name,
        again=again,
    )
    order = orders.backfill(asked.workplace, asked.region(region), wanted)
    if dry_run:
        show(order, as_json=asked.as_json)
    else:
        carry_out(asked, order)


def show(order: Order, *, as_json: bool) -> None:
    """Print the plan of an order."""
    _say(order.facts, order.plan, order.remarks, as_json=as_json)


def carry_out(asked: Asked, order: Order) -> None:
    """Carry an order out, print the outcome, and report it to the Dagster instance of this home, if there is one."""
    done = order.act()
    _say(done.facts, done.lines, done.remarks, as_json=asked.as_json)
    try:
        if has_instance(asked.workplace.settings):
            _leave(asked.workplace, order, done)
    except Exception as error:  # the order is done, and an error of the display must not fail the verb
        output.note(f"Dagster was not told: {type(error).__name__}: {error}")


def _leave(workplace: Workplace, order: Order, done: Done) -> None:
    from drainmark.orchestration.dagster_assets.verb_events import show_verb, told_of
    from drainmark.orchestration.workplace.declaration import load_region

    with instance_at(instance_home(workplace.settings)) as instance:
        log = instance.report_runless_asset_event
        for region, told in told_of(order.region, order.verb, done.facts, done.lines):
            code = load_region(workplace, region)
            show_verb(workplace, region, code[1] if code is not None else None, told, instance=instance, log=log)


def _say(facts: Mapping[str, Any], lines: Sequence[str], remarks: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        output.emit(facts)
        return
    for line in lines:
        output.say(line)
    for remark in remarks:
        output.note(remark)
