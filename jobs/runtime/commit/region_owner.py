"""The owner of a region: claims it, commits to its checkpoint table, publishes, rewinds, hands it over.

Every verb of design.md §3 that writes stands here, once. An owner whose epoch was passed by another's gets `Fenced`
from the store and must do nothing more.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DrainmarkError, Halted, SplitBrain
from drainmark.jobs.protocol.history import Outcome, RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.runtime.messages import halted_error

if TYPE_CHECKING:
    pass


import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from drainmark.jobs.errors import Fenced, Retry
from drainmark.jobs.failpoints import FailPoint, reach
from drainmark.jobs.protocol.claimed_code import NO_CODE, Code
from drainmark.jobs.protocol.decisions import is_lifted
from drainmark.jobs.protocol.records.checkpoint_row import FORMAT_VERSION, PLAIN_FORMAT
from drainmark.jobs.protocol.records.triggers import Trigger, kind_of
from drainmark.jobs.protocol.transitions import Event, State
from drainmark.jobs.runtime.adapters import Outside, Report
from drainmark.jobs.runtime.commit import table_damage
from drainmark.jobs.runtime.commit.controller import Controller
from drainmark.jobs.runtime.commit.publication import publish_group, rewind_tables
from drainmark.jobs.runtime.commit.replacement import stage_replaced
from drainmark.jobs.runtime.commit.rewind_reach import former_in_reach, images_for
from drainmark.jobs.runtime.commit.row_author import Identity
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.commit.takeover_checks import ready, require_takeover
from drainmark.jobs.runtime.messages import trigger_columns


@dataclass(slots=True, kw_only=True)
class RegionOwner:
    """Owns a region from `claim` to `release`.

    Attributes:
        history: the region's facts, with every row that this owner committed.
        epoch: this owner's; 0 before the claim.
        versions: Delta version by table of what this owner published.
        done_through: the newest id that this owner itself published or rewound; its note rides with a later commit.
        controller: the region's state, and the durations of what was done since the last note.
    """

    identity: Identity
    outside: Outside
    report: Report = lambda step, numbers: None
    history: RegionHistory = field(default_factory=RegionHistory)
    epoch: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    done_through: int = 0
    controller: Controller = field(init=False)

    def __post_init__(self) -> None:
        self.controller = Controller(region=self.region, registry=self.outside.registry, report=self.report)

    @property
    def region(self) -> str:
        return self.identity.region

    @property
    def state(self) -> State:
        return self.controller.state

    @property
    def behind(self) -> tuple[CheckpointRow, ...]:
        """Return the rows, in commit order, that are committed and that nobody is known to have published."""
        return tuple(row for row in self.history.unpublished if row.sequence_id > self.done_through)

    # --- claim ------------------------------------------------------------------------------------------------------

    def claim(
        self, tables: Sequence[RegionTable] = (), code: Code = NO_CODE, *,
        repair: Callable[[RegionOwner], bool] | None = None,
    ) -> RegionHistory:  # fmt: skip
        """Take the region over: lease, fence, look who else wrote, roll forward (design.md §3.1, §3.2).

        After an unclean end it is RESETTING until `reset_done`: whoever claims may have states to load.

        Args:
            tables: the region's tables as this code knows them; those of the last claim by default.
            code: what else the code says; nothing by default.
            repair: puts tables right that others changed, and says whether all of them are; else a rewind is to follow,
                and nothing is rolled forward.

        Raises:
            Owned: somebody alive owns it.
            Fenced: somebody claimed at the same moment.
            RegistryLost, StateIncompatible, StatesMoved, SchemaMismatch: see `claiming.ready`; nothing was changed,
                unless an older owner put something in flight at this very moment.
            Halted: others changed tables, or a table does not take what is committed.
        """
        self.outside.lease.acquire(self.region, self.identity.run_id)
        try:
            known = self._fence(tables, code)
        except BaseException:
            self.outside.lease.release(clean=False)
            raise
        if repair is not None and not repair(self):
            return self.history
        halt_where_damaged(self)
        for table in known:
            self.outside.store.widen(table)
        self.roll_forward()
        collect_orphans(self)
        return self.history

    def _fence(self, tables: Sequence[RegionTable], code: Code) -> Sequence[RegionTable]:
        store, registry = self.outside.store, self.outside.registry
        self.history, known = ready(self.outside, self.region, tables, code)
        previous, info = self.history.last_outcome, registry.region_info(self.region)
        self.epoch = max(self.history.epoch, info.epoch) + 1
        self.controller.claimed(self.history, info.state, self.epoch)
        row = self._row(
            RowKind.CLAIM,
            max(self.history.next_id, info.next_id),  # burnt ids stay burnt (H40)
            previous=previous.value,
            error=dict(self.history.last_error) if self.history.last_error and previous is Outcome.FAILED else None,
            tables=[table.to_json() for table in known],
            code=self.identity.code or None,
            **code.to_detail(),
        )
        store.checkpoint.claim(row)
        # Read again: until this very commit an older owner that was stopped could still commit a group (H2, H3).
        self.history = store.checkpoint.history()
        registry.set_epoch(self.region, self.epoch)
        registry.set_next_id(self.region, self.epoch, self.history.next_id)
        if info.last_error and not self.history.attempts:  # all went well since
            registry.clear_error(self.region, self.epoch)
        self.controller.tell()
        if code.operators:
            require_takeover(self.history, self.region, code)
        self.report("claim", {"epoch": self.epoch, "previous": previous.value, "attempts": self.history.attempts})
        return known

    def roll_forward(self) -> None:
        """Finish, in commit order, whatever is committed and not published (H3).

        Raises:
            Halted: a table does not take what is committed, and trying again gives the same.
        """
        try:
            self._roll_forward()
        except DrainmarkError as error:
            if error.retry is not Retry.PERMANENT:
                raise
            raise halt_for(self, error) from error

    def _roll_forward(self) -> None:
        reach(FailPoint.ROLL_FORWARD)
        behind = self.behind
        for row in behind:
            if table_damage.is_withdrawn(row, behind):  # by a rewind that could not wait: its tables were damaged
                self.done_through = row.sequence_id
            elif row.kind is RowKind.REWIND:
                self._apply_rewind(row)
            elif row.kind is RowKind.SKIP:
                self._settle_skip(row)
            else:
                self._publish(row)
                self._settle(row)
        if behind:
            self.report("roll_forward", {"groups": len(behind)})
            self.note_published()

    def reset_done(self) -> None:
        """Note that all is as of the committed id, the states that a run loads among it."""
        if self.state is State.RESETTING:
            self.moved(Event.RESET_DONE)

    # --- a group ----------------------------------------------------------------------------------------------------

    def commit(self, staged: StagedGroup) -> CheckpointRow:
        """Make a drained group a consistent state, the one commit point; return the row of its last id.

        What stages finished late of ids that are committed becomes a `progress` row.

        Raises:
            AccountingError, Fenced: a staged file is not what was written, or another owner claimed; nothing committed.
        """
        group, number = staged.group, staged.row_id
        manifest = replace(staged.manifest(), replaced=stage_replaced(self.outside.store, self.history, group))
        started = time.monotonic()
        rows = [
            self._row(RowKind.STATE, member.sequence_id, attempt=group.attempt, **staged.columns_of(member))
            for member in group.members
        ]
        if staged.progress_id is not None:
            rows = [self._row(RowKind.PROGRESS, number, attempt=group.attempt)]
        known = FORMAT_VERSION if manifest.stages or manifest.late or staged.progress_id else PLAIN_FORMAT
        detail = {**rows[-1].detail, "manifest": manifest.to_json()}
        rows[-1] = replace(rows[-1], detail=detail, format_version=known)
        table_damage.require_sole_writer(
            self.outside.store, self.history, table_damage.published_to(self.history, manifest)
        )
        staged.verify(self.outside.store)
        self._append([*self._open_note(), *rows], number)
        self.controller.durations.commits[number] = round(time.monotonic() - started, 4)
        return rows[-1]

    def publish(self, row: CheckpointRow) -> None:
        """Publish the group of a row that this owner committed, and tell the registry."""
        self._publish(row)
        reach(FailPoint.RESUME_BEFORE)
        self._settle(row)
        reach(FailPoint.RESUME_AFTER)

    def _publish(self, row: CheckpointRow) -> None:
        started = time.monotonic()
        tables = (*self.history.former, *self.history.tables)
        self.versions.update(publish_group(self.outside.store, tables, row, self.epoch))
        self.controller.durations.publishes[row.sequence_id] = round(time.monotonic() - started, 4)

    def _settle(self, row: CheckpointRow) -> None:
        """Tell the registry which triggers the group committed; only then is the group done.

        Else a registry that does not answer here would leave them pending behind a group that nobody rolls forward.
        """
        first = row.group_first if row.group_first is not None else row.sequence_id
        settled = []
        for number in range(first, row.sequence_id + 1):
            state = self.history.states.get(number)
            if state is not None and state.trigger_order is not None:
                settled.append((state.trigger_order, number))
        self.outside.registry.settle(self.region, self.epoch, settled)
        self.done_through = max(self.done_through, row.sequence_id)

    # --- rewind -----------------------------------------------------------------------------------------------------

    def rewind(self, to: int, horizon: int) -> int:
        """Take state and every sink of the region back to a committed id (design.md §3.4).

        Returns:
            how many triggers became pending again.

        Raises:
            RewindRefused: see `RegionHistory.check_rewind`, `images_for`, `former_in_reach`; nothing was changed.
        """
        self.history.check_rewind(to, horizon)
        images = images_for(self.outside.store, self.history, to)
        former = former_in_reach(self.outside.store, self.history)
        number = self.outside.registry.take_ids(self.region, self.epoch, 1)
        row = self._row(
            RowKind.REWIND, number, to=to,
            tables=[table.to_json() for table in (*self.history.tables, *former)],
            former=[table.name for table in former] or None,
            restored=[replaced.to_json() for replaced in self.history.replaced_after(to)] or None,
            images=[image.to_json() for image in images] or None,
        )  # fmt: skip
        self._append([*self._open_note(), row], number)
        self.moved(Event.REWIND_ASKED)
        pending = self._apply_rewind(row)
        self.note_published()
        self.reset_done()
        return pending

    def _apply_rewind(self, row: CheckpointRow) -> int:
        """Take every table back; visible tables first, while their histories still hold what leaves."""
        to = int(row.detail["to"])
        repaired = table_damage.rewind_damaged(self.outside.store, self.history, row, self.epoch)
        self.versions.update(repaired | rewind_tables(self.outside.store, row, self.epoch, done=repaired))
        pending = self.outside.registry.requeue_above(self.region, self.epoch, to)
        self.done_through = max(self.done_through, row.sequence_id)
        self.report("rewind", {"to": to, "rewind_id": row.sequence_id, "pending": pending})
        return pending

    # --- other rows -------------------------------------------------------------------------------------------------

    def halt(
        self, reason: str, *, trigger: str | None, operator: str | None, error: Mapping[str, Any] | None,
        event: Event = Event.ATTEMPTS_EXHAUSTED, code: str | None = None,
    ) -> Halted:  # fmt: skip
        """Write that the region is halted, tell whoever wants to know, and return the error that says so.

        Every halt goes through here. A crash right after the commit leaves it to others to tell (`Outside.on_halt`).

        Args:
            event: HALT_ASKED where an operator asked for it.
            code: digest of code that failed before it could claim: other code takes the halt back by itself.
        """
        row = self._row(
            RowKind.HALT, self.history.committed_id, reason=reason, trigger=trigger, operator=operator,
            error=dict(error) if error else None, code=code,
        )  # fmt: skip
        self._note([*self._open_note(), row])
        self.controller.halted(event, self.history)
        self.report("halt", {"reason": reason, "trigger": trigger})
        self.outside.on_halt(self.history)
        return halted_error(self.region, self.history)

    def resume(self, reason: str) -> None:
        """Grant a fresh budget of attempts (E18)."""
        self._note([self._row(RowKind.RESUME, self.history.committed_id, reason=reason)])
        self.moved(Event.RESUMED)

    def lift(self) -> None:
        """Take back a halt of code that failed before it could claim, where this owner's is other code."""
        if is_lifted(self.history, self.identity.code):
            self.resume("the code that failed is other code now")

    def refuse(self, uri: str, identity: Mapping[str, Any], reason: str) -> None:
        """Note that a trigger will never be processed, and why."""
        facts: dict[str, Any] = {"trigger_uri": uri, "trigger_kind": kind_of(identity), "reason": reason}
        detail = {"trigger_identity": dict(identity), **facts}
        self._note([self._row(RowKind.REFUSED, self.history.committed_id, **detail)])

    def skip(self, trigger: Trigger, reason: str) -> int:
        """Commit an empty state for a trigger that cannot be processed; returns its id."""
        number = self.outside.registry.take_ids(self.region, self.epoch, 1)
        row = self._row(
            RowKind.SKIP, number, group_first=number, group_last=number, rows_in=0, reason=reason,
            **trigger_columns(trigger),
        )  # fmt: skip
        self._append([row], number)
        self._settle_skip(row)
        return number

    def _settle_skip(self, row: CheckpointRow) -> None:
        """Tell the registry of a skip, which would else be undone by processing its trigger."""
        registry, order = self.outside.registry, row.trigger_order
        if row.sequence_id in self.history.states and order is not None:
            for trigger in registry.by_order(self.region, [order]):
                reason = str(row.detail.get("reason", ""))
                registry.mark_skipped(self.region, self.epoch, trigger.id, row.sequence_id, reason)
        self.done_through = max(self.done_through, row.sequence_id)

    def release(self, outcome: Outcome, error: Mapping[str, Any] | None = None) -> None:
        """Note how this owner ended and give up the lease; an interrupted or clean end costs no attempt."""
        try:
            reach(FailPoint.RELEASE_BEFORE)
            if self.epoch:
                self.note_published(outcome, error=dict(error) if error else None)
                self.controller.come_to_rest(self.history)
        finally:
            self.outside.lease.release(clean=outcome is Outcome.CLEAN)
        self.report("release", {"outcome": outcome.value})

    def leave(self) -> None:
        """Give up after `Fenced`: no commit, no registry write."""
        self.outside.lease.release(clean=False)

    def refresh(self) -> RegionHistory:
        """Read the checkpoint table again: what really was committed after an unknown outcome.

        Raises:
            Fenced: somebody else claimed meanwhile.
        """
        self.history = self.outside.store.checkpoint.history()
        if self.history.epoch != self.epoch:
            msg = f"{self.region!r} was claimed under epoch {self.history.epoch}; this owner's was {self.epoch}"
            raise Fenced(msg)
        return self.history

    def moved(self, event: Event, *, told: bool = True) -> None:
        """Note an event of the run in the controller's state; a state that another follows at once need not be told."""
        self.controller.moved(event, self.history, told=told)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _open_note(self) -> list[CheckpointRow]:
        """Return the note of what was published since the last one, to ride with the next commit."""
        if not self.versions or not self.history.unpublished:
            return []
        return [self._published_row(outcome=None)]

    def note_published(self, outcome: Outcome | None = None, **detail: Any) -> None:
        """Commit a note of what was published; `detail` adds to it."""
        self._note([self._published_row(outcome=outcome, **detail)])

    def _published_row(self, *, outcome: Outcome | None, **detail: Any) -> CheckpointRow:
        behind = self.behind
        through = behind[0].sequence_id - 1 if behind else self.history.next_id - 1
        return self._row(
            RowKind.PUBLISHED,
            self.history.committed_id,
            versions=dict(self.versions),
            through=through,
            **self.controller.durations.to_detail(),
            outcome=outcome.value if outcome else None,
            **detail,
        )

    def _note(self, rows: Sequence[CheckpointRow]) -> None:
        """Commit rows that take no id of their own, at the newest id that any row has."""
        self._append(rows, self.history.next_id - 1)

    def _append(self, rows: Sequence[CheckpointRow], sequence_id: int) -> None:
        self.outside.store.checkpoint.append(rows, sequence_id=sequence_id)
        if any(row.kind is RowKind.PUBLISHED for row in rows):
            self.controller.durations.clear()
        self.history = self.history.with_rows(rows)

    def _row(self, kind: RowKind, sequence_id: int, *, attempt: str | None = None, **values: Any) -> CheckpointRow:
        moment = dt.datetime.fromtimestamp(self.outside.clock(), dt.UTC)
        return self.identity.row(
            kind, epoch=self.epoch, sequence_id=sequence_id, attempt=attempt or uuid.uuid4().hex, recorded_at=moment,
            values=values,
        )  # fmt: skip


