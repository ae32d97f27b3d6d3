"""Undeclared columns of Parquet and ORC files: the types with which they are read and may be declared."""

from __future__ import annotations

import datetime as dt
import io
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    LongType,
    StringType,
    TimestampType,
)
from reads import read_bytes

from drainmark.jobs.formats.file_columns import FileColumns, file_columns
from drainmark.jobs.formats.format import Expected

INT96 = {"use_deprecated_int96_timestamps": True}
NS = pa.timestamp("ns")
EARLY = dt.datetime(1969, 1, 1, 1, 1, 1, 500000, tzinfo=dt.UTC)


def parquet(values: pa.Array, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"k": ["a"], "x": values}), file, **options)
    return file.getvalue()


def as_orc(**columns: pa.Array) -> bytes:
    file = io.BytesIO()
    orc.write_table(pa.table({"k": ["a"], **columns}), file)
    return file.getvalue()


def layout(file: bytes, name: str = "parquet") -> FileColumns | None:
    return file_columns(io.BytesIO(file), f".{name}", Expected(format=name, columns=(("k", StringType()),)))


def refused(file: bytes, folder: Path, columns: dict[str, DataType], name: str = "parquet") -> str | None:
    """Return why a file, or its row, is not read with these columns declared."""
    found = read_bytes(folder, file, name, tuple(columns.items()))
    return found.refused or next(iter(found.reasons.values()), None)


def nested(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("l", pa.large_list(pa.map_(pa.string(), kind)))])


@pytest.mark.parametrize(
    ("values", "options", "kind", "is_read"),
    [
        (pa.array([[1000]], pa.list_(NS)), INT96, "array<timestamp>", True),
        (pa.array([{"at": 1}], pa.struct([("at", NS)])), INT96, "struct<`at`: timestamp>", True),
        (pa.array([{"l": [[("a", 1)]]}], nested(NS)), INT96, "struct<`l`: array<map<string, timestamp>>>", True),
        (pa.array([[1000]], pa.list_(NS)), {}, "array<bigint>", False),
        (pa.array([1000], NS).dictionary_encode(), INT96, "timestamp", True),
        (pa.DictionaryArray.from_arrays(pa.array([0], pa.uint8()), pa.array(["x"])), {}, "string", True),
        (pa.array([{"uint8": 1, "quintile": 2}], pa.struct([("uint8", pa.int32()), ("quintile", pa.uint16())])), {},
         "struct<`uint8`: int, `quintile`: int>", True),
        (pa.array([{"time64[": 1}], pa.struct([("time64[", pa.int32())])), {}, "struct<`time64[`: int>", True),
        (pa.array([[1]], pa.list_(pa.uint64())), {}, "array<decimal(20,0)>", True),
        (pa.array([[1]], pa.list_(pa.float16())), {}, "array<float>", True),
        (pa.array([1], pa.decimal256(5, 2)), {"store_decimal_as_integer": True}, "decimal(5,2)", True),
        (pa.array([1], pa.decimal256(38, 2)), {}, "decimal(38,2)", True),
        (pa.array([[1]], pa.list_(pa.decimal256(39, 2))), {}, "array<binary>", False),
        (pa.array([{"a": 1, "A": 2}], pa.struct([("a", pa.int8()), ("A", pa.int8())])), {}, None, False),
        (pa.array([[{"a": 1, "A": 2}]], pa.list_(pa.struct([("a", pa.int8()), ("A", pa.time64("us"))]))), {}, None,
         False),
        (pa.array([b"0" * 16], pa.uuid()), {}, "string", True),
        (pa.array([[1]], pa.list_view(pa.int8())), {}, "array<tinyint>", True),
        (pa.array([1], pa.duration("us")), {}, "interval day to second", True),
        (pa.array([1], pa.duration("ns")), {}, "bigint", True),
    ],
)  # fmt: skip
def test_the_columns_of_a_file_are_those_that_parquet_has(
    values: pa.Array, options: dict[str, Any], kind: str | None, is_read: bool
) -> None:
    ddl = "`k` string" if kind is None else f"`k` string, `x` {kind}"
    assert layout(parquet(values, **options)) == FileColumns(ddl, () if is_read else ("x",))


@pytest.mark.parametrize(
    ("values", "options", "kind", "fits"),
    [
        (pa.array([1], NS), INT96, LongType(), False),
        (pa.array([[1]], pa.list_(NS)), INT96, ArrayType(LongType()), False),
        (pa.array([[1000]], pa.list_(NS)), INT96, ArrayType(TimestampType()), True),
        (pa.array([[1]], pa.list_(NS)), INT96, ArrayType(TimestampType()), False),
        (pa.array([[1]], pa.list_(NS)), {}, ArrayType(LongType()), True),
        (pa.DictionaryArray.from_arrays(pa.array([0], pa.uint8()), pa.array(["x"])), {}, LongType(), False),
        (pa.DictionaryArray.from_arrays(pa.array([0], pa.uint8()), pa.array(["x"])), {}, StringType(), True),
        (pa.array([1], pa.decimal256(5, 2)), {"store_decimal_as_integer": True}, BinaryType(), False),
        (pa.array([1], pa.duration("ns")), {}, DayTimeIntervalType(), False),
    ],
)
def test_a_column_is_declared_as_what_parquet_has(
    tmp_path: Path, values: pa.Array, options: dict[str, Any], kind: DataType, fits: bool
) -> None:
    why = refused(parquet(values, **options), tmp_path, {"k": StringType(), "x": kind})
    assert (
        why is None if fits else ("has other columns than declared" in (why or "") or "is no timestamp" in (why or ""))
    )


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("name", ["at", "at.utc"])
@pytest.mark.parametrize("kind", [NS, pa.list_(NS)])
def test_times_of_orc_are_what_the_file_says_wherever_the_clock_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: pa.DataType, zone: str
) -> None:
    """Those before 1970 and those without a zone as well, which Spark's own reader would change."""
    plain = EARLY.replace(tzinfo=None)
    file = as_orc(at_=pa.array([{"utc": 1}]), **{name: pa.array([plain if kind == NS else [plain]], kind)})
    monkeypatch.setenv("TZ", zone)
    try:
        time.tzset()
        found = layout(file, "orc")
        declared = TimestampType() if kind == NS else ArrayType(TimestampType())
        read = read_bytes(tmp_path, file, "orc", (("k", StringType()), (name, declared)))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == FileColumns(f"`k` string, `at_` struct<`utc`: bigint>, `{name}` {declared.simpleString()}")
    assert read.rows == [{"k": "a", name: EARLY if kind == NS else [EARLY]}]
