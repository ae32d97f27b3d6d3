"""Steps after a group is published: report its numbers, notify its sources, adapt size and pace of the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from drainmark.jobs import world
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sources.contract import SourceAccess
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.operators.throttle import Throttle
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.background_checkpoint import BackgroundCheckpoint
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.group.backlog import Backlog
from drainmark.jobs.runtime.group.group_report import GroupReport, steps_outside
from drainmark.jobs.runtime.hosting.hosted_parts import Hosted
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.jobs.runtime.maintenance.housekeeping import Housekeeping
from drainmark.jobs.runtime.table_names import TableNames


@dataclass(slots=True, kw_only=True)
class PublishedGroups:
    """The steps after publishing: reports, and notices to sources, maintenance, table names, backlog and pace."""

    region: RegionPlan
    owner: RegionOwner
    hosted: Hosted
    backlog: Backlog
    housekeeping: Housekeeping
    names: TableNames
    pace: Pace

    def reported(self, done: BackgroundCheckpoint, *, is_blocking: bool) -> GroupReport:
        """Report the steps of a group, and return its numbers.

        Args:
            is_blocking: whether the flow waited for its checkpoint.
        """
        report = GroupReport.of(
            done.staged,
            region=self.owner.region,
            versions=self.owner.versions,
            lags=self.owner.ledger.lags,
            checkpoint_seconds=done.commit_seconds,
            publish_seconds=done.publish_seconds,
            pending_seconds=0.0 if is_blocking else done.pending_seconds,
        )
        for step, numbers in (*steps_outside(done.staged), ("group", report.step)):
            self.owner.report(step, numbers)
        return report

    def follow(self, report: GroupReport) -> None:
        """Carry out the steps after the publishing of a group."""
        self.backlog.published(report.triggers)
        self.housekeeping.count()
        self.names.give()
        self._tell_sources(report.first_id, report.last_id)
        self.pace.passed(report.rows_in)

    def _tell_sources(self, first: int, last: int) -> None:
        """Tell the starts which input is committed; a start that fails to clean up does so after the next group.

        Every operator of the region has finished its checkpoint, and all groups are published: sources purge input
        that they kept for a replay, and starts of this process get the last id and their last cut.
        """
        history = self.owner.history
        try:
            for name, host in self.hosted.starts.items():
                if (taken := newest_slice(history, name, first, last)) is not None:
                    host.completed(last, int(taken.end["segment"]))
            tell_sources(self.region, self.owner.outside.access, history, first, last)
        except Exception as error:
            self.owner.report("retire", {"failed": str(error)})


_LOOKS_EVERY_SECONDS = 0.2


@dataclass(slots=True, kw_only=True)
class Pace:
    """The upper bound of the mean rate of a run.

    Attributes:
        rows_per_second: the upper bound; None if there is none.
        clock: seconds, never going back.
    """

    rows_per_second: float | None
    clock: Callable[[], float] = world.monotonic
    _free_at: float = 0.0

    @classmethod
    def of(cls, operators: Iterable[Operator]) -> Pace:
        """Return the pace of the slowest throttle."""
        rates = [operator.rows_per_second for operator in operators if isinstance(operator, Throttle)]
        return cls(rows_per_second=min(rates, default=None))

    def passed(self, rows: int) -> None:
        """Note that rows were processed."""
        if self.rows_per_second is not None:
            self._free_at = max(self.clock(), self._free_at) + rows / self.rows_per_second

    @property
    def left_seconds(self) -> float:
        """Return how long the next group has to wait."""
        return max(0.0, self._free_at - self.clock()) if self.rows_per_second is not None else 0.0

    def wait(self, interrupted: Callable[[float], bool]) -> None:
        """Wait until the next group may begin, or until the run is interrupted.

        Args:
            interrupted: waits for so many seconds at most; returns true if the run must end.
        """
        while (left := self.left_seconds) > 0:
            if interrupted(min(left, _LOOKS_EVERY_SECONDS)):
                return


def tell_sources(region: RegionPlan, access: SourceAccess, history: RegionHistory, first: int, last: int) -> None:
    """Tell the starts of a region which ids are published, and which id is the oldest that a rewind can go to.

    Slices come in order, so it is enough to name the newest slice at or below that id.
    """
    starts = [start for start in region.starts if isinstance(start, Source) and start.hears_checkpoints]
    if not starts:
        return
    published = [history.states[number] for number in range(first, last + 1) if number in history.states]
    _tell(starts, access, published, beyond_horizon=False)
    oldest = history.state_at_most(history.oldest_target(region.parameters.rewind_horizon))
    if oldest is not None and oldest > INITIAL_ID:
        _tell(starts, access, [history.states[oldest]], beyond_horizon=True)


def newest_slice(history: RegionHistory, start: str, first: int, last: int) -> Slice | None:
    """Return the last slice of a start among the states `first` to `last` (inclusive); None if they have none of it."""
    for number in range(last, first - 1, -1):
        if number in history.states:
            piece = slice_of(history.states[number].trigger_identity or {}, start)
            if piece is not None:
                return piece
    return None


def _tell(
    starts: Iterable[Source], access: SourceAccess, rows: Iterable[CheckpointRow], *, beyond_horizon: bool
) -> None:
    known = list(rows)
    for start in starts:
        pieces = (slice_of(row.trigger_identity or {}, start.name) for row in known)
        taken = [piece for piece in pieces if piece is not None]
        if taken:
            start.on_checkpointed(iter(taken), access, beyond_horizon=beyond_horizon)
