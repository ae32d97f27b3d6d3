"""`expect(stream, condition)`: a condition for every row, and the treatment of rows that do not meet it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.tags import GONE
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, reading
from drainmark.jobs.graph.operator import Operator, Positions, StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.sinks.quarantine import refused_rows

if TYPE_CHECKING:
    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["expect"]

_HOLDS = "__holds"


class OnFail(StrEnum):
    """The treatment of rows that do not meet an expectation."""

    QUARANTINE = "quarantine"
    WARN = "warn"
    HALT = "halt"


@dataclass(frozen=True, kw_only=True)
class Expect(Operator):
    """A condition that is computed once for each row, so that the counts agree with the rows that go on.

    The runtime counts `StepResult.unmet` for each id, writes the counts into the checkpoint row, and obeys `on_fail`.
    """

    kind: ClassVar[str] = "expect"
    summary: ClassVar[str] = "a condition for every row; other rows are counted, and quarantined, passed on, or halt"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.KEPT
    configurations: ClassVar[tuple[str, ...]] = ("quarantine", "warn", "halt")

    expected: str
    on_fail: str
    blocking: bool = False

    @property
    def takes_changes(self) -> bool:
        return True

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "expected": self.expected, "on_fail": self.on_fail}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not isinstance(self.expected, str) or not self.expected.strip():
            yield self.wrong("EXPECT_CONDITION", "a condition is SQL", 'write dm.expect(stream, "amount > 0")')
        if self.on_fail not in tuple(OnFail):
            yield self.wrong("EXPECT_ON_FAIL", f"on_fail={self.on_fail!r} is not known", f"write {', '.join(OnFail)}")
        if not in_region:
            remedy = "feed it from a consistent region, or use dm.filter"
            yield self.wrong("EXPECT_AUTONOMOUS", "no region commits what it counts", remedy)

    def step(self, frames: OperatorContext) -> StepResult:
        rows = frames.input(self.inputs[0]).selectExpr("*", f"coalesce(({self.expected}), false) as {_HOLDS}")
        judged = frames.once(self, rows)
        unmet = judged.where(~F.col(_HOLDS)).drop(_HOLDS)
        if GONE in unmet.columns:  # the row that leaves was judged when it came
            unmet = unmet.where(~F.col(GONE))
        kept = judged.where(_HOLDS) if self.on_fail == OnFail.QUARANTINE else judged
        why = F.lit(f"{self.name}: {self.expected} does not hold")
        return StepResult(kept.drop(_HOLDS), unmet=refused_rows(unmet, why))


def expect(
    stream: StreamLike,
    condition: str,
    *,
    on_fail: Literal["quarantine", "warn", "halt"] = "quarantine",
    blocking: bool = False,
    name: str | None = None,
) -> Stream:
    """Declare a condition for every row: `paid = dm.expect(orders, "amount > 0", on_fail="warn", name="paid")`.

    Rows for which the condition is false or null are counted for each file. The counts are committed with the file's
    state: a replay counts a row once, and a rewind takes the counts back. `history`, `trace` and `metrics` show the
    counts, and each expectation is an asset check in Dagster, on the tables behind it.

    Args:
        stream: the rows.
        condition: in SQL.
        on_fail: `quarantine`: the rows go to the region's quarantine, as by `dm.quarantine`, and not on; `warn`: they
            are counted and go on like the others; `halt`: the file is not processed, and the region halts.
        blocking: in Dagster the check is an error, and while it fails, no asset that comes after a table behind the
            expectation is made in one run with the table. The region goes on.
        name: name of the expectation in the counts, and of the parameter of a function that reads its rows;
            `<stream>_expected` by default.

    Example:
        paid_for = dm.expect(orders, "amount > 0", on_fail="warn", name="paid_for")
        dm.sink(paid_for, dm.DeltaAppend("checked_orders"))
    """
    operator = Expect(**reading(stream, "expected", name), expected=condition, on_fail=on_fail, blocking=blocking)
    return declare(operator)
