"""The number of events in Dagster's storage: each group's at first, later those of several groups as one.

A run that drains a backlog of single files makes five groups a second, and each has an event a table and a line a step.
A hundred thousand files would leave millions of rows in the event log, which nobody reads and every page searches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from drainmark.jobs.runtime.region_run import GroupReport

GROUPS_OF_THEIR_OWN = 100
SECONDS = 5.0
LINES_A_GROUP = 6


@dataclass(slots=True)
class EventPace:
    """Joins the groups of a run that follow one another faster than every `seconds`, once `own` had their own events.

    No number is lost: rows, bytes, triggers and seconds are added up, ids and versions are those of the last group.
    """

    own: int = GROUPS_OF_THEIR_OWN
    seconds: float = SECONDS
    clock: Callable[[], float] = time.monotonic
    _held: GroupReport | None = None
    _shown_at: float = float("-inf")

    def take(self, report: GroupReport) -> GroupReport | None:
        """Return what is to be shown now that a group is published: it, or it and those held back; None to wait."""
        self._held = report if self._held is None else joined(self._held, report)
        now = self.clock()
        if self.own <= 0 and now - self._shown_at < self.seconds:
            return None
        self.own -= 1
        self._shown_at = now
        return self.rest()

    def rest(self) -> GroupReport | None:
        """Return what is still held back, and hold it no longer: the run ends, or waits for files."""
        held, self._held = self._held, None
        return held


@dataclass(slots=True)
class LinePace:
    """Says which of a run's lines are worth storing: the first ones, then some every `SECONDS`."""

    lines: float = GROUPS_OF_THEIR_OWN * LINES_A_GROUP
    left_out: int = 0
    clock: Callable[[], float] = time.monotonic
    _last: float | None = field(default=None)

    def may(self) -> bool:
        """Take a line; False where it is to be left out."""
        now = self.clock()
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        if self.lines < 2 * LINES_A_GROUP:
            self.lines = min(2 * LINES_A_GROUP, self.lines + passed * LINES_A_GROUP / SECONDS)
        if self.lines < 1:
            self.left_out += 1
            return False
        self.lines -= 1
        return True


def joined(first: GroupReport, second: GroupReport) -> GroupReport:
    """Return two groups of a run, one after the other, as one."""
    return replace(
        second,
        first_id=first.first_id,
        first_uri=first.first_uri,
        rows_in=first.rows_in + second.rows_in,
        rows_quarantined=first.rows_quarantined + second.rows_quarantined,
        bytes_in=first.bytes_in + second.bytes_in,
        rows_out={
            name: first.rows_out.get(name, 0) + second.rows_out.get(name, 0)
            for name in {**first.rows_out, **second.rows_out}
        },
        versions={**first.versions, **second.versions},
        process_seconds=first.process_seconds + second.process_seconds,
        drain_seconds=first.drain_seconds + second.drain_seconds,
        checkpoint_seconds=first.checkpoint_seconds + second.checkpoint_seconds,
        publish_seconds=first.publish_seconds + second.publish_seconds,
        pending_seconds=first.pending_seconds + second.pending_seconds,
        restarts=first.restarts + second.restarts,
        dropped_intervals=first.dropped_intervals + second.dropped_intervals,
    )
