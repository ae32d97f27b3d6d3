"""`sort`: another order of the rows of each id."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.row_order import payload_of, position_at
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, reading
from drainmark.jobs.graph.operator import Operator, Positions, names_of
from drainmark.jobs.state.placed_rows import order_of, require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["sort"]

_BY = re.compile(r"(?P<column>.+?)(?: +(?P<way>asc|desc))?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Sort(Operator):
    """A new `_position` for each row: tables have no order, and operators that need an order use `_position`."""

    kind: ClassVar[str] = "sort"
    summary: ClassVar[str] = "another order of the rows of each id"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.OWN

    by: tuple[str, ...]
    window: str = "id"

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "by": list(self.by)}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not self.by:
            yield self.wrong("SORT_BY", "it has nothing to sort by", 'give by=["price", "volume desc"]')
        if self.window != "id":
            message = f'window={self.window!r}: only the rows of one id are ever complete, so that is window="id"'
            yield self.wrong("SORT_WINDOW", message, "leave window out; across ids, order by columns where you read")

    def apply(self, frames: OperatorContext) -> DataFrame:
        port = self.inputs[0]
        rows = frames.input(port)
        asked = [found.groups() for item in self.by if (found := _BY.fullmatch(item.strip()))]
        require_columns(self, port, rows, [column for column, _ in asked])
        order = [f"{quoted_name(column)} {way or 'asc'}" for column, way in asked] + order_of(frames, self, port, rows)
        place = f"row_number() over (partition by {SEQUENCE_ID} order by {', '.join(order)})"
        return frames.gathered(self, rows).selectExpr(SEQUENCE_ID, position_at(place), *quoted(payload_of(rows)))


def sort(stream: StreamLike, *, by: Sequence[str], window: str = "id", name: str | None = None) -> Stream:
    """Declare an order: `dm.sort(trades, by=["traded_at", "price desc"])`.

    Operators downstream that depend on the order of rows (`dm.sliding`, `dm.first`, `dm.barrier`, `dm.join`,
    `@dm.custom` and others) then see the rows of each id in this order. Rows that are equal in it keep their earlier
    order. Nulls come first; with `desc` they come last.

    Args:
        by: columns, each perhaps with ` asc` or ` desc`.
        window: the rows that are sorted together; only `"id"`, the rows of one trigger.
        name: the operator's name; `<stream>_sorted` by default.

    Example:
        by_time = dm.sort(orders, by=["at", "amount desc"])
    """
    operator = Sort(**reading(stream, "sorted", name), by=names_of(by), window=window)
    return declare(operator)
