"""The times at which a region of several stages may commit: after each group, or once in an interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from drainmark.jobs import world


@dataclass(slots=True)
class CommitIntervals:
    """The intervals of one run.

    Attributes:
        given: None if every group may be committed at once, 0 if there is only one commit, at the end.
        dropped: number of intervals that ended during a commit, and that no row counts yet.
        committed_at, begun_at: by the monotonic clock, when the last commit ended and when it began.
    """

    given: timedelta | None
    dropped: int = 0
    committed_at: float = field(default_factory=world.monotonic)
    begun_at: float = 0.0

    @property
    def _seconds(self) -> float | None:
        return self.given.total_seconds() if self.given is not None else None

    @property
    def is_due(self) -> bool:
        """Is the interval over? An interval of 0 never is."""
        seconds = self._seconds
        return seconds is None or 0 < seconds <= world.monotonic() - self.committed_at

    def may_commit(self, *, is_final: bool, has_caught_up: Callable[[], bool]) -> bool:
        """May the region commit again? With an interval of 0 it does so once, at the end."""
        seconds = self._seconds
        if seconds is None:
            return True
        if seconds == 0:
            return is_final and has_caught_up()
        return is_final or self.is_due

    def begin(self) -> None:
        """Note that a commit begins."""
        self.begun_at = world.monotonic()

    def end(self, now: float, told: int) -> None:
        """Begin the next interval; those that ended while the commit was under way are dropped, and counted.

        Args:
            told: number of dropped intervals that the row of the commit counts.
        """
        self.dropped -= told
        if self._seconds:
            self.dropped += int((now - self.begun_at) / self._seconds)
        self.committed_at = now
