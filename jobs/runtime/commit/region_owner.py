"""The owner of a region: it claims the region, commits groups and rewinds, rolls forward, and releases the region.

Every write for a region goes through here; the ledger holds the rows. If another owner has a higher epoch, the store
raises `Fenced`, and this owner must write nothing more.

A late write is refused, or skipped as done, at its target: rows by `CheckpointTable.append`, notes to the registry by
`Database.guarded`, batches by `stages/board.py` and `channels/channel.py`, files by the file sinks (`file_folders`,
`file_buckets`), a publish by `delta/commits.py::is_done`. An action that was timed out writes to staging only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, Retry
from drainmark.jobs.errors.environment import FilesLost
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.protocol.claimed_code import NO_CODE, Code
from drainmark.jobs.protocol.history import Outcome, RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.transitions import Event, State
from drainmark.jobs.runtime.commit.claim import collect_orphans, fence
from drainmark.jobs.runtime.commit.claim_checks import require_settled
from drainmark.jobs.runtime.commit.commit_point import GroupCommits
from drainmark.jobs.runtime.commit.controller import Controller
from drainmark.jobs.runtime.commit.halts import Halts
from drainmark.jobs.runtime.commit.ledger import Identity, Ledger
from drainmark.jobs.runtime.commit.publish.visible_tables import VisibleTables
from drainmark.jobs.runtime.commit.removal.retraction import RetractionCommits
from drainmark.jobs.runtime.commit.removal.table_drops import TableDrops
from drainmark.jobs.runtime.commit.rewind import RewindCommits
from drainmark.jobs.runtime.commit.table_damage import is_withdrawn, lost_before_publishing
from drainmark.jobs.runtime.outside import Outside, Report


@dataclass(slots=True, kw_only=True)
class RegionOwner:
    """The owner of a region, from `claim` to `release`.

    Attributes:
        ledger: the rows that this owner commits, and the facts after them.
        visible: the visible tables of one row a key; some may lag.
        groups: commits and publishes groups, skips triggers.
        rewinds: commits rewinds and takes the tables back.
        retractions: takes back what single states brought to the tables.
        halts: commits halts, resumes, and refusals of triggers.
        drops: drops tables that left the code.
    """

    outside: Outside
    report: Report
    ledger: Ledger
    visible: VisibleTables
    groups: GroupCommits
    rewinds: RewindCommits
    retractions: RetractionCommits
    halts: Halts
    drops: TableDrops

    @classmethod
    def of(cls, identity: Identity, outside: Outside, report: Report) -> RegionOwner:
        controller = Controller(region=identity.region, registry=outside.registry, report=report)
        ledger = Ledger(identity=identity, outside=outside, report=report, controller=controller)
        visible = VisibleTables(ledger=ledger)
        groups = GroupCommits(ledger=ledger, visible=visible)
        return cls(
            outside=outside,
            report=report,
            ledger=ledger,
            visible=visible,
            groups=groups,
            rewinds=RewindCommits(ledger=ledger),
            retractions=RetractionCommits(ledger=ledger, groups=groups),
            halts=Halts(ledger=ledger),
            drops=TableDrops(ledger=ledger),
        )

    @property
    def region(self) -> str:
        return self.ledger.region

    @property
    def versions(self) -> dict[str, int]:
        """Return the Delta version of the newest commit by this owner, by table."""
        return self.ledger.versions

    @property
    def history(self) -> RegionHistory:
        """Return the region's facts, with every row that this owner committed."""
        return self.ledger.history

    @property
    def epoch(self) -> int:
        """Return this owner's epoch; 0 before the claim."""
        return self.ledger.epoch

    @property
    def state(self) -> State:
        return self.ledger.controller.state

    @property
    def behind(self) -> tuple[CheckpointRow, ...]:
        """Return the rows, in commit order, that are committed and not known to be published."""
        return self.ledger.behind

    # --- claim ------------------------------------------------------------------------------------------------------

    def claim(
        self,
        tables: Sequence[RegionTable] = (),
        code: Code = NO_CODE,
        *,
        repair: Callable[[RegionOwner], bool] | None = None,
        deleting: Collection[str] = (),
    ) -> RegionHistory:
        """Take over the region: take the lease, fence off older owners, check for foreign writes, roll forward.

        After an unclean end the region is RESETTING until `reset_done`, since the new owner may have states to load.

        Args:
            tables: the region's tables as this code knows them; by default those of the last claim.
            code: operators, states, stages and channels of the code; by default none.
            repair: repairs tables that others changed, and returns whether all of them are repaired. If not, a rewind
                must follow, and nothing is rolled forward.
            deleting: names of tables of changes of which keys will be gone; they stay such tables.

        Raises:
            Owned: a live process owns it.
            Fenced: another owner claimed at the same moment.
            RegistryLost, StateIncompatible, StatesMoved, SchemaMismatch, InFlightLost: see `claim_checks.ready`; the
                claim is not committed, unless an older owner put batches in flight at that moment (InFlightLost), or
                the registry lacks the newest state (RegistryLost).
            Halted: others changed tables, or a table refuses committed rows.
        """
        self.outside.lease.acquire(self.region, self.ledger.identity.run_id)
        try:
            known = fence(self.ledger, tables, code, is_verb=repair is not None, deleting=deleting)
        except BaseException:
            self.outside.lease.release(clean=False)
            raise
        if repair is not None and not repair(self):
            return self.history
        self.halts.halt_where_damaged()
        for table in known:
            self.outside.store.widen(table)
        self.roll_forward()
        self.drops.finish()
        require_settled(self.outside, self.history)
        self.visible.bring_up_former()
        collect_orphans(self.ledger)
        return self.history

    def roll_forward(self) -> None:
        """Publish, in commit order, all rows that are committed and not published.

        Raises:
            Halted: a table refuses committed rows, and a retry cannot help.
        """
        try:
            _finish(self.ledger, self.groups, self.rewinds)
        except FilesLost as error:
            lost = lost_before_publishing(self.outside.store, self.history)
            raise self.halts.halt_for(lost or error) from error
        except DrainmarkError as error:
            if error.retry is not Retry.PERMANENT:
                raise
            raise self.halts.halt_for(error) from error

    def reset_done(self) -> None:
        """Note that all tables, and the states that a run loads, are as of the committed id."""
        if self.state is State.RESETTING:
            self.moved(Event.RESET_DONE)

    # --- rewind -----------------------------------------------------------------------------------------------------

    def rewind(self, to: int, horizon: int, lost: Sequence[CheckpointRow] = ()) -> int:
        """Take state and every sink of the region back to a committed id.

        Args:
            lost: the states above `to` whose input can never be read again: their triggers are refused.

        Returns:
            the number of triggers that are pending again.

        Raises:
            RewindRefused: see `rewind_contents.contents_of`; nothing was changed.
        """
        pending = self.rewinds.rewind(to, horizon, lost)
        self.reset_done()
        return pending

    # --- the end ----------------------------------------------------------------------------------------------------

    @property
    def has_claimed(self) -> bool:
        """Say whether its claim is committed: then a later `Fenced` means that another owner has claimed since."""
        return bool(self.epoch) and self.history.epoch == self.epoch

    def release(self, outcome: Outcome, error: Mapping[str, Any] | None = None) -> None:
        """Note how this owner ended and give up the lease; an interrupted or clean end costs no attempt."""
        try:
            world.pass_point(FailPoint.RELEASE_BEFORE)
            if self.epoch:
                self.ledger.note_published(outcome=outcome, error=dict(error) if error else None)
                self.ledger.controller.come_to_rest(self.history)
        finally:
            self.outside.lease.release(clean=outcome is Outcome.CLEAN)
        self.report("release", {"outcome": outcome.value})

    def leave(self) -> None:
        """Give up after `Fenced`: no commit, no registry write."""
        self.outside.lease.release(clean=False)

    def moved(self, event: Event, *, told: bool = True) -> None:
        """Note an event of the run in the controller; see `Controller.moved`."""
        self.ledger.controller.moved(event, self.history, told=told)


def _finish(ledger: Ledger, groups: GroupCommits, rewinds: RewindCommits) -> None:
    """Carry out, in commit order, the rows that are committed and not published."""
    world.pass_point(FailPoint.ROLL_FORWARD)
    behind = ledger.behind
    for row in behind:
        if is_withdrawn(row, behind):  # by a rewind that could not wait for it: tables were damaged
            ledger.done_through = row.sequence_id
        elif row.kind is RowKind.REWIND:
            rewinds.roll_forward(row)
        elif row.kind is RowKind.SKIP:
            groups.settle_skip(row)
        else:
            groups.roll_forward(row)
    if behind:
        ledger.report("roll_forward", {"groups": len(behind)})
        ledger.note_published()
