"""The types of rows as sources give them; no Spark."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from jobs.runtime.row_types import arrow_schema, tagged_type


def test_times_are_in_utc_and_those_without_a_zone_stay_so() -> None:
    declared = StructType().add("at", TimestampType()).add("local", TimestampNTZType())
    found = arrow_schema(tagged_type(declared))
    assert found.names == ["_sequence_id", "_position", "at", "local"]
    assert found.field("at").type == pa.timestamp("us", "UTC")
    assert found.field("local").type == pa.timestamp("us")
