"""`@per_trigger`: a function that gets the rows of one trigger, called once for each sequence id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.graph.code_digests import UserFunction
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, user_function
from drainmark.jobs.graph.operator import Operator, Positions, Vectorises

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["per_trigger"]


@dataclass(frozen=True, kw_only=True)
class PerTrigger(Operator):
    """A function that forces groups of one trigger. Its result may lack `_sequence_id`: the runtime adds it again."""

    kind: ClassVar[str] = "per-trigger"
    summary: ClassVar[str] = "function of all rows of one trigger"
    vectorises: ClassVar[Vectorises] = Vectorises.NO
    positions: ClassVar[Positions] = Positions.CHECKED

    function: UserFunction

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "function": self.function.source_digest()}

    def apply(self, frames: OperatorContext) -> DataFrame:
        return frames.call(self, self.function, frames.inputs(self))


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

    def wrap(wrapped: Callable[..., Any]) -> Stream:
        called, ports = user_function(wrapped, inputs)
        operator = PerTrigger(name=name or wrapped.__name__, inputs=ports, function=called)
        return declare(operator, wrapped)

    return wrap if function is None else wrap(function)
