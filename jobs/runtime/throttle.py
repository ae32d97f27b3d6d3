"""The speed limit of a run: after a group, the next one waits until its rows may have passed (`dm.throttle`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from drainmark.jobs import world
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.throttle import Throttle

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
