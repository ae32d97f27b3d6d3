"""`union`: the rows of several streams as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.row_order import in_port_order, positioned
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID
from drainmark.jobs.graph.blame import failed
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, default_name, port_to
from drainmark.jobs.graph.operator import Operator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["union"]


@dataclass(frozen=True, kw_only=True)
class Union(Operator):
    """A union by column names; rows keep id and position. At equal positions, rows of the first stream come first."""

    kind: ClassVar[str] = "union"
    summary: ClassVar[str] = "the rows of several streams as one"
    keeps_tags: ClassVar[bool] = True

    @property
    def takes_changes(self) -> bool:
        return True

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if len(self.inputs) < 2:
            yield self.wrong("UNION_INPUTS", "a union of fewer than two streams is none", "name two streams or more")

    def apply(self, frames: OperatorContext) -> DataFrame:
        streams = [frames.input(port) for port in self.inputs]
        if any(POSITION in stream.columns for stream in streams):
            streams = [in_port_order(positioned(stream), port) for port, stream in enumerate(streams)]
        if any(GONE in stream.columns for stream in streams):
            streams = [
                stream if GONE in stream.columns else stream.selectExpr("*", f"false as {GONE}") for stream in streams
            ]
        frames.once_a_run(self.name, lambda: self._require_equal(streams))
        return reduce(lambda some, more: some.unionByName(more), streams)

    def _require_equal(self, streams: list[DataFrame]) -> None:
        shapes = [
            {field.name: field.dataType.simpleString() for field in stream.schema.fields if field.name != SEQUENCE_ID}
            for stream in streams
        ]
        for port, shape in zip(self.inputs[1:], shapes[1:], strict=True):
            if shape == shapes[0]:
                continue
            names = sorted(name for name in {*shape, *shapes[0]} if shape.get(name) != shapes[0].get(name))
            listed = "; ".join(f"{n}: {shapes[0].get(n, 'none')} and {shape.get(n, 'none')}" for n in names)
            message = f"{self.inputs[0].stream!r} and {port.stream!r} have other columns: {listed}"
            raise failed(self, message, "select the same names and types in a dm.functor before")


def union(*streams: StreamLike, name: str | None = None) -> Stream:
    """Declare the union of streams: `dm.union(web, shop)`.

    Columns are matched by name and must have the same types. Each row keeps its sequence id and position, so rows that
    `dm.split` separated come together again in the order of the file.

    Args:
        name: the operator's name; `union_of_<first>_<second>…` by default.

    Example:
        sizes = dm.split(orders, outputs={"large": "amount > 100", "small": "amount <= 100"}, name="by_size")
        both = dm.union(sizes["large"], sizes["small"], name="both")
    """
    operator = Union(
        name=name or "_".join(["union_of", *map(default_name, streams)]),
        inputs=tuple(port_to(stream) for stream in streams),
    )
    return declare(operator)