def halt_where_damaged(owner: RegionOwner) -> None:
    """Halt a region whose tables others changed; a rewind that is under way puts them right.

    Raises:
        Halted: they did.
    """
    if owner.history.is_rewinding:
        return
    try:
        table_damage.require_sole_writer(owner.outside.store, owner.history)
    except SplitBrain as error:
        raise halt_for(owner, error) from error


def halt_for(owner: RegionOwner, error: DrainmarkError) -> Halted:
    """Halt a region whose tables do not take what is committed; said once, however often it is found."""
    halt = owner.history.halt
    if halt is not None and (halt.detail.get("error") or {}).get("message") == error.message:
        return halted_error(owner.region, owner.history)
    reason = error.message if isinstance(error, SplitBrain) else "what is committed cannot be published"
    return owner.halt(reason, trigger=None, operator=error.operator, error=error.to_json())


def collect_orphans(owner: RegionOwner) -> None:
    """Delete what dead epochs staged and no row of the checkpoint table names, where the last owner crashed.

    Rows that a rewind withdrew still name their files: a reader may hold a version of a table that has them. To be
    done when all that is committed is published: the tables are fenced, and take nothing of older epochs any more.
    """
    claim = owner.history.last_claim
    if claim is None or claim.detail.get("previous") != Outcome.CRASHED.value:
        return
    tables = (table for table in owner.history.tables if table.is_managed and table.role is not TableRole.UPSERT)
    removed = owner.outside.store.leftovers.collect_orphans([table.name for table in tables], owner.epoch)
    owner.report("collect", {"folders": removed})
