"""The limit of events in Dagster's storage: at first each group has its own, later several groups share one.

A run that drains a backlog of single files makes five groups per second, each with an event per table and a line per
step. A hundred thousand files would leave millions of rows in the event log, and every page would search them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from drainmark.jobs.runtime.region_run import GroupReport

GROUPS_OF_THEIR_OWN = 100
SECONDS = 5.0
LINES_A_GROUP = 6


@dataclass(slots=True)
class EventPace:
    """The pace of a run's group events: the first `own` groups have their own, later ones at most one every `seconds`.

    No number is lost: rows, bytes, triggers and seconds are summed; ids and versions are those of the last group.
    """

    own: int = GROUPS_OF_THEIR_OWN
    seconds: float = SECONDS
    clock: Callable[[], float] = time.monotonic
    _held: GroupReport | None = None
    _shown_at: float = float("-inf")

    def take(self, report: GroupReport) -> GroupReport | None:
        """Take a published group; return it and the groups held back, as one, to show them now; None: not now."""
        self._held = report if self._held is None else joined(self._held, report)
        now = self.clock()
        if self.own <= 0 and now - self._shown_at < self.seconds:
            return None
        self.own -= 1
        self._shown_at = now
        return self.rest()

    def rest(self) -> GroupReport | None:
        """Return the groups held back, as one, because the run ends or waits for files; None if there are none."""
        held, self._held = self._held, None
        return held


@dataclass(slots=True)
class LinePace:
    """The pace of a run's log lines: the first ones are stored, later about LINES_A_GROUP every SECONDS."""

    lines: float = GROUPS_OF_THEIR_OWN * LINES_A_GROUP
    left_out: int = 0
    clock: Callable[[], float] = time.monotonic
    _last: float | None = field(default=None)

    def may(self) -> bool:
        """Count a line; return False if it is to be left out."""
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


_SUMMED = (
    *("rows_in", "rows_quarantined", "bytes_in", "restarts", "dropped_intervals"),
    *(f"{step}_seconds" for step in ("process", "drain", "checkpoint", "publish", "pending")),
)


def joined(first: GroupReport, second: GroupReport) -> GroupReport:
    """Return two consecutive reports of a run as one."""
    rows_out = Counter(first.rows_out)
    rows_out.update(second.rows_out)
    return replace(
        second,
        first_id=first.first_id,
        first_uri=first.first_uri,
        rows_out=rows_out,
        versions={**first.versions, **second.versions},
        **{name: getattr(first, name) + getattr(second, name) for name in _SUMMED},
    )
