"""`@functor`: a row-wise function; an output row depends on one input row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, overload

from drainmark.jobs.frames.row_order import tags_in
from drainmark.jobs.graph.declarations import Stream, StreamLike
from drainmark.jobs.graph.functions import FunctionOperator, declared_by
from drainmark.jobs.graph.operator import Positions, Vectorises

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["functor", "select"]


@dataclass(frozen=True, kw_only=True)
class Functor(FunctionOperator):
    """A function of one or more frames; the analysed plan decides whether it vectorises."""

    kind: ClassVar[str] = "functor"
    summary: ClassVar[str] = "row-wise function"
    vectorises: ClassVar[Vectorises] = Vectorises.CHECKED
    positions: ClassVar[Positions] = Positions.CHECKED

    vectorised: bool = False

    @property
    def takes_changes(self) -> bool:
        return len(self.inputs) == 1  # rows of a lookup or of a control port change between an old and a new row

    def vectorisation(self) -> Vectorises:
        return Vectorises.YES if self.vectorised and not self.kept else super().vectorisation()


@overload
def functor(function: Callable[..., Any], /) -> Stream: ...
@overload
def functor(
    function: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    inputs: Sequence[StreamLike] | None = None,
    vectorised: bool = False,
) -> Stream: ...
@overload
def functor(
    *, name: str | None = None, inputs: Sequence[StreamLike] | None = None, vectorised: bool = False
) -> Callable[[Callable[..., Any]], Stream]: ...
def functor(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    inputs: Sequence[StreamLike] | None = None,
    vectorised: bool = False,
) -> Stream | Callable[[Callable[..., Any]], Stream]:
    """Declare a row-wise function. The names of its parameters are the streams that it reads.

    Args:
        name: the operator's name; the function's by default.
        inputs: the streams in the order of the parameters, instead of their names.
        vectorised: your promise that the function may process many triggers at once; its plan does not decide then.

    Example:
        @dm.functor
        def in_cents(orders):
            return dm.select(orders, "id", F.round(F.col("amount") * 100).cast("bigint").alias("cents"))
    """

    made: Stream | Callable[[Callable[..., Any]], Stream]
    made = declared_by(function, partial(Functor, vectorised=vectorised), name, inputs)
    return made


def select(frame: DataFrame, *columns: Column | str) -> DataFrame:
    """Select columns and keep `_sequence_id`, which every row of a consistent stream carries.

    Example:
        @dm.functor
        def initials(orders):
            return dm.select(orders, "id", F.substring("customer", 1, 1).alias("initial"))
    """
    return frame.select(*tags_in(frame.columns), *columns)
