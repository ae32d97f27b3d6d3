"""`sink(stream, DeltaUpsert(table, keys))`: one row a key, the newest; two tables, history and visible (H5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from jobs.graph.declarations import Stream, StreamLike, caller, declare, location_of, port_to
from jobs.graph.operator import POSITION, SEQUENCE_ID
from jobs.lazy import F
from jobs.operators.delta_append import DeltaAppend, DeltaAppendSink, DeltaSink, OnSchemaChange, visible_columns
from jobs.protocol.manifest import TableRole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jobs.runtime.frames import GroupFrames

__all__ = ["DeltaUpsert", "sink"]


@dataclass(frozen=True)
class DeltaUpsert:
    """A Delta table `lake/<table>` with one row a key: the last by (sequence id, position in the file).

    Columns are the keys, the stream's other columns, and `_sequence_id` of the last change. Null keys are keys.

    Attributes:
        table: name below the lake.
        keys: key columns.
        adopt: as for `DeltaAppend`. A row of others whose key the stream has becomes the region's: a rewind to before
            that deletes it.
        on_schema_change: as for `DeltaAppend`. Keys stay; so do the columns of an aggregate, which are its state.
    """

    table: str
    keys: Sequence[str]
    adopt: bool = False
    on_schema_change: OnSchemaChange = "fail"


@dataclass(frozen=True, kw_only=True)
class DeltaUpsertSink(DeltaSink):
    """Merges the group's history into the visible table; an aggregate's state is its own history."""

    kind: ClassVar[str] = "delta-upsert"
    summary: ClassVar[str] = "Delta table of one row a key"
    role: ClassVar[TableRole] = TableRole.UPSERT

    keys: tuple[str, ...]

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "keys": list(self.keys)}

    @property
    def condition(self) -> str | None:
        adopted = super().condition
        return adopted and f"{adopted}; a row of theirs that an upsert changed is the region's from then on"

    def apply(self, frames: GroupFrames) -> DataFrame:
        """Return the history: one row a key and id, the last by position within the id."""
        rows = frames.input(self.inputs[0])
        names = [name for name in visible_columns(rows.columns) if name.strip("`") not in self.keys]
        order = [POSITION] if POSITION in rows.columns else []
        payload = F.struct(*names) if names else F.struct(F.lit(True).alias("present"))
        by = F.struct(*order, F.to_json(payload))
        last = rows.groupBy(SEQUENCE_ID, *(f"`{key}`" for key in self.keys)).agg(F.max_by(payload, by).alias("_last"))
        keys = [f"`{key}`" for key in self.keys]
        return last.select(*keys, *(f"_last.{name}" for name in names), SEQUENCE_ID)


def sink(stream: StreamLike, target: DeltaAppend | DeltaUpsert, *, name: str | None = None) -> Stream:
    """Declare a sink: every row of the stream goes to the target, exactly once.

    Args:
        target: `DeltaAppend(table)` or `DeltaUpsert(table, keys=[…])`.
        name: the operator's name; `<table>_sink` by default.
    """
    frame = caller()
    common: dict[str, Any] = {
        "name": name or f"{target.table.replace('/', '_').replace('-', '_')}_sink",
        "inputs": (port_to(stream),),
        "location": location_of(frame),
        "table": target.table,
        "adopt": target.adopt,
        "on_schema_change": target.on_schema_change,
    }
    operator: DeltaSink
    if isinstance(target, DeltaUpsert):
        operator = DeltaUpsertSink(keys=tuple(target.keys), **common)
    else:
        operator = DeltaAppendSink(**common)
    return declare(operator, frame)
