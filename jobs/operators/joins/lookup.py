"""`lookup`: a Delta table, read at its newest version in each group; an autonomous port of an operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.declarations import Stream, declare
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
    schema: str | None = None

    @property
    def tables_read(self) -> tuple[str, ...]:
        return (self.table,)

    def fingerprint(self) -> Any:
        schema = {} if self.schema is None else {"schema": self.schema}
        return {**super().fingerprint(), "table": self.table, **schema}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if self.schema is not None and not (isinstance(self.schema, str) and self.schema.strip()):
            remedy = 'schema="item string, cents bigint", or leave it out'
            yield self.wrong("LOOKUP_SCHEMA", f"schema={self.schema!r} names no columns", remedy)

    def apply(self, frames: OperatorContext) -> DataFrame:
        return frames.read_lookup(self)


def lookup(table: str, *, schema: str | None = None, name: str | None = None) -> Stream:
    """Declare a lookup: a Delta table that others write, as an input of operators.

    Each group reads the newest version of the table, also a group that is replayed after a rewind. States that are not
    rewound keep the rows that they read.

    Args:
        table: a Delta table below `DRAINMARK_HOME/lake`, an absolute path, or a URI.
        schema: DDL of the columns that rows get, e.g. `"item string, cents bigint"`. With it the table may be made
            later; until then there are no rows. A table that lacks one of the columns, or has another type for it,
            fails the group with `OperatorFailed`. Without a schema, rows have all columns of the table, and a run is
            refused if there is no such table.
        name: the operator's name; the table's last part by default.

    Example:
        customer_names = dm.lookup("customer_names")  # a Delta table below lake/, with the columns customer and name

        @dm.functor(vectorised=True)
        def named(orders, customer_names):
            joined = orders.join(customer_names, "customer", "left")
            return dm.select(joined, "id", "name")
    """
    own_name = table.rstrip("/").rpartition("/")[2].replace("-", "_")
    return declare(Lookup(name=name or own_name, table=table, schema=schema))
