"""The plan of a reset: where a region goes back to, what leaves, what is read again, and which regions go back with it.

It is made without a claim, so it changes nothing; `interventions.reset` carries it out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from drainmark.jobs.errors import RewindRefused, UsageError
from drainmark.jobs.protocol.history import RegionHistory, state_by
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.triggers import FILE, RETRACTION, kind_of
from drainmark.jobs.protocol.repairs import Repair
from drainmark.jobs.protocol.rewind_steps import Rewind, TableStep, TriggersReturn
from drainmark.orchestration.discovery.state_inputs import (
    files_behind,
    is_quarantined_whole,
    lost_slices,
    skipping_starts,
)
from drainmark.orchestration.verbs.file_names import files_named, require_one_file
from drainmark.orchestration.verbs.rewinds.readers import followers_of
from drainmark.orchestration.verbs.table_repair import repairs_on_the_way
from drainmark.orchestration.workplace.declaration import declared
from drainmark.orchestration.workplace.workplace import Workplace


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


def target_named(text: str) -> RewindTarget:
    """Return the state that one text names: its id, the last one by a time, or else the one right after a file."""
    if text.isdecimal():
        return RewindTarget(to=int(text))
    try:
        return RewindTarget(to_time=moment(text, "", to_its_end=True))
    except UsageError:
        return RewindTarget(to_file=text)


def moment(text: str | None, option: str, *, to_its_end: bool = False) -> dt.datetime | None:
    """Return a time given as ISO-8601; without an offset it is UTC.

    Args:
        to_its_end: a time to the second, as tables show it, means the end of that second.

    Raises:
        UsageError: the text is no such time.
    """
    if text is None:
        return None
    try:
        given = dt.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} takes an ISO-8601 time, not {text!r}", remedy="e.g. 2026-01-31T12:00:00Z") from None
    if to_its_end and "." not in text:
        given = given.replace(microsecond=999_999)
    return given if given.tzinfo else given.replace(tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """The plan of a reset; it is made without a claim, so it changes nothing.

    Attributes:
        to: the id to go back to; None for a bare reset, which withdraws no committed state.
        rewind: the rewind, as its row would record it; None for a bare reset.
        steps: its steps, each with its counts; tables that are repaired first have none.
        withdrawn: ids to be withdrawn, ascending.
        unskipped: uris among those that become pending whose skip is taken back.
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
    unskipped: tuple[str, ...] = ()
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
            "unskipped": self.unskipped,
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
        targets = "--to, --to-file, --to-time, --by, --to-code, --to-initial"
        raise UsageError("several targets are given", remedy=f"one of {targets}")
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
    lost = lost_inputs(workplace, history, above)
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
        steps=(*tables, TriggersReturn(to=to, uris=tuple(dict.fromkeys(row.trigger_uri or "" for row in above)))),
        withdrawn=tuple(history.states.ids.above(to)),
        unskipped=tuple(dict.fromkeys(row.trigger_uri or "" for row in above if row.sequence_id in history.skips)),
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
        return state_by(history, target.to_time)
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
    newest = {row.trigger_uri: number for number, row in history.states.items() if row.trigger_kind != RETRACTION}
    found = files_named(name, newest)
    require_one_file(name, found, error=RewindRefused)
    if found:
        return newest[found[0]]
    claim = history.last_claim
    remedy = f"drainmark history {claim.region}" if claim is not None else "it has no state yet"
    raise RewindRefused(f"no state in force was made from {name!r}", remedy=remedy)


class LostInputs(NamedTuple):
    """Uris of inputs that cannot be read again unchanged, as far as their sources tell.

    Attributes:
        changed: inputs that are different now; a scan finds a changed file again, as another trigger.
        passed: inputs that no run can read again: those that are gone, and slices of a source that is another one now.
            A slice whose start skips missing files is not among them: it is read again without the files that are gone.
    """

    gone: tuple[str, ...]
    changed: tuple[str, ...]
    passed: frozenset[str]


def lost_inputs(workplace: Workplace, history: RegionHistory, rows: Sequence[CheckpointRow]) -> LostInputs:
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
    return LostInputs(gone, changed, frozenset([*triggers(gone_files, skipping), *gone_slices, *changed_slices]))


def _has_no_rows(history: RegionHistory, row: CheckpointRow) -> bool:
    """Say whether no table has rows of a state: its file was quarantined whole, retracted, or processed again since."""
    if row.kind is not RowKind.STATE or kind_of(row.trigger_identity or {}) != FILE:
        return False
    return is_quarantined_whole(row) or row.sequence_id in history.replaced
