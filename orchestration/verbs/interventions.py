"""An operator's verbs: reset, rewind, skip, halt, resume. They need neither code of the application nor Spark, unless
an adopted table is behind or is rewound.

Every verb claims the region (so the work in flight is fenced off), commits a row with the action and its reason, and
hands the region over again. No function here prints.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from drainmark.jobs import world
from drainmark.jobs.errors import Owned, RewindRefused, UnknownName, UsageError
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.history import RegionHistory, target_before
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.triggers import FILE, Trigger, TriggerStatus, kind_of
from drainmark.jobs.protocol.repairs import Repair
from drainmark.jobs.protocol.rewind_steps import Rewind, TableStep, TriggersReturn
from drainmark.jobs.protocol.transitions import Event
from drainmark.jobs.regions.formatting import counted
from drainmark.orchestration.discovery.state_inputs import (
    files_behind,
    is_quarantined_whole,
    lost_slices,
    skipping_starts,
)
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs.chains import followers_of
from drainmark.orchestration.verbs.table_repair import claim_to_rewind, repairs_on_the_way
from drainmark.orchestration.views.status import commit_times
from drainmark.orchestration.workplace.declaration import declared
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace, existing_registry

if TYPE_CHECKING:
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner

_HALT_PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.2


# --- reset and rewind ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindTarget:
    """The target of a rewind, as the command line says it; exactly one is given, none means a bare reset."""

    to: int | None = None
    to_file: str | None = None
    to_time: dt.datetime | None = None
    by: int | None = None
    to_code: str | None = None
    to_initial: bool = False

    def given(self) -> int:
        """Return how many targets are given."""
        targets = (self.to, self.to_file, self.to_time, self.by, self.to_code)
        return sum(target is not None for target in targets) + self.to_initial


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """The plan of a reset; it is made without a claim, so it changes nothing.

    Attributes:
        to: the id to go back to; None for a bare reset, which withdraws no committed state.
        rewind: the rewind, as its row would record it; None for a bare reset.
        steps: its steps, each with its counts; tables that are repaired first have none.
        withdrawn: ids to be withdrawn, ascending.
        gone, changed: uris of inputs above `to` that cannot be read again unchanged.
        unpublished: ids of groups that are committed and will be published first.
        horizon: number of ids.
        halt: the effect on the halt in force, "stays" or "ends"; None if there is none.
        repairs: tables that others changed, with the repairs on the way.
        chain: the plans of the regions that read rows which leave, each before the regions that it reads.
        reads: of a plan in a chain, what it read that leaves, as (start, upstream region, the id that stays there).
        is_anew: of a plan in a chain, whether the last right state is beyond the horizon, so that it begins anew.
    """

    region: str
    to: int | None
    committed_sequence_id: int
    epoch: int
    horizon: int
    halt: Literal["stays", "ends"] | None = None
    rewind: Rewind | None = None
    steps: tuple[TableStep | TriggersReturn, ...] = ()
    withdrawn: tuple[int, ...] = ()
    gone: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unpublished: tuple[int, ...] = ()
    repairs: tuple[Repair, ...] = ()
    chain: tuple[ResetPlan, ...] = ()
    reads: tuple[tuple[str, str, int], ...] = ()
    is_anew: bool = False

    @property
    def rows(self) -> Mapping[str, int]:
        """Return, by name of a table, how many rows leave it or get an earlier value back."""
        tables = self.rewind.tables if self.rewind is not None else ()
        counted = {step.table.name: step.rows for step in self.steps if isinstance(step, TableStep)}
        return {table.name: rows for table in tables if (rows := counted[table.name]) is not None}

    @property
    def pending(self) -> tuple[str, ...]:
        """Return the uris that become pending, in their order."""
        return tuple(uri for step in self.steps if isinstance(step, TriggersReturn) for uri in step.uris)

    def to_json(self) -> dict[str, Any]:
        """Return the output of `reset --json`."""
        return {
            "region": self.region,
            "to": self.to,
            "committed_sequence_id": self.committed_sequence_id,
            "epoch": self.epoch,
            "horizon": self.horizon,
            "halt": self.halt,
            "withdrawn": self.withdrawn,
            "rows": dict(self.rows),
            "pending": self.pending,
            "gone": self.gone,
            "changed": self.changed,
            "unpublished": self.unpublished,
            "repairs": [repair.to_json() for repair in self.repairs],
            "chain": [
                {**plan.to_json(), "reads": [list(read) for read in plan.reads], "is_anew": plan.is_anew}
                for plan in self.chain
            ],
        }


def plan_reset(workplace: Workplace, region: str, target: RewindTarget) -> ResetPlan:
    """Return the plan of a reset, with those of the regions that read what leaves.

    Raises:
        UsageError, RewindRefused: see `plan_alone`; or a region of the chain cannot go back.
    """
    plan = plan_alone(workplace, region, target)
    return plan if plan.to is None else replace(plan, chain=_chain(workplace, plan))


def plan_alone(workplace: Workplace, region: str, target: RewindTarget) -> ResetPlan:
    """Return the plan of a reset of one region, whatever reads its tables.

    Raises:
        UsageError: several targets are given, or the region has never run.
        RewindRefused: the target is no effective committed id within the horizon, an image that replaces dropped
            changes is gone, or a sink that earlier code wrote is out of reach.
    """
    if target.given() > 1:
        raise UsageError("several targets are given", remedy="one of --to, --to-file, --to-time, --by, --to-initial")
    checkpoint = workplace.store(region).checkpoint
    history = checkpoint.history() if checkpoint.exists() else RegionHistory()
    if history.last_claim is None:
        raise UsageError(f"region {region!r} has never run: there is nothing to reset")
    plan = ResetPlan(
        region=region,
        to=None,
        committed_sequence_id=history.committed_id,
        epoch=history.epoch,
        horizon=declared(workplace, region).rewind_horizon,
        halt=_halt_after(history, is_rewind=bool(target.given())),
        unpublished=tuple(row.sequence_id for row in history.unpublished),
    )
    return _rewinding(workplace, history, plan, resolve_target(history, target)) if target.given() else plan


def _chain(workplace: Workplace, plan: ResetPlan) -> tuple[ResetPlan, ...]:
    """Return the plans of the regions of this home that read rows which leave by a plan."""
    found = []
    for each in followers_of(workplace, plan.region, plan.to or INITIAL_ID):
        alone = plan_alone(workplace, each.region, RewindTarget(to=each.to))
        reads = tuple((link.source, link.upstream, stays) for link, stays in each.because)
        found.append(replace(alone, reads=reads, is_anew=each.is_beyond))
    return tuple(found)


def _halt_after(history: RegionHistory, *, is_rewind: bool) -> Literal["stays", "ends"] | None:
    if history.halt is None:
        return None
    return "ends" if is_rewind and not history.is_halt_asked else "stays"


def _rewinding(workplace: Workplace, history: RegionHistory, plan: ResetPlan, to: int) -> ResetPlan:
    """Return the plan of a reset, with its rewind added."""
    from drainmark.jobs.runtime.commit import rewind as table_rewind
    from drainmark.jobs.runtime.commit.rewind_contents import contents_of

    store = workplace.store(plan.region)
    rewind = contents_of(store, history, to, plan.horizon)
    above = history.triggers_above(to)
    lost = _lost_inputs(workplace, history, above)
    repairs = repairs_on_the_way(store, plan.region, history, to)
    harmed = {repair.table for repair in repairs}
    tables = (
        step if harmed & {step.table.name, step.table.history} else table_rewind.counted(store, history, step)
        for step in rewind.table_steps
    )
    return replace(
        plan,
        to=to,
        rewind=rewind,
        steps=(*tables, TriggersReturn(to=to, uris=tuple(row.trigger_uri or "" for row in above))),
        withdrawn=tuple(history.states.ids.above(to)),
        gone=lost.gone,
        changed=lost.changed,
        repairs=repairs,
    )


def resolve_target(history: RegionHistory, target: RewindTarget) -> int:
    """Return the sequence id that a target means; it does not check whether a rewind to that id is allowed.

    Raises:
        RewindRefused: no state in force belongs to the file or to the code, or there are fewer states than `by`.
    """
    if target.to is not None:
        return target.to
    if target.to_file is not None:
        return _id_of_file(history, target.to_file)
    if target.to_time is not None:
        times = commit_times(history.states.values())
        moment = target.to_time
        later = (n for n, row in history.states.items() if times.get(row.attempt, row.recorded_at) > moment)
        # Nothing that was committed later may stay, even if a host whose clock is behind has taken over since.
        first = next(later, history.next_id)
        return history.state_at_most(first - 1) or INITIAL_ID  # no rewind goes to a skip
    if target.by is not None:
        count = len(history.states)
        if not 0 <= target.by <= count:
            msg = f"cannot go back by {target.by}: {count} states are in force"
            raise RewindRefused(msg, remedy="reset --to-initial goes back to the beginning")
        found = history.states.ids.from_end(target.by + 1) if target.by < count else None
        return (history.state_at_most(found) if found is not None else None) or INITIAL_ID  # no rewind goes to a skip
    if target.to_code is not None:
        return _id_of_code(history, target.to_code)
    return INITIAL_ID


def _id_of_code(history: RegionHistory, name: str) -> int:
    """Return the newest state in force that a code made, by its digest or the beginning of it."""
    claim = history.last_claim
    remedy = f"drainmark history {claim.region}" if claim is not None else "it has no state yet"
    codes = {deploy.code for deploy in history.deploys if deploy.code.startswith(name.lower())}
    if len(codes) != 1:
        msg = f"{name!r} names {len(codes)} codes" if codes else f"no code {name!r} has worked here"
        raise RewindRefused(msg, remedy=remedy)
    ends = (*(deploy.first_id for deploy in history.deploys[1:]), history.next_id)
    for deploy, end in reversed([*zip(history.deploys, ends, strict=True)]):
        newest = history.state_at_most(end - 1)
        if deploy.code in codes and newest is not None and newest >= deploy.first_id:
            return newest
    raise RewindRefused(f"no state in force was made by the code {name}", remedy=remedy)


def _id_of_file(history: RegionHistory, name: str) -> int:
    states = history.states.items()
    found = {row.trigger_uri or "": number for number, row in states if names_file(row.trigger_uri, name)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        whole = f"give the whole path, e.g. {shell_word(min(found))}"
        raise RewindRefused(f"{name!r} names {len(found)} files", remedy=whole)
    claim = history.last_claim
    remedy = f"drainmark history {claim.region}" if claim is not None else "it has no state yet"
    raise RewindRefused(f"no state in force was made from {name!r}", remedy=remedy)


def names_file(uri: str | None, name: str) -> bool:
    """Say whether a name means a uri: it is the uri, a path from here, or the end of its path, as bytes or encoded."""
    from drainmark.jobs.scan.folder import path_of, uri_of

    if uri is None:
        return False
    here, end = uri_of(os.path.abspath(name)), f"/{name.lstrip('/')}"
    return uri in (name, here) or uri.endswith(end) or path_of(uri).endswith(end)


class _Lost(NamedTuple):
    """Uris of inputs that cannot be read again unchanged, as far as their sources tell.

    Attributes:
        changed: inputs that are different now; a scan finds a changed file again, as another trigger.
        passed: inputs that no run can read again: those that are gone, and slices of a source that is another one now.
            A slice whose start skips missing files is not among them: it is read again without the files that are gone.
    """

    gone: tuple[str, ...]
    changed: tuple[str, ...]
    passed: frozenset[str]


def _lost_inputs(workplace: Workplace, history: RegionHistory, rows: Sequence[CheckpointRow]) -> _Lost:
    with_rows = [row for row in rows if not _has_no_rows(history, row)]
    files = [(row.trigger_uri or "", file) for row in with_rows for file in files_behind(workplace, row)]
    known = {file.uri for _, file in files}
    # A file of which no row is in any table may be gone, which ends its replay; if it changed, nothing is lost.
    empty = [row for row in rows if _has_no_rows(history, row) and row.trigger_uri not in known]
    files += [(row.trigger_uri or "", file) for row in empty for file in files_behind(workplace, row)]
    gone_files, changed = workplace.inputs.lost([(file.uri, file.identity) for _, file in files])
    changed_files = [uri for uri in changed if uri in known]
    gone_slices, changed_slices = lost_slices(workplace, rows)
    skipping = skipping_starts(workplace, rows[0].region) if gone_files else ()

    def triggers(lost: Collection[str], but: Collection[str] = ()) -> list[str]:
        """Return the triggers of lost files, except the files of some starts."""
        return [trigger for trigger, file in files if file.uri in lost and file.start not in but]

    gone = tuple(dict.fromkeys([*triggers(gone_files), *gone_slices]))
    changed = tuple(dict.fromkeys([*triggers(changed_files), *changed_slices]))
    return _Lost(gone, changed, frozenset([*triggers(gone_files, skipping), *gone_slices, *changed_slices]))


def _has_no_rows(history: RegionHistory, row: CheckpointRow) -> bool:
    """Say whether no table has rows of a state: its file was quarantined whole, or processed again at a later id."""
    if row.kind is not RowKind.STATE or kind_of(row.trigger_identity or {}) != FILE:
        return False
    return is_quarantined_whole(row) or history.replaced_by(row.sequence_id) is not None


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
            or other states or regions would go back than those of the plan.
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
        done = [_taken_back(workplace, each, owners[each.region]) for each in plans]
    *before, last = done
    return {**last, **({"chain": before} if cascade else {})}


def _taken_back(workplace: Workplace, plan: ResetPlan, owner: RegionOwner) -> dict[str, Any]:
    """Take one region back under its claim, and return what was done."""
    pending = 0
    if plan.to is not None:
        pending = owner.rewind(plan.to, plan.horizon, _passed(workplace, owner.history, plan.to))
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


def _passed(workplace: Workplace, history: RegionHistory, to: int) -> list[CheckpointRow]:
    """Return the states above an id whose input no run can read again."""
    rows = history.triggers_above(to)
    passed = _lost_inputs(workplace, history, rows).passed
    return [row for row in rows if row.trigger_uri in passed and row.trigger_order is not None]


# --- halt and resume ----------------------------------------------------------------------------------------------


def halt(
    workplace: Workplace, region: str, reason: str, *, patience_seconds: float = _HALT_PATIENCE_SECONDS
) -> dict[str, Any]:
    """Halt a region: ask a living owner to do it between two groups; without one, do it here.

    Raises:
        Owned: the owner is still busy with a group; the request stays, and the owner obeys it after the group.
    """
    from drainmark.resources.registry.lease import describe

    deadline = world.monotonic() + patience_seconds
    is_asked = False
    while True:
        if workplace.history(region).halt is not None:
            return {"region": region, "state": "HALTED", "reason": reason, "by": "owner" if is_asked else "before"}
        owner = describe(workplace.registry, region, lease_seconds=workplace.settings.lease_seconds)
        if owner is None or not owner.is_alive:
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
            owner.halts.halt(reason, trigger=None, operator=None, error=None, event=Event.HALT_ASKED)
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


def skip(workplace: Workplace, region: str, file: str, reason: str) -> dict[str, Any]:
    """Commit an empty state in place of a pending file; end a halt, or clear an error, of which it is the cause.

    Raises:
        UnknownName: no trigger has that name.
        UsageError: it is not pending, or the name means several pending files.
    """
    trigger = pending_trigger(workplace, region, file)
    with owning(region_owner(workplace, region)) as owner:
        trigger = pending_trigger(workplace, region, trigger.uri)
        blamed = blamed_trigger(owner.history)
        number = owner.groups.skip(trigger, reason)
        workplace.registry.triggers.mark_skipped(region, owner.epoch, trigger.id, number, reason)
        is_resumed = blamed == trigger.uri
        if is_resumed:
            owner.halts.resume(f"skipped {trigger.uri}: {reason}")
            workplace.registry.progress.clear_error(region, owner.epoch)
    return {
        "region": region,
        "sequence_id": number,
        "trigger": trigger.uri,
        "reason": reason,
        "is_resumed": is_resumed,
        "state": owner.state.value,
    }


def blamed_trigger(history: RegionHistory) -> str | None:
    """Return the trigger that caused the halt of the region, or else its last failure; None if there is none."""
    blamed: str | None = None
    if history.halt is not None:
        blamed = history.halt.detail.get("trigger")
    elif history.last_error:
        blamed = history.last_error.get("trigger")
    return blamed


def pending_trigger(workplace: Workplace, region: str, file: str) -> Trigger:
    """Return the pending trigger that a path, or the end of one, means.

    Raises:
        UnknownName, UsageError: see `skip`.
    """
    registry = existing_registry(workplace)
    uris = [uri for uri in registry.triggers.known(region) if names_file(uri, file)] if registry is not None else []
    seen = [trigger for uri in uris for trigger in workplace.registry.triggers.by_uri(region, uri)]
    waiting = [trigger for trigger in seen if trigger.status is TriggerStatus.PENDING]
    if len({trigger.uri for trigger in waiting}) > 1:
        msg = f"{file!r} names {len(waiting)} pending files"
        raise UsageError(msg, remedy=f"give the whole path, e.g. {shell_word(waiting[0].uri)}")
    if waiting:
        return waiting[-1]
    if seen:
        last = seen[-1]
        number = f" as sequence id {last.sequence_id}" if last.sequence_id is not None else ""
        remedy = None
        if last.status is TriggerStatus.COMMITTED and last.sequence_id is not None:
            horizon = declared(workplace, region).rewind_horizon
            before = target_before(workplace.history(region), last.sequence_id, horizon)
            remedy = f"drainmark reset {region} --to {before} makes it pending again"
        raise UsageError(f"{last.uri} is not pending: it is {last.status.value}{number}", remedy=remedy)
    msg = f"no trigger of region {region!r} is called {file!r}"
    raise UnknownName(msg, remedy=f"drainmark scan {region.partition('/')[0]} looks for new files")
