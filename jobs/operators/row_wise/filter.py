"""`@filter`: keeps the rows for which a condition holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.graph.declarations import StreamLike
from drainmark.jobs.graph.functions import FunctionOperator, declared_by
from drainmark.jobs.graph.operator import Positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["filter"]


@dataclass(frozen=True, kw_only=True)
class Filter(FunctionOperator):
    """A condition over one stream. A condition is a Column, so it always vectorises."""

    kind: ClassVar[str] = "filter"
    summary: ClassVar[str] = "rows for which a condition holds"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.KEPT

    @property
    def takes_changes(self) -> bool:
        return len(self.inputs) == 1

    def apply(self, frames: OperatorContext) -> DataFrame:
        return frames.input(self.inputs[0]).where(frames.call(self, self.function, frames.inputs(self)))


def filter(  # noqa: A001 - the field's word; users write dm.filter
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    inputs: Sequence[StreamLike] | None = None,
) -> Any:
    """Declare a filter: the function gets the frame and returns a condition; rows that meet it go on.

    Example:
        @dm.filter
        def large(orders):
            return F.col("amount") > 100
    """

    return declared_by(function, Filter, name, inputs)
