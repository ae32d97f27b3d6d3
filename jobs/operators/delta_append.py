"""`sink(stream, DeltaAppend(table))` and the sinks' common part: every row of the stream, once, with its id (V147)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from jobs.errors import Violation
from jobs.graph.operator import POSITION, SEQUENCE_ID, Guarantee, Operator
from jobs.protocol.manifest import TableRole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jobs.runtime.frames import GroupFrames

__all__ = ["DeltaAppend"]


@dataclass(frozen=True)
class DeltaAppend:
    """A Delta table `lake/<table>` that gets every row of a stream: `_sequence_id` first, then the stream's columns."""

    table: str


@dataclass(frozen=True, kw_only=True)
class DeltaSink(Operator):
    """What the Delta sinks share."""

    keeps_tags: ClassVar[bool] = True
    is_sink: ClassVar[bool] = True
    guarantee: ClassVar[Guarantee | None] = Guarantee.EXACTLY_ONCE
    role: ClassVar[TableRole]

    table: str

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,)

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "table": self.table}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        parts = self.table.split("/")
        if not all(part.replace("_", "a").replace("-", "a").isalnum() and not part.startswith("_") for part in parts):
            yield Violation(
                rule="TABLE_NAME",
                message=f"{self.table!r} is no table name below the lake",
                operator=self.name,
                location=self.location,
                remedy="letters, digits, _ and -, with / between folders",
            )


@dataclass(frozen=True, kw_only=True)
class DeltaAppendSink(DeltaSink):
    """Appends staged files; a rewind takes whole files away."""

    kind: ClassVar[str] = "delta-append"
    summary: ClassVar[str] = "Delta table of all rows"
    role: ClassVar[TableRole] = TableRole.APPEND

    def apply(self, frames: GroupFrames) -> DataFrame:
        rows = frames.input(self.inputs[0])
        return rows.select(SEQUENCE_ID, *visible_columns(rows.columns))


def visible_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns of a stream that a table shows, without the tags and the parts of aggregates."""
    return [f"`{name}`" for name in columns if name not in (SEQUENCE_ID, POSITION)]
