"""Steps after a group is published: report its numbers, notify its sources, adapt the size of the next one."""

from __future__ import annotations

from dataclasses import dataclass

from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.background_checkpoint import BackgroundCheckpoint
from drainmark.jobs.runtime.commit.publish.source_notifications import newest_slice, tell_sources
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.group.backlog import Backlog
from drainmark.jobs.runtime.group.group_report import GroupReport, steps_outside
from drainmark.jobs.runtime.hosting.hosted import Hosted
from drainmark.jobs.runtime.maintenance.housekeeping import Housekeeping
from drainmark.jobs.runtime.outside import Report
from drainmark.jobs.runtime.table_names import TableNames
from drainmark.jobs.runtime.throttle import Pace


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
    report: Report

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
            self.report(step, numbers)
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
            tell_sources(self.region, self.owner.outside.reach, history, first, last)
        except Exception as error:
            self.report("retire", {"failed": str(error)})
