"""`throttle`: limits the speed at which a run reads its input."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, reading
from drainmark.jobs.graph.operator import Operator, Positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["throttle"]


@dataclass(frozen=True, kw_only=True)
class Throttle(Operator):
    """An operator that passes every row on; the run waits before it begins a group, which changes no result."""

    kind: ClassVar[str] = "throttle"
    summary: ClassVar[str] = "bounds how fast a run goes through its input"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.KEPT

    rows_per_second: float

    @property
    def takes_changes(self) -> bool:
        return True

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not (math.isfinite(self.rows_per_second) and self.rows_per_second > 0):
            message = f"rows_per_second={self.rows_per_second!r} lets nothing through"
            yield self.wrong("THROTTLE_RATE", message, "give a number above zero")

    def apply(self, frames: OperatorContext) -> DataFrame:
        return frames.input(self.inputs[0])


def throttle(stream: StreamLike, rows_per_second: float, *, name: str | None = None) -> Stream:
    """Limit the speed of a run: `dm.throttle(orders, 10_000)`.

    It protects the machine, or systems downstream. After a group a run waits until the rows that it has read would have
    passed at this rate. So over a backlog the mean rate stays below the limit, while each group is processed at full
    speed. Rows, sequence ids and state are the same without it, so it may be changed at any time. If a region has
    several throttles, the slowest counts.

    Args:
        rows_per_second: rows that the region reads, including bad rows.
        name: the operator's name; `<stream>_throttled` by default.

    Example:
        steady = dm.throttle(orders, 10_000)
    """
    operator = Throttle(**reading(stream, "throttled", name), rows_per_second=rows_per_second)
    return declare(operator)
