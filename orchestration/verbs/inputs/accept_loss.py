"""`resume --accept-loss`: a region goes on behind lost input, and its history records the loss.

A trigger without rows takes the place of the input that cannot be read. Its slice records the loss, and the next run
commits it as a state: so it is listed, rewound and replayed like any other trigger. Slices that were cut behind the
loss and are not committed are cut anew from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import UsageError
from drainmark.jobs.failpoints import SourcePoint
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource, queue_of
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.protocol.records.triggers import TriggerStatus, slices_of
from drainmark.jobs.runtime.input.slices import cut_loss
from drainmark.jobs.runtime.messages import halt_remedies
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.declaration import require_code
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.region_sources import has_folder
from drainmark.orchestration.workplace.workplace import Workplace

if TYPE_CHECKING:
    from drainmark.jobs.protocol.records.triggers import NewTrigger, Trigger
    from drainmark.jobs.regions.plan import RegionPlan

_MOST = 100_000
"""Upper bound of the pending slices: a scan cuts 5000."""


def plan_loss(workplace: Workplace, region: str) -> NewTrigger:
    """Return the trigger that is to take the place of the lost input; change nothing.

    Raises:
        UnknownName, UsageError: see `accept_loss`.
    """
    plan = _able_to_go_on(workplace, region)
    waiting = workplace.registry.triggers.pending(region, _MOST)
    return _cut(workplace, plan, _to_be_cut_anew(waiting))


def accept_loss(workplace: Workplace, region: str, reason: str, planned: NewTrigger) -> dict[str, Any]:
    """Go on behind the input that a region's starts have lost, and end a halt; may be repeated after an interruption.

    Args:
        planned: what `plan_loss` returned.

    Returns:
        `region`, `was_halted`, `reason`, `epoch`, `trigger` and `lost`, the loss in the trigger's slices by start.

    Raises:
        UnknownName: the code of the region cannot be found.
        UsageError: no input is lost, or no source can go on behind it, or more is lost by now than was planned.
        Owned: a run has the region.
    """
    plan = _able_to_go_on(workplace, region)
    with owning(region_owner(workplace, region)) as owner:
        registry = workplace.registry
        was_halted = owner.history.halt is not None
        waiting = registry.triggers.pending(region, _MOST)
        newest, anew = registry.triggers.newest(region), _to_be_cut_anew(waiting)
        trigger = _cut(workplace, plan, anew)
        if trigger.identity_key != planned.identity_key:
            msg = f"the plan passes {lost_in(planned)}, and by now {region} has lost {lost_in(trigger)}"
            raise UsageError(msg, remedy="nothing was changed: repeat the command, and look at its new plan")
        noted = next((each.order_index for each in waiting if each.identity_key == trigger.identity_key), None)
        if noted is None:  # else an earlier attempt was interrupted, and slices cut behind it since are good
            _give_back(workplace, plan, anew)
            _note(workplace, region, trigger, newest.order_index if newest else 0)
        why = f"cut anew behind {trigger.uri}"
        replaced = [each for each in waiting if noted is None or each.order_index < noted]
        withdrawn = {(row.trigger_order, row.trigger_uri) for row in owner.history.withdrawn}
        known = [each for each in replaced if (each.order_index, each.uri) in withdrawn]
        if known:  # else a rebuilt registry would have them as pending
            owner.halts.refuse(known, why, anew=True)
        ids = [each.id for each in replaced]
        registry.triggers.mark(region, owner.epoch, ids, TriggerStatus.SUPERSEDED, why)
        world.pass_point(SourcePoint.LOSS_PASSED)
        owner.halts.resume(f"{reason} (accepted as lost: {trigger.uri})")
        registry.progress.clear_halt_request(region, owner.epoch)
        registry.progress.clear_error(region, owner.epoch)
    return {
        "region": region,
        "was_halted": was_halted,
        "reason": reason,
        "epoch": owner.epoch,
        "trigger": trigger.uri,
        "lost": lost_in(trigger),
    }


def lost_in(trigger: NewTrigger) -> dict[str, Any]:
    """Return the loss that a trigger records, by start."""
    return {name: piece["lost"] for name, piece in slices_of(trigger.identity).items() if "lost" in piece}


def _able_to_go_on(workplace: Workplace, region: str) -> RegionPlan:
    """Return the plan of a region whose sources can go on behind lost input."""
    _, plan = require_code(workplace, region)
    if has_folder(plan):
        msg = f"region {region!r} has no source that can go on after lost input"
        ways = halt_remedies(region, workplace.history(region))
        raise UsageError(msg, remedy=", or: ".join(ways) or "it is not halted: its next run goes on")
    return plan


def _cut(workplace: Workplace, plan: RegionPlan, anew: Sequence[Mapping[str, Any]]) -> NewTrigger:
    newest = workplace.registry.triggers.newest(plan.name)
    starts = [start for start in plan.starts if isinstance(start, Source)]
    identity = newest.identity if newest is not None else None
    trigger = cut_loss(starts, identity, workplace.access(plan.name), waiting=anew)
    if trigger is None:
        msg = f"nothing that region {plan.name!r} is to read next is lost"
        raise UsageError(msg, remedy=f"drainmark resume {plan.name}")
    return trigger


def _give_back(workplace: Workplace, plan: RegionPlan, anew: Sequence[Mapping[str, Any]]) -> None:
    """Put the files of slices that are to be cut anew back into their queues: a slice takes the files that wait there.

    This is done before the loss is noted: else a crash in between would lose them. While the slices are pending, no
    slice is cut; if they stay after all, the next scan takes the files out again.
    """
    for start in plan.starts:
        if anew and isinstance(start, DirectorySource):
            taken = slices_of(anew[0]).get(start.name, {}).get("from")
            workplace.registry.triggers.give_back_queued(
                queue_of(plan.name, start.name), int(taken["order"]) if taken else 0
            )


def _note(workplace: Workplace, region: str, trigger: NewTrigger, after: int) -> None:
    """Add the trigger for the lost input, behind all pending triggers: only then may those be given up.

    Raises:
        UsageError: a scan added a trigger in between.
    """
    world.pass_point(SourcePoint.LOSS_BEFORE)
    workplace.registry.triggers.add(region, [trigger], after=after)
    last = workplace.registry.triggers.newest(region)
    if last is None or last.identity_key != trigger.identity_key:
        msg = f"a scan of {region!r} came in between, and nothing was changed"
        raise UsageError(msg, remedy="repeat the command")
    world.pass_point(SourcePoint.LOSS_NOTED)


def _to_be_cut_anew(waiting: Sequence[Trigger]) -> list[Mapping[str, Any]]:
    """Return the identities of the pending triggers, up to a loss that an earlier attempt noted behind them.

    Slices of other starts are cut anew with them: they begin at the same positions, and were not committed.
    """
    losses = (at for at, each in enumerate(waiting) if at and _is_loss(each))
    return [each.identity for each in waiting[: next(losses, len(waiting))]]


def _is_loss(trigger: Trigger) -> bool:
    return any("lost" in piece for piece in slices_of(trigger.identity).values())
