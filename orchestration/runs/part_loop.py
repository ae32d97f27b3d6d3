"""Runs of autonomous parts that have a source of their own: plain micro-batches, independent of the regions.

The command line and Dagster both use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import Interrupted, UsageError
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.regions.plan import AutonomousPlan, as_plan, running_parts
from drainmark.orchestration.discovery.feeds import Feeds
from drainmark.orchestration.runs.region_runs import region_outside
from drainmark.orchestration.runs.run_loop import totals
from drainmark.orchestration.workplace.workplace import Opened, Workplace

if TYPE_CHECKING:
    from drainmark.jobs.runtime.autonomous_run import AutonomousRun, BatchReport

_SCAN_SECONDS = 0.5

Pause = Callable[[float], None]
"""Waits this number of seconds; raises `Interrupted` as soon as the run must end."""


@dataclass(slots=True, kw_only=True)
class PartLoop:
    """The loop over one autonomous part, used once.

    Attributes:
        pause: called after each batch with 0, and between two scans.
        on_batch: called with the report of every batch.
        on_rest: called when no more files wait.
    """

    workplace: Workplace
    opened: Opened
    part: AutonomousPlan
    run_id: str
    pause: Pause
    on_batch: Callable[[BatchReport], None] = lambda report: None
    on_rest: Callable[[], None] = lambda: None
    reports: list[BatchReport] = field(default_factory=list)
    _started: float = field(default_factory=world.monotonic)

    def run(self, seconds: float = 0.0) -> None:
        """Process the files that wait, and those that come within `seconds`.

        Raises:
            Interrupted, Owned, DrainmarkError: the run is over; the files of a failed batch are not read again.
        """
        if not seconds and not self.is_work_there():
            return
        until = world.monotonic() + seconds
        batches = autonomous_run(self.workplace, self.opened, self.part, run_id=self.run_id)
        try:
            batches.begin()
            while True:
                for report in batches.batches():
                    self.reports.append(report)
                    self.on_batch(report)
                    self.pause(0)
                self.on_rest()
                if world.monotonic() >= until:
                    return
                self.pause(min(_SCAN_SECONDS, max(0.0, until - world.monotonic())))
        finally:
            batches.end()

    def is_work_there(self) -> bool:
        """Scan, and say whether any files wait."""
        return Feeds(self.workplace).pending(self.part.name, source_of_part(self.part)) > 0

    def summary(self) -> dict[str, Any]:
        """Return the outcome of the run; all keys are always present."""
        rows_out = {
            table: sum(report.rows_out.get(f"lake/{table}", 0) for report in self.reports) for table in self.part.tables
        }
        return {
            "part": self.part.name,
            "outcome": "processed" if self.reports else "nothing to do",
            "batches": len(self.reports),
            "lost_files": sum(report.lost for report in self.reports),
            **totals(self.reports, ("files", "rows_in", "rows_quarantined", "bytes_in")),
            "rows_out": rows_out,
            "guarantee": self.part.guarantee.value,
            "seconds": round(world.monotonic() - self._started, 3),
            "run_id": self.run_id,
        }


def run_parts(
    workplace: Workplace,
    opened: Opened,
    *,
    run_id: str,
    pause: Pause,
    seconds: float = 0.0,
    on_batch: Callable[[BatchReport], None] = lambda report: None,
    on_rest: Callable[[], None] = lambda: None,
) -> list[PartLoop]:
    """Run the parts of an application that have a source of their own, one after the other.

    Args:
        seconds: time for each part; see `PartLoop.run`.

    Raises:
        DrainmarkError: the first failure, after all parts have run; `Interrupted` at once.
    """
    loops, failed = [], []
    for part in running_parts(opened.plan):
        loop = PartLoop(
            workplace=workplace,
            opened=opened,
            part=part,
            run_id=run_id,
            pause=pause,
            on_batch=on_batch,
            on_rest=on_rest,
        )
        loops.append(loop)
        try:
            loop.run(seconds)
        except Interrupted:
            raise
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return loops


def autonomous_run(workplace: Workplace, opened: Opened, part: AutonomousPlan, *, run_id: str) -> AutonomousRun:
    """Return a run of a part that is analysed and has not begun; start the Spark session.

    Raises:
        DeclarationError, OperatorFailed: the part is not valid; no files were taken.
    """
    from drainmark.jobs.runtime.analysis.blueprint import analyse
    from drainmark.jobs.runtime.analysis.supported_features import require_part_runnable
    from drainmark.jobs.runtime.autonomous_run import AutonomousRun
    from drainmark.jobs.runtime.commit.operator_states import RegionStates

    require_part_runnable(opened.plan, part)
    feeds = Feeds(workplace)
    outside = region_outside(workplace, part.name, opened.application)
    blueprint = analyse(as_plan(opened.plan.name, part), opened.plan.name, opened.params, outside)
    return AutonomousRun(
        blueprint=blueprint,
        outside=outside,
        states=RegionStates(blueprint=blueprint, outside=outside, is_tiered=False),
        take=lambda source, limit: feeds.take(part.name, source, limit=limit),
        numbers=lambda source, count: feeds.numbers(part.name, source, count),
        run_id=run_id,
    )


def source_of_part(part: AutonomousPlan) -> DirectorySource:
    """Return the source from which the part gets its rows.

    Raises:
        UsageError: the part has no source that reads files of a folder; see `require_part_runnable`.
    """
    for operator in part.operators:
        if isinstance(operator, DirectorySource):
            return operator
    msg = f"no files of a folder bring {part.name!r} its rows"
    raise UsageError(msg, remedy="start it at a dm.source of a DirectoryScan, or put @dm.consistent on its source")


def waiting_parts(workplace: Workplace, parts: Sequence[AutonomousPlan]) -> list[str]:
    """Scan, and return the names of the parts for which files wait; skip parts whose folder does not exist."""
    found = []
    for part in parts:
        with suppress(UsageError):
            if Feeds(workplace).pending(part.name, source_of_part(part)):
                found.append(part.name)
    return found
