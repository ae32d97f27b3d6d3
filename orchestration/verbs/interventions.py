"""An operator's verbs: reset, rewind, skip, halt, resume. They need neither code of the application nor Spark, unless
an adopted table is behind or is rewound.

Every verb claims the region (so the work in flight is fenced off), commits a row with the action and its reason, and
hands the region over again. No function here prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import Owned, RewindRefused, UnknownName, UsageError
from drainmark.jobs.protocol.history import RegionHistory, target_before
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.triggers import Trigger, TriggerStatus
from drainmark.jobs.protocol.transitions import Event
from drainmark.jobs.regions.formatting import counted
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs.file_names import require_one_file, triggers_named
from drainmark.orchestration.verbs.rewinds.readers import followers_of
from drainmark.orchestration.verbs.rewinds.reset_plan import ResetPlan, lost_inputs
from drainmark.orchestration.verbs.table_repair import claim_to_rewind
from drainmark.orchestration.workplace.declaration import declared
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace, living_owner

if TYPE_CHECKING:
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner

_HALT_PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.2


# --- reset and rewind ---------------------------------------------------------------------------------------------


def reset(workplace: Workplace, plan: ResetPlan, *, accept_loss: bool = False, cascade: bool = False) -> dict[str, Any]:
    """Carry out a plan: drop the work in flight, roll forward, and rewind if the plan has a target.

    Inputs that are gone, and slices of a source that is another one now, are noted as refused: else the next run would
    halt on them. Changed files are scanned anew.

    In a chain, all regions are claimed first, and readers go back before the regions that they read. A reader that has
    gone back is merely behind: right, as if it had not read those rows yet. A region that goes back before its readers
    leaves them wrong. So after a crash no table is wrong, and the same command plans what is left, since no region that
    is done stands between two that are not. The claims are held to the end, so no run reads once more what is about to
    leave. Who reads it all the same, after a crash, from another home, or as a new reader, finds out by itself
    (`SourceRewound`).

    Args:
        cascade: whether the regions of the chain go back as well; without it, they find out by themselves.

    Raises:
        RewindRefused: inputs above a target are lost and that was not accepted, or a target is no longer possible,
            or other states or regions would go back than those of the plan, or more inputs are lost by now.
        Owned: a run has one of the regions; no region was rewound.
    """
    plans = (*plan.chain, plan) if cascade else (plan,)
    _require_kept(plans, accept_loss=accept_loss)
    with ExitStack() as held:
        owners = {}
        for each in reversed(plans):
            owner = owners[each.region] = region_owner(workplace, each.region)
            held.enter_context(owning(owner, claim_to_rewind(owner, each.to)))
            _require_planned(each, owner.history)
        if cascade:
            _require_readers(workplace, plan)
        passed = {each.region: _passed(workplace, each, owners[each.region].history) for each in plans}
        done = [_taken_back(workplace, each, owners[each.region], passed[each.region]) for each in plans]
    *before, last = done
    return {**last, **({"chain": before} if cascade else {})}


def _taken_back(
    workplace: Workplace, plan: ResetPlan, owner: RegionOwner, passed: Sequence[CheckpointRow]
) -> dict[str, Any]:
    """Take one region back under its claim, and return what was done."""
    pending = 0
    if plan.to is not None:
        pending = owner.rewind(plan.to, plan.horizon, passed)
    return {
        "region": plan.region,
        "to": plan.to,
        "committed_sequence_id": owner.history.committed_id,
        "epoch": owner.history.epoch,
        "withdrawn": list(plan.withdrawn),
        "requeued": pending,
        "pending_triggers": workplace.registry.pending_count(plan.region),
    }


def _require_readers(workplace: Workplace, plan: ResetPlan) -> None:
    """Raise RewindRefused if other regions than those of the plan have read rows that leave."""
    now = {each.region: each.to for each in followers_of(workplace, plan.region, plan.to or INITIAL_ID)}
    if now != {each.region: each.to for each in plan.chain if each.to is not None}:  # the others are finished by now
        msg = f"other regions have read rows of {plan.region} since the plan was made"
        raise RewindRefused(msg, remedy="nothing was rewound: repeat the command, and look at its new plan")


def _require_kept(plans: Sequence[ResetPlan], *, accept_loss: bool) -> None:
    """Raise RewindRefused if inputs above the targets are lost and that was not accepted."""
    gone, changed = [uri for plan in plans for uri in plan.gone], [uri for plan in plans for uri in plan.changed]
    lost = [*gone, *changed]
    if not lost or accept_loss:
        return
    are = "is" if len(lost) == 1 else "are"
    above = next(plan.to for plan in plans if plan.gone or plan.changed)
    msg = f"{counted(len(lost), 'input')} above {above} {are} gone or changed, the first is {lost[0]}"
    remedy = "restore them, or repeat with --accept-loss"
    raise RewindRefused(msg, remedy=remedy, gone=tuple(gone), changed=tuple(changed))


def _require_planned(plan: ResetPlan, history: RegionHistory) -> None:
    """Raise RewindRefused if the states to withdraw are not those of the plan: a run may have come in between."""
    if plan.to is None:
        return
    above = tuple(history.states.ids.above(plan.to))
    if above != plan.withdrawn:
        planned, found = counted(len(plan.withdrawn), "state"), counted(len(above), "state")
        msg = f"the plan withdraws {planned} above {plan.to}, and {plan.region} has {found} there by now"
        raise RewindRefused(msg, remedy="nothing was rewound: repeat the command, and look at its new plan")


def _passed(workplace: Workplace, plan: ResetPlan, history: RegionHistory) -> list[CheckpointRow]:
    """Return the states above the target whose input no run can read again.

    Raises:
        RewindRefused: inputs are lost that the plan does not name.
    """
    if plan.to is None:
        return []
    rows = history.triggers_above(plan.to)
    lost = lost_inputs(workplace, history, rows)
    more = [uri for uri in (*lost.gone, *lost.changed) if uri not in (*plan.gone, *plan.changed)]
    if more:
        are = "is" if len(more) == 1 else "are"
        msg = f"{counted(len(more), 'input')} of {plan.region} {are} gone or changed since the plan was made: {more[0]}"
        remedy = "nothing was rewound: repeat the command, and look at its new plan"
        raise RewindRefused(msg, remedy=remedy, gone=lost.gone, changed=lost.changed)
    return [row for row in rows if row.trigger_uri in lost.passed and row.trigger_order is not None]


# --- halt and resume ----------------------------------------------------------------------------------------------


def halt(
    workplace: Workplace, region: str, reason: str, *, patience_seconds: float = _HALT_PATIENCE_SECONDS
) -> dict[str, Any]:
    """Halt a region: ask a living owner to do it between two groups; without one, do it here.

    Raises:
        Owned: the owner is still busy with a group; the request stays, and the owner obeys it after the group.
    """
    deadline = world.monotonic() + patience_seconds
    is_asked = False
    while True:
        if workplace.history(region).halt is not None:
            return {"region": region, "state": "HALTED", "reason": reason, "by": "owner" if is_asked else "before"}
        owner = living_owner(workplace, region)
        if owner is None:
            try:
                return _halt_here(workplace, region, reason)
            except Owned:
                continue  # another run was faster: ask that one
        if not is_asked:
            workplace.registry.progress.request_halt(region, reason)
            is_asked = True
        if world.monotonic() > deadline:
            msg = f"region {region!r} is owned by pid {owner.pid} on {owner.host}, which is busy with a group"
            raise Owned(msg, remedy="the halt is asked for and follows after that group; see drainmark status")
        world.sleep(_POLL_SECONDS)


def _halt_here(workplace: Workplace, region: str, reason: str) -> dict[str, Any]:
    with owning(region_owner(workplace, region)) as owner:
        if owner.history.halt is None:
            owner.halts.halt(reason, event=Event.HALT_ASKED)
        workplace.registry.progress.clear_halt_request(region, owner.epoch)
    return {"region": region, "state": "HALTED", "reason": reason, "by": "command"}


def resume(workplace: Workplace, region: str, reason: str) -> dict[str, Any]:
    """Let a halted region go on; its attempts count from 0 again."""
    with owning(region_owner(workplace, region)) as owner:
        was_halted = owner.history.halt is not None
        owner.halts.resume(reason)
        workplace.registry.progress.clear_halt_request(region, owner.epoch)
        workplace.registry.progress.clear_error(region, owner.epoch)
    return {"region": region, "was_halted": was_halted, "reason": reason, "epoch": owner.epoch}


def publish(workplace: Workplace, region: str) -> dict[str, Any]:
    """Bring the visible tables that lag behind their histories up to the last committed state."""
    with owning(region_owner(workplace, region)) as owner:
        lagging = sorted(owner.ledger.lags)
        owner.visible.bring_up_all()
        committed = owner.history.committed_id
    return {"region": region, "committed_sequence_id": committed, "brought_up": lagging, "epoch": owner.epoch}


# --- skip ---------------------------------------------------------------------------------------------------------


def skip(workplace: Workplace, region: str, files: Sequence[str], reason: str) -> dict[str, Any]:
    """Commit an empty state in place of each of some pending files; end a halt, or clear an error, of which one of them
    is the cause. The same command goes on after a crash.

    Raises:
        UnknownName, UsageError: see `to_skip`. Nothing was skipped.
    """
    to_skip(workplace, region, files, workplace.history(region))  # a wrong name should not cost a claim
    with owning(region_owner(workplace, region)) as owner:
        pending, before = to_skip(workplace, region, files, owner.history)
        blamed, skipped = blamed_trigger(owner.history), []
        for trigger in sorted(pending.values(), key=lambda each: each.order_index):
            number = owner.groups.skip(trigger, reason)
            workplace.registry.triggers.mark_skipped(region, owner.epoch, trigger.id, number, reason)
            skipped.append({"trigger": trigger.uri, "sequence_id": number})
        is_resumed = blamed in pending or blamed in before
        if is_resumed:
            owner.halts.resume(f"skipped {blamed}: {reason}")
            workplace.registry.progress.clear_error(region, owner.epoch)
    skipped_before = [{"trigger": uri, "sequence_id": number} for uri, number in before.items()]
    return {
        "region": region,
        **(skipped or skipped_before)[-1],
        "skipped": skipped,
        "skipped_before": skipped_before,
        "reason": reason,
        "is_resumed": is_resumed,
        "state": owner.state.value,
    }


def to_skip(
    workplace: Workplace, region: str, files: Sequence[str], history: RegionHistory
) -> tuple[dict[str, Trigger], dict[str, int]]:
    """Return, by uri, the pending triggers that some files mean, and the ids of those that are skipped already.

    A command that did not come to its end has skipped some files, and the halt that it was to end is still there.

    Raises:
        UnknownName: no trigger has that name.
        UsageError: it is not pending, or the name means several pending files; or there is nothing left to do.
    """
    pending: dict[str, Trigger] = {}
    before: dict[str, int] = {}
    for trigger in (_named_trigger(workplace, region, file) for file in files):
        if trigger.status is TriggerStatus.PENDING:
            pending[trigger.uri] = trigger
        elif trigger.status is TriggerStatus.SKIPPED and trigger.sequence_id is not None:
            before[trigger.uri] = trigger.sequence_id
        else:
            raise _not_pending(workplace, region, trigger)
    if not pending and blamed_trigger(history) not in before:
        raise _not_pending(workplace, region, _named_trigger(workplace, region, files[0]))
    return pending, before


def blamed_trigger(history: RegionHistory) -> str | None:
    """Return the trigger that caused the halt of the region, or else its last failure; None if there is none."""
    blamed: str | None = None
    if history.halt is not None:
        blamed = history.halt.detail.get("trigger")
    elif history.last_error:
        blamed = history.last_error.get("trigger")
    return blamed


def _named_trigger(workplace: Workplace, region: str, file: str) -> Trigger:
    """Return the trigger that a path, or the end of one, means: the newest pending one, else the newest."""
    seen = triggers_named(workplace, region, file)
    waiting = [trigger for trigger in seen if trigger.status is TriggerStatus.PENDING]
    require_one_file(file, {trigger.uri for trigger in waiting}, "pending files")
    if not seen:
        msg = f"no trigger of region {region!r} is called {file!r}"
        raise UnknownName(msg, remedy=f"drainmark scan {region.partition('/')[0]} looks for new files")
    return (waiting or seen)[-1]


def _not_pending(workplace: Workplace, region: str, trigger: Trigger) -> UsageError:
    number = f" as sequence id {trigger.sequence_id}" if trigger.sequence_id is not None else ""
    remedy = None
    if trigger.status is TriggerStatus.COMMITTED and trigger.sequence_id is not None:
        horizon = declared(workplace, region).rewind_horizon
        before = target_before(workplace.history(region), trigger.sequence_id, horizon)
        remedy = f"drainmark reset {region} --to {before} makes it pending again"
    return UsageError(f"{trigger.uri} is not pending: it is {trigger.status.value}{number}", remedy=remedy)
