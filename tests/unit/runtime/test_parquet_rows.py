"""The Parquet files that Arrow may read instead of Spark: those for which both surely return the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as sql

from drainmark.jobs.formats.bad_records import Refused
from drainmark.jobs.formats.format import Expected, format_of

PARQUET = format_of("parquet")


def declared(kind: sql.DataType) -> Expected:
    return Expected(format="parquet", columns=[("v", kind)])


def rows_of(path: Path, column: pa.Array, kind: sql.DataType, **options: Any) -> list[Any] | None:
    """Return the values of a column declared as a type; None if Arrow may not read the file."""
    pq.write_table(pa.table({"v": column}), path, **options)
    found = PARQUET.rows_of(path, declared(kind))
    return None if found is None else [value for batch in found for value in batch.column("v").to_pylist()]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1, None], pa.int64()), sql.LongType()),
        (pa.array(["a", None]), sql.StringType()),
        (pa.array([0, None], pa.date32()), sql.DateType()),
        (pa.array([None, None], pa.date32()), sql.DateType()),
        (pa.array([0, 5], pa.timestamp("us", "UTC")), sql.TimestampType()),
        (pa.array([0, 5], pa.timestamp("us")), sql.TimestampNTZType()),
        (pa.array([], pa.date32()), sql.DateType()),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_plain_values_are_read(tmp_path: Path, column: pa.Array, kind: sql.DataType) -> None:
    assert rows_of(tmp_path / "file", column, kind) == column.to_pylist()


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1], pa.int32()), sql.LongType()),
        (pa.array([1], pa.uint32()), sql.LongType()),
        (pa.array(["a"]).dictionary_encode(), sql.StringType()),
        (pa.array(["a"], pa.large_string()), sql.StringType()),
        (pa.array([b"a"]), sql.StringType()),
        (pa.array([["a"]]), sql.ArrayType(sql.StringType())),
        (pa.array([5_000_000], pa.date32()), sql.DateType()),
        (pa.array([-1_000_000], pa.date32()), sql.DateType()),
        (pa.array([-30_000], pa.date32()), sql.DateType()),
        (pa.array([10**18], pa.timestamp("us", "UTC")), sql.TimestampType()),
        (pa.array([0], pa.timestamp("ms", "UTC")), sql.TimestampType()),
        (pa.array([0], pa.timestamp("us", "UTC")), sql.TimestampNTZType()),
        (pa.array([0], pa.duration("us")), sql.DayTimeIntervalType()),
        (pa.array([0], pa.time64("ns")), sql.TimeType(6)),
        (pa.array([0], pa.time64("us")), sql.TimeType(6)),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_what_is_not_sure_to_be_read_alike_is_left_to_spark(
    tmp_path: Path, column: pa.Array, kind: sql.DataType
) -> None:
    assert rows_of(tmp_path / "file", column, kind) is None


@pytest.mark.parametrize("options", [{"write_statistics": False}, {"use_deprecated_int96_timestamps": True}], ids=str)
def test_times_without_bounds_are_left_to_spark(tmp_path: Path, options: dict[str, Any]) -> None:
    assert rows_of(tmp_path / "file", pa.array([0], pa.timestamp("us", "UTC")), sql.TimestampType(), **options) is None


def test_a_row_group_of_long_values_comes_in_pieces(tmp_path: Path) -> None:
    column = pa.array(["x" * 1_000_000] * 40)
    pq.write_table(pa.table({"v": column}), tmp_path / "file", use_dictionary=False)
    found = PARQUET.rows_of(tmp_path / "file", declared(sql.StringType()))
    assert found is not None
    assert max(batch.nbytes for batch in found) < 10_000_000


def test_a_damaged_page_refuses_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    options = {"use_dictionary": False, "compression": "none", "write_page_checksum": True, "write_statistics": False}
    pq.write_table(pa.table({"v": ["only here"]}), path, **options)
    path.write_bytes(path.read_bytes().replace(b"only here", b"ONLY here"))
    found = PARQUET.rows_of(path, declared(sql.StringType()))
    assert found is not None
    with pytest.raises(Refused, match="pages that cannot be read"):
        list(found)
