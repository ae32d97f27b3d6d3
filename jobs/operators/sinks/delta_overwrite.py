"""`sink(stream, DeltaOverwrite(table))`: the rows of the newest trigger with rows; two tables, as for an upsert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.operators.sinks.delta_append import DeltaSink
from drainmark.jobs.operators.sinks.sink import made_for
from drainmark.jobs.protocol.records.manifest import TableRole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["DeltaOverwrite"]


@dataclass(frozen=True)
class DeltaOverwrite:
    """A Delta table `lake/<table>` with the rows of the newest trigger that has rows.

    After id N the table has the rows of the last id, up to and including N, that has rows. Use it for inputs that are
    complete each time: a full extract, a list of prices, a model's parameters. A trigger without rows for the sink
    leaves the table unchanged, or empties it, as `empty` says. Each publish is one commit, so readers always see the
    rows of exactly one trigger; a group of many triggers is one commit, with the rows of its last trigger.

    The rows of earlier triggers are kept in the sink's history, as far as the rewind horizon reaches: `dm.read(at=N)`
    and a rewind have them. `backfill --again` is refused, since the newest rows are not those of the replaced file.

    Attributes:
        table: name below the lake.
        register: as for `DeltaAppend`.
        empty: whether a trigger without rows empties the table. Each trigger of the region then counts, also one of
            another source.

    Example:
        dm.sink(orders, dm.DeltaOverwrite("newest_file"))
    """

    table: str
    register: str = ""
    empty: bool = False

    @property
    def label(self) -> str:
        return self.table

    def operator(self, *, name: str, inputs: tuple[Input, ...]) -> DeltaOverwriteSink:
        return made_for(DeltaOverwriteSink, self, name, inputs)


@dataclass(frozen=True, kw_only=True)
class DeltaOverwriteSink(DeltaSink):
    """A sink that replaces the rows of the visible table with the rows of a group's last id that has rows.

    If empty triggers count, the history has a row for each of them, which is gone: so it has rows of each id.
    """

    kind: ClassVar[str] = "delta-overwrite"
    summary: ClassVar[str] = "Delta table of the newest trigger's rows"
    role: ClassVar[TableRole] = TableRole.OVERWRITE

    empty: bool = False

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), **({"empty": True} if self.empty else {})}

    def apply(self, frames: OperatorContext) -> DataFrame:
        return self._of_each_id(frames, super().apply(frames))

    def in_places(self, frames: OperatorContext) -> DataFrame:
        return self._of_each_id(frames, super().in_places(frames))

    def _of_each_id(self, frames: OperatorContext, rows: DataFrame) -> DataFrame:
        """Return rows, and if empty triggers count, a row that is gone for each id without rows."""
        if not self.empty:
            return rows
        rows = frames.once(self, rows.selectExpr("*", f"false as {GONE}"))
        empty = frames.ids().withColumnRenamed("__id", SEQUENCE_ID)
        empty = empty.join(rows.select(SEQUENCE_ID).distinct(), SEQUENCE_ID, "left_anti")
        return rows.unionByName(empty.selectExpr(SEQUENCE_ID, f"true as {GONE}"), allowMissingColumns=True)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if self.adopt or self.evolves:
            yield "OVERWRITE_OPTIONS", f"{self.table!r} is overwritten", "leave adopt and on_schema_change out"
        yield from super().problems()

    def described(self) -> str:
        return "The rows of the newest trigger." if self.empty else "The rows of the newest trigger that has any."
