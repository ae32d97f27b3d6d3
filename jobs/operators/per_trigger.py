"""`@per_trigger`: a function that gets the rows of one trigger, called once for each sequence id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from drainmark.jobs.graph.declarations import StreamLike
from drainmark.jobs.graph.functions import FunctionOperator, declared_by
from drainmark.jobs.graph.operator import Positions, Vectorises

__all__ = ["per_trigger"]


@dataclass(frozen=True, kw_only=True)
class PerTrigger(FunctionOperator):
    """A function that forces groups of one trigger. Its result may lack `_sequence_id`: the runtime adds it again."""

    kind: ClassVar[str] = "per-trigger"
    summary: ClassVar[str] = "function of all rows of one trigger"
    vectorises: ClassVar[Vectorises] = Vectorises.NO
    positions: ClassVar[Positions] = Positions.CHECKED


def per_trigger(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    inputs: Sequence[StreamLike] | None = None,
) -> Any:
    """Declare a function of all rows of one trigger, which may use windows, limits, sorts and joins.

    Example:
        @dm.per_trigger
        def dearest(orders):  # the dearest order of each file
            return orders.orderBy(F.desc("amount")).limit(1)
    """

    return declared_by(function, PerTrigger, name, inputs)
