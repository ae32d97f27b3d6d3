"""Finished work of stages that no row of the checkpoint table has yet: stage, ids, age."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from drainmark.jobs import world


class FinishedParts:
    """The number of finished parts by stage; callers hold the board's condition.

    Args:
        intervals: by stage, the shortest time between two commits of its parts; None for no such time.
    """

    def __init__(self, intervals: Mapping[str, timedelta | None]) -> None:
        self._intervals = intervals
        self._counts: Counter[str] = Counter()
        self._noted = dict.fromkeys(intervals, world.monotonic())
        self._since: dict[int, float] = {}  # last id of a group -> when the starts had done the group

    @property
    def stages(self) -> set[str]:
        """Return the stages that have finished parts."""
        return {stage for stage, count in self._counts.items() if count > 0}

    @property
    def is_empty(self) -> bool:
        """Are all finished parts in a row of the checkpoint table?"""
        return not any(self._counts.values())

    def add(self, stage: str) -> None:
        self._counts[stage] += 1

    def begun(self, last_id: int) -> None:
        """Note that the starts have done a group."""
        self._since.setdefault(last_id, world.monotonic())

    def is_older(self, seconds: float) -> bool:
        """Have the starts done one of the groups more than so many seconds ago?"""
        return any(world.monotonic() - since > seconds for since in self._since.values())

    def due(self) -> set[str]:
        """Return the stages with an interval that is over, and those without an interval."""
        now = world.monotonic()
        return {
            name
            for name, interval in self._intervals.items()
            if interval is None or now - self._noted[name] >= interval.total_seconds()
        }

    def committed(self, stage: str, last_id: int, now: float) -> None:
        """Note that a row of the checkpoint table has a part."""
        self._counts[stage] -= 1
        self._since.pop(last_id, None)
        self._noted[stage] = now
