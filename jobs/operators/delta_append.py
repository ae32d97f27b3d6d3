"""`sink(stream, DeltaAppend(table))` and the sinks' common part: every row of the stream, once, with its id (V147)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from jobs.errors import Violation
from jobs.graph.operator import POSITION, SEQUENCE_ID, Guarantee, Operator
from jobs.protocol.manifest import TableRole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jobs.runtime.frames import GroupFrames

__all__ = ["DeltaAppend"]

OnSchemaChange = Literal["fail", "evolve"]

_ADOPTED = (
    "as long as one JVM at a time writes to it; others may write or restore it, which Drainmark neither prevents nor"
    " undoes; rows without _sequence_id are theirs, and no rewind touches them"
)


@dataclass(frozen=True)
class DeltaAppend:
    """A Delta table `lake/<table>` that gets every row of a stream: `_sequence_id` first, then the stream's columns.

    Attributes:
        table: name below the lake.
        adopt: the table exists, others made it and may write to it; it gets a column `_sequence_id`. Published through
            delta-spark, which can write what deltalake cannot: constraints, generated columns, column mapping, deletion
            vectors. What is promised then: see `drainmark graph`.
        on_schema_change: what to do where the stream has a column that the table lacks: "fail", or "evolve", which adds
            it (I19). Columns that go or change their type fail.
    """

    table: str
    adopt: bool = False
    on_schema_change: OnSchemaChange = "fail"


@dataclass(frozen=True, kw_only=True)
class DeltaSink(Operator):
    """What the Delta sinks share."""

    keeps_tags: ClassVar[bool] = True
    is_sink: ClassVar[bool] = True
    guarantee: ClassVar[Guarantee | None] = Guarantee.EXACTLY_ONCE
    role: ClassVar[TableRole]

    table: str
    adopt: bool = False
    on_schema_change: str = "fail"

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,)

    @property
    def condition(self) -> str | None:
        return _ADOPTED if self.adopt else None

    def fingerprint(self) -> Any:
        adopted = {"adopt": True} if self.adopt else {}
        return {**super().fingerprint(), "table": self.table, **adopted}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if self.on_schema_change not in ("fail", "evolve"):
            message = f"on_schema_change is {self.on_schema_change!r}"
            yield self._wrong("ON_SCHEMA_CHANGE", message, 'write "fail" or "evolve"')
        elif self.adopt and self.on_schema_change == "evolve":
            message = f"{self.table!r} is adopted, and its columns are its maker's: it cannot evolve"
            yield self._wrong("ADOPTED_EVOLVES", message, "add the columns by ALTER TABLE, or leave adopt=True out")
        parts = self.table.split("/")
        if not all(part.replace("_", "a").replace("-", "a").isalnum() and not part.startswith("_") for part in parts):
            message = f"{self.table!r} is no table name below the lake"
            yield self._wrong("TABLE_NAME", message, "letters, digits, _ and -, with / between folders")

    def _wrong(self, rule: str, message: str, remedy: str) -> Violation:
        return Violation(rule=rule, message=message, operator=self.name, location=self.location, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class DeltaAppendSink(DeltaSink):
    """Appends staged files; a rewind takes whole files away."""

    kind: ClassVar[str] = "delta-append"
    summary: ClassVar[str] = "Delta table of all rows"
    role: ClassVar[TableRole] = TableRole.APPEND

    def apply(self, frames: GroupFrames) -> DataFrame:
        rows = frames.input(self.inputs[0])
        return rows.selectExpr(SEQUENCE_ID, *visible_columns(rows.columns))


def visible_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns of a stream that a table shows, without the tags and the parts of aggregates."""
    return [f"`{name}`" for name in columns if name not in (SEQUENCE_ID, POSITION)]
