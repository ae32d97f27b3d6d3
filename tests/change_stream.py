"""A change stream for tests, without `dm.apply_changes`: a condition says which rows of a stream are gone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.frames.tags import GONE
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, declaring, named_stream, port_to
from drainmark.jobs.graph.operator import Operator, Positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext


@dataclass(frozen=True, kw_only=True)
class Marked(Operator):
    """Rows with the tag `GONE` in place of a condition's columns."""

    kind: ClassVar[str] = "marked"
    keeps_tags: ClassVar[bool] = True
    gives_changes: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.KEPT

    gone: str
    hidden: tuple[str, ...] = ()

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "gone": self.gone}

    def apply(self, frames: OperatorContext) -> DataFrame:
        rows = frames.input(self.inputs[0]).selectExpr("*", f"coalesce(({self.gone}), false) as {GONE}")
        return rows.drop(*self.hidden)


def marked(stream: StreamLike, gone: str, *, name: str, hidden: tuple[str, ...] = ()) -> Stream:
    """Declare the change stream of the rows of a stream.

    Args:
        gone: a condition in SQL: the row is gone.
        hidden: columns that the change stream lacks.
    """
    frame = sys._getframe(1)  # the application, whose module this one is not
    known = named_stream(stream, frame) if isinstance(stream, str) else stream
    with declaring(known.declarations):
        return declare(Marked(name=name, inputs=(port_to(stream),), gone=gone, hidden=hidden))
