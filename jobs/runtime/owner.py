"""The owner of a region: claims it, commits to its checkpoint table, publishes, rewinds, hands it over.

Every verb of design.md §3 that writes stands here, once. An owner whose epoch was passed by another's gets `Fenced`
from the store and must do nothing more.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jobs.errors import DrainmarkError, Fenced, Halted, Retry
from jobs.failpoints import FailPoint, reach
from jobs.protocol.decisions import attempts_after
from jobs.protocol.history import Outcome, RegionHistory
from jobs.protocol.manifest import RegionTable
from jobs.protocol.rows import FORMAT_VERSION, PLAIN_FORMAT, CheckpointRow, RowKind
from jobs.protocol.transitions import Event, State, move
from jobs.protocol.triggers import Trigger, kind_of
from jobs.runtime.claiming import NO_CODE, Code, ready, require_takeover
from jobs.runtime.descriptions import halted_error, trigger_columns
from jobs.runtime.durations import Durations
from jobs.runtime.former import former_in_reach
from jobs.runtime.maintaining import collect_orphans, images_for
from jobs.runtime.ports import Outside
from jobs.runtime.publishing import publish_group, rewind_tables
from jobs.runtime.replacing import stage_replaced
from jobs.runtime.staged import StagedGroup

Report = Callable[[str, Mapping[str, Any]], None]
"""Called with the name of a step and its numbers, once a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What every row of this owner says about who wrote it."""

    region: str
    run_id: str
    drainmark_version: str
    graph_fingerprint: str = ""
    params_hash: str = ""


@dataclass(slots=True, kw_only=True)
class RegionOwner:
    """Owns a region from `claim` to `release`.

    Attributes:
        history: the region's facts, with every row that this owner committed.
        epoch: this owner's; 0 before the claim.
        state: the controller's state (E9).
        versions: Delta version by table of what this owner published.
        done_through: the newest id that this owner itself published or rewound; its note rides with a later commit.
        durations: of what it did since its last note; noted with the next commit, too.
    """

    identity: Identity
    outside: Outside
    report: Report = lambda step, numbers: None
    history: RegionHistory = field(default_factory=RegionHistory)
    epoch: int = 0
    state: State = State.STARTED
    versions: dict[str, int] = field(default_factory=dict)
    done_through: int = 0
    durations: Durations = field(default_factory=Durations)

    @property
    def region(self) -> str:
        return self.identity.region

    @property
    def behind(self) -> tuple[CheckpointRow, ...]:
        """Return the rows, in commit order, that are committed and that nobody is known to have published."""
        return tuple(row for row in self.history.unpublished if row.sequence_id > self.done_through)

    # --- claim ------------------------------------------------------------------------------------------------------

    def claim(self, tables: Sequence[RegionTable] = (), code: Code = NO_CODE) -> RegionHistory:
        """Take the region over: lease, fence, roll forward (design.md §3.1, §3.2).

        Args:
            tables: the region's tables as this code knows them; those of the last claim by default.
            code: what else the code says; nothing by default.

        Raises:
            Owned: somebody alive owns it.
            Fenced: somebody claimed at the same moment.
            RegistryLost, StateIncompatible, StatesMoved, SchemaMismatch: see `claiming.ready`; nothing was changed,
                unless an older owner put something in flight at this very moment.
        """
        self.outside.lease.acquire(self.region, self.identity.run_id)
        try:
            self._fence(tables, code)
        except BaseException:
            self.outside.lease.release(clean=False)
            raise
        self.roll_forward()
        collect_orphans(self)
        return self.history

    def _fence(self, tables: Sequence[RegionTable], code: Code) -> None:
        store, registry = self.outside.store, self.outside.registry
        self.history, known = ready(self.outside, self.region, tables, code)
        previous = self.history.last_outcome
        self.epoch = max(self.history.epoch, registry.region_info(self.region).epoch) + 1
        self._move(Event.CLAIMED_UNCLEAN if attempts_after(RegionHistory(), previous) else Event.CLAIMED_CLEAN)
        row = self._row(
            RowKind.CLAIM,
            max(self.history.next_id, registry.region_info(self.region).next_id),  # burnt ids stay burnt (H40)
            previous=previous.value,
            error=dict(self.history.last_error) if self.history.last_error and previous is Outcome.FAILED else None,
            tables=[table.to_json() for table in known],
            **code.to_detail(),
        )
        store.checkpoint.claim(row)
        for table in known:
            store.widen(table)
        # Read again: until this very commit an older owner that was stopped could still commit a group (H2, H3).
        self.history = store.checkpoint.history()
        registry.set_epoch(self.region, self.epoch)
        registry.set_next_id(self.region, self.epoch, self.history.next_id)
        if code.operators:
            require_takeover(self.history, self.region, code)
        self.report("claim", {"epoch": self.epoch, "previous": previous.value, "attempts": self.history.attempts})

    def roll_forward(self) -> None:
        """Finish, in commit order, whatever is committed and not published (H3); resets count as done then.

        Raises:
            Halted: a table does not take what is committed, and trying again gives the same.
        """
        try:
            self._roll_forward()
        except DrainmarkError as error:
            if error.retry is not Retry.PERMANENT:
                raise
            why, blamed = "what is committed cannot be published", error.to_json()
            raise self.halt(why, trigger=None, operator=error.operator, error=blamed) from error

    def _roll_forward(self) -> None:
        reach(FailPoint.ROLL_FORWARD)
        behind = self.behind
        for row in behind:
            if row.kind is RowKind.REWIND:
                self._apply_rewind(row)
            elif row.kind is RowKind.SKIP:
                self._settle_skip(row)
            else:
                self._publish(row)
                self._settle(row)
        if behind:
            self.report("roll_forward", {"groups": len(behind)})
            self.note_published()
        if self.state is State.RESETTING:
            self._move(Event.RESET_DONE)

    # --- a group ----------------------------------------------------------------------------------------------------

    def commit(self, staged: StagedGroup) -> CheckpointRow:
        """Make a drained group a consistent state, the one commit point; return the row of its last id.

        What stages finished late of ids that are committed becomes a `progress` row.

        Raises:
            Fenced: another owner claimed; nothing was committed.
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
        is_plain = not (manifest.stages or manifest.late or staged.progress_id)
        known = PLAIN_FORMAT if is_plain else FORMAT_VERSION
        detail = {**rows[-1].detail, "manifest": manifest.to_json()}
        rows[-1] = replace(rows[-1], detail=detail, format_version=known)
        self._append([*self._open_note(), *rows], number)
        self.durations.commits[number] = round(time.monotonic() - started, 4)
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
        self.durations.publishes[row.sequence_id] = round(time.monotonic() - started, 4)

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
        if self.state is State.STARTED:
            self._move(Event.CLAIMED_CLEAN)
        self._move(Event.REWIND_ASKED)
        self._append([*self._open_note(), row], number)
        pending = self._apply_rewind(row)
        self.note_published()
        self._move(Event.RESET_DONE)
        return pending

    def _apply_rewind(self, row: CheckpointRow) -> int:
        """Take every table back; visible tables first, while their histories still hold what leaves."""
        to = int(row.detail["to"])
        self.versions.update(rewind_tables(self.outside.store, row, self.epoch))
        pending = self.outside.registry.requeue_above(self.region, self.epoch, to)
        self.done_through = max(self.done_through, row.sequence_id)
        self.report("rewind", {"to": to, "rewind_id": row.sequence_id, "pending": pending})
        return pending

    # --- other rows -------------------------------------------------------------------------------------------------

    def halt(
        self, reason: str, *, trigger: str | None, operator: str | None, error: Mapping[str, Any] | None
    ) -> Halted:
        """Write that the region is halted, tell whoever wants to know, and return the error that says so.

        Every halt goes through here. A crash right after the commit leaves it to others to tell (`Outside.on_halt`).
        """
        if self.state in (State.PROCESSING, State.RESETTING):
            self._move(Event.HALT_ASKED)
        row = self._row(
            RowKind.HALT, self.history.committed_id, reason=reason, trigger=trigger, operator=operator,
            error=dict(error) if error else None,
        )  # fmt: skip
        self._note([*self._open_note(), row])
        self.report("halt", {"reason": reason, "trigger": trigger})
        self.outside.on_halt(self.history)
        return halted_error(self.region, self.history)

    def resume(self, reason: str) -> None:
        """Grant a fresh budget of attempts (E18)."""
        self._note([self._row(RowKind.RESUME, self.history.committed_id, reason=reason)])

    def refuse(self, uri: str, identity: Mapping[str, Any], reason: str) -> None:
        """Note that a trigger will never be processed, and why."""
        row = self._row(
            RowKind.REFUSED, self.history.committed_id, trigger_uri=uri, trigger_kind=kind_of(identity),
            trigger_identity=dict(identity), reason=reason,
        )  # fmt: skip
        self._note([row])

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
        self._move(event, told=told)

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
            **self.durations.to_detail(),
            outcome=outcome.value if outcome else None,
            **detail,
        )

    def _note(self, rows: Sequence[CheckpointRow]) -> None:
        """Commit rows that take no id of their own, at the newest id that any row has."""
        self._append(rows, self.history.next_id - 1)

    def _append(self, rows: Sequence[CheckpointRow], sequence_id: int) -> None:
        self.outside.store.checkpoint.append(rows, sequence_id=sequence_id)
        if any(row.kind is RowKind.PUBLISHED for row in rows):
            self.durations.clear()
        self.history = self.history.with_rows(rows)

    def _move(self, event: Event, *, told: bool = True) -> None:
        before, self.state = self.state, move(self.state, event)
        self.durations.moved(before, self.state, self.history)
        if self.epoch and told:
            self.report("state", {"state": self.state.value})

    def _row(self, kind: RowKind, sequence_id: int, *, attempt: str | None = None, **values: Any) -> CheckpointRow:
        columns = {name: values.pop(name) for name in list(values) if name in CheckpointRow.__dataclass_fields__}
        return CheckpointRow(
            kind=kind,
            epoch=self.epoch,
            sequence_id=sequence_id,
            attempt=attempt or uuid.uuid4().hex,
            recorded_at=dt.datetime.fromtimestamp(self.outside.clock(), dt.UTC),
            region=self.region,
            run_id=self.identity.run_id,
            drainmark_version=self.identity.drainmark_version,
            graph_fingerprint=self.identity.graph_fingerprint,
            params_hash=self.identity.params_hash,
            detail={name: value for name, value in values.items() if value is not None},
            **columns,
        )
