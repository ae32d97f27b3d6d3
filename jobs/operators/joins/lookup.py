"""`lookup`: a Delta table, read at its newest version in each group; an autonomous port of an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.graph.declarations import Stream, caller, declare, location_of
from drainmark.jobs.graph.operator import Operator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["lookup"]


@dataclass(frozen=True, kw_only=True)
class Lookup(Operator):
    """An autonomous input: no operator waits for it. A group's checkpoint row has the version that the group read."""

    kind: ClassVar[str] = "lookup"
    summary: ClassVar[str] = "Delta table, read at one version a group"
    keeps_tags: ClassVar[bool] = True
    is_source: ClassVar[bool] = True
    is_reference: ClassVar[bool] = True

    table: str

    @property
    def tables_read(self) -> tuple[str, ...]:
        return (self.table,)

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "table": self.table}

    def apply(self, frames: OperatorContext) -> DataFrame:
        return frames.read_lookup(self)


def lookup(table: str, *, name: str | None = None) -> Stream:
    """Declare a lookup: a Delta table that others write, as an input of operators.

    Each group reads the newest version of the table, also a group that is replayed after a rewind. States that are not
    rewound keep the rows that they read.

    Args:
        table: a Delta table below `DRAINMARK_HOME/lake`, an absolute path, or a URI.
        name: the operator's name; the table's last part by default.

    Example:
        customer_names = dm.lookup("customer_names")  # a Delta table below lake/, with the columns customer and name

        @dm.functor(vectorised=True)
        def named(orders, customer_names):
            joined = orders.join(customer_names, "customer", "left")
            return dm.select(joined, "id", "name")
    """
    frame = caller()
    own_name = table.rstrip("/").rpartition("/")[2].replace("-", "_")
    operator = Lookup(name=name or own_name, location=location_of(frame), table=table)
    return declare(operator, frame)
