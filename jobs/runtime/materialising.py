"""Compute once what feeds several outputs (H15, H16): two jobs from one lazy plan may disagree.

A small group comes to the driver as Arrow and goes on as a local relation, which costs no further scan; a large one is
persisted. Either way the rows that operators downstream see are the rows that were counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jobs.arrow_frames import frame_of
from jobs.graph.operator import SEQUENCE_ID
from jobs.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from jobs.runtime.parsing import Parsed

_NO_ZONE = "timestamp[us]"


@dataclass(slots=True, kw_only=True)
class Materialiser:
    """Materialises the frames of one attempt, and lets them go at its end.

    Args:
        small: the group is small enough for Arrow.
    """

    session: SparkSession
    small: bool
    held: list[DataFrame] = field(default_factory=list)

    def once(self, frame: DataFrame) -> DataFrame:
        """Return a frame of the same rows that is computed once."""
        if self.small:
            return self.local(frame.toArrow(), frame)
        kept = frame.persist()
        self.held.append(kept)
        return kept

    def parsed(self, parsed: Parsed, schema: StructType) -> DataFrame:
        """Return what was parsed in this process as a frame; reading it twice gives the same rows twice."""
        import pyarrow as pa

        if parsed.tables:
            return self.local(pa.concat_tables(parsed.tables), schema)
        if parsed.paths:
            return self.session.read.schema(schema).parquet(*parsed.paths)
        return self.session.createDataFrame([], schema)

    def joined(self, some: DataFrame, others: DataFrame) -> DataFrame:
        """Return the rows of both, in one partition where the group is small."""
        rows = some.unionByName(others)
        return rows.coalesce(1) if self.small else rows

    def local(self, table: Any, like: DataFrame | StructType) -> DataFrame:
        """Return Arrow rows as a frame of one partition: keyed operators then need no exchange.

        Args:
            like: has the rows' types, which Arrow's tell all but for times without a zone.
        """
        if _NO_ZONE not in str(table.schema):
            return frame_of(self.session, table).coalesce(1)
        from pyspark.sql.types import StructType

        schema = like if isinstance(like, StructType) else like.schema
        columns = StructType([column for column in schema.fields if column.name in table.column_names])
        return frame_of(self.session, table, columns).coalesce(1)

    def counted(self, frame: DataFrame, corrupt: str | None) -> tuple[DataFrame, Mapping[int, tuple[int, int]]]:
        """Materialise a parsed input and count its rows in the same pass.

        Returns:
            the frame, perhaps without the corrupt-record column where no row uses it; and id -> (rows, rows that do
            not fit the schema), ids without rows missing.
        """
        if self.small:
            table = frame.toArrow()
            counts = _count_arrow(table, corrupt)
            is_clean = corrupt is not None and not any(bad for _, bad in counts.values())
            return self.local(table.drop_columns([corrupt]) if is_clean else table, frame), counts
        kept = self.once(frame)
        bad = F.count(F.col(corrupt)) if corrupt else F.lit(0).cast("bigint")
        rows = kept.groupBy(SEQUENCE_ID).agg(F.count(F.lit(1)).alias("rows"), bad.alias("bad")).collect()
        return kept, {row[SEQUENCE_ID]: (row["rows"], row["bad"]) for row in rows}

    def release(self) -> None:
        for frame in self.held:
            frame.unpersist()
        self.held.clear()


def _count_arrow(table: Any, corrupt: str | None) -> dict[int, tuple[int, int]]:
    import pyarrow.compute as pc

    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(table[SEQUENCE_ID]).to_pylist()}
    bad: dict[int, int] = {}
    if corrupt:
        wrong = table.filter(pc.is_valid(table[corrupt]))[SEQUENCE_ID]
        bad = {entry["values"]: entry["counts"] for entry in pc.value_counts(wrong).to_pylist()}
    return {number: (rows, bad.get(number, 0)) for number, rows in counts.items()}


