"""Parquet files as rows of the declared columns: each value is what the file says, or its row is bad."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as sql
from reads import parsed

from drainmark.jobs.formats.bad_records import OtherColumns, Refused
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.frames.tags import arrow_schema

ZONED = dt.datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
NOON = ZONED.replace(tzinfo=None)
UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
TIME, NTZ, TEXT = sql.TimestampType(), sql.TimestampNTZType(), sql.StringType()
WIDTHS = {8: sql.ByteType(), 16: sql.ShortType(), 32: sql.IntegerType(), 64: sql.LongType()}
NO_TEXT = r"no string: its bytes are no UTF-8"


def declared(kind: sql.DataType, name: str = "v") -> Expected:
    return Expected(format="parquet", columns=[(name, kind)])


def read(path: Path, kind: sql.DataType, name: str = "v") -> tuple[list[Any], dict[int, str]]:
    """Return the values of a column, and the faults by row."""
    values, faults = list[Any](), dict[int, str]()
    for part in parsed(path, declared(kind, name)):
        assert part.rows.schema == arrow_schema(sql.StructType().add(name, kind))
        part.rows.validate(full=True)
        faults.update({len(values) + place: why for place, why in part.faults.items()})
        values += part.rows[name].to_pylist()
    return values, faults


def written(folder: Path, column: pa.Array, **options: Any) -> Path:
    pq.write_table(pa.table({"v": column}), folder / "file", **options)
    return folder / "file"


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        (pa.array([1, None], pa.int8()), sql.LongType(), [1, None]),
        (pa.array([2**32 - 1], pa.uint32()), sql.LongType(), [2**32 - 1]),
        (pa.array([2**32 - 1], pa.uint32()), sql.DoubleType(), [2.0**32 - 1]),
        (pa.array([2**64 - 1], pa.uint64()), sql.DecimalType(20, 0), [Decimal(2**64 - 1)]),
        (pa.array([-(2**63)], pa.int64()), sql.DecimalType(22, 2), [Decimal(-(2**63))]),
        (pa.array([1.5], pa.float32()), sql.DoubleType(), [1.5]),
        (pa.array([1.5], pa.float16()), sql.FloatType(), [1.5]),
        (pa.array([Decimal("1.25")], pa.decimal128(5, 2)), sql.DecimalType(38, 3), [Decimal("1.250")]),
        (pa.array([Decimal("1.25")], pa.decimal256(40, 2)), sql.DecimalType(38, 2), [Decimal("1.25")]),
        (pa.array([True, None]), sql.BooleanType(), [True, None]),
        (pa.array(["ö", None]).dictionary_encode(), TEXT, ["ö", None]),
        (pa.array(["ö"], pa.large_string()), TEXT, ["ö"]),
        (pa.array(["ö"], pa.string_view()), sql.BinaryType(), ["ö".encode()]),
        (pa.array(["ö".encode()], pa.large_binary()), TEXT, ["ö"]),
        (pa.array([b"ab"], pa.binary(2)), TEXT, ["ab"]),
        (pa.array([UUID.bytes, None], pa.uuid()), TEXT, [str(UUID), None]),
        (pa.array([UUID.bytes], pa.uuid()), sql.BinaryType(), [UUID.bytes]),
        (pa.array([dt.date(1, 1, 1), dt.date(1500, 2, 28)]), sql.DateType(), [dt.date(1, 1, 1), dt.date(1500, 2, 28)]),
        (pa.array([dt.date(1500, 1, 1)]), NTZ, [NOON.replace(1500, 1, 1, 0, microsecond=0)]),
        (pa.array([NOON], pa.timestamp("us")), NTZ, [NOON]),
        (pa.array([NOON], pa.timestamp("us")), TIME, [ZONED]),
        (pa.array([NOON], pa.timestamp("ns")), TIME, [ZONED]),
        (pa.array([ZONED], pa.timestamp("ns", "Europe/Berlin")), TIME, [ZONED]),
        (pa.array([ZONED], pa.timestamp("us", "Europe/Berlin")), NTZ, [NOON]),
        (pa.array([1], pa.timestamp("ms")), NTZ, [NOON.replace(1970, 1, 1, 0, microsecond=1000)]),
        (pa.array([1], pa.timestamp("s", "UTC")), TIME, [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)]),
        (pa.array([1], pa.timestamp("ns")), sql.LongType(), [1]),
        (pa.array([1], pa.time32("ms")), sql.IntegerType(), [1]),
        (pa.array([1], pa.duration("ns")), sql.LongType(), [1]),
        (pa.array([1], pa.duration("us")), sql.DayTimeIntervalType(), [dt.timedelta(microseconds=1)]),
        (pa.nulls(2), sql.StructType().add("a", TEXT), [None, None]),
        (pa.array([[1], None, []], pa.list_view(pa.int8())), sql.ArrayType(sql.LongType()), [[1], None, []]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), sql.ArrayType(sql.LongType()), [[1, 2], None]),
        (pa.array([[("k", 1)], None, []], pa.map_(pa.large_string(), pa.uint8())),
         sql.MapType(TEXT, sql.ByteType()), [[("k", 1)], None, []]),
        (pa.array([{"A": 1, "b": "not declared"}, None, {"A": None}]), sql.StructType().add("a", sql.LongType()),
         [{"a": 1}, None, {"a": None}]),
        (pa.array([], pa.uint8()), sql.ByteType(), []),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)  # fmt: skip
def test_a_value_is_what_the_file_says(tmp_path: Path, column: pa.Array, kind: sql.DataType, values: list[Any]) -> None:
    assert read(written(tmp_path, column), kind) == (values, {})


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.seed("B10")
def test_an_unsigned_number_beyond_its_column_is_a_bad_row_and_no_negative_number(
    tmp_path: Path, bits: int, nested: bool
) -> None:
    unsigned, most = getattr(pa, f"uint{bits}")(), 2**bits - 1
    for column in (pa.array([1, most, None, 7], unsigned), pa.array([1, most, None, 7], unsigned).dictionary_encode()):
        listed = pa.ListArray.from_arrays(pa.array([0, 1, 3, 4], pa.int32()), column)
        kind = sql.ArrayType(WIDTHS[bits]) if nested else WIDTHS[bits]
        values, faults = read(written(tmp_path, listed if nested else column), kind)
        assert values == ([[1], [None, None], [7]] if nested else [1, None, None, 7])
        name = "v[]" if nested else "v"
        assert faults == {1: f"{name!r}: {most} is no {WIDTHS[bits].simpleString()}"}


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([b"a", b"\xff"]), TEXT),
        (pa.array([b"a", b"\xff"], pa.large_binary()), TEXT),
        (pa.array([b"a", b"\xff"]).dictionary_encode(), TEXT),
        (pa.array([b"a", b"\xff"]).view(pa.string()), TEXT),
        (pa.array([[b"a"], [b"b", b"\xff"]]), sql.ArrayType(TEXT)),
        (pa.array([{"a": [b"a"]}, {"a": [b"\xff"]}]), sql.StructType().add("a", sql.ArrayType(TEXT))),
        (pa.array([[("k", b"a")], [("k", b"\xff")]], pa.map_(pa.string(), pa.binary())), sql.MapType(TEXT, TEXT)),
        (pa.array([[(b"k", 1)], [(b"\xff", 1)]], pa.map_(pa.binary(), pa.int8())), sql.MapType(TEXT, sql.ByteType())),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
@pytest.mark.seed("B11")
def test_bytes_that_are_no_text_are_a_bad_row(tmp_path: Path, column: pa.Array, kind: sql.DataType) -> None:
    _, faults = read(written(tmp_path, column), kind)
    assert faults.keys() == {1}
    assert faults[1].startswith("'v")
    assert faults[1].endswith(rf"'\xff' is {NO_TEXT}")


@pytest.mark.parametrize(
    ("column", "kind", "bad", "options"),
    [
        (pa.array([1000, 1001, -1], pa.timestamp("ns")), TIME, {1, 2}, {}),
        (pa.array([1000, 1001, -1], pa.timestamp("ns")), TIME, {1, 2}, {"use_deprecated_int96_timestamps": True}),
        (pa.array([[1000], [1000, 1001]], pa.list_(pa.timestamp("ns"))), sql.ArrayType(TIME), {1},
         {"use_deprecated_int96_timestamps": True}),
        (pa.array([0, 2**60], pa.timestamp("ms")), NTZ, {1}, {}),
        (pa.array([0, 2**31 - 1], pa.date32()), NTZ, {1}, {}),
        (pa.array([Decimal(1), Decimal(10**37)], pa.decimal256(40, 2)), sql.DecimalType(38, 2), {1}, {}),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)  # fmt: skip
def test_a_value_that_the_declared_type_lacks_is_a_bad_row(
    tmp_path: Path, column: pa.Array, kind: sql.DataType, bad: set[int], options: dict[str, Any]
) -> None:
    assert read(written(tmp_path, column, **options), kind)[1].keys() == bad


@pytest.mark.parametrize("year", [1, 1500, 1900, 2026, 9999])
def test_a_time_of_twelve_bytes_is_exact_in_each_year(tmp_path: Path, year: int) -> None:
    """As nanoseconds it would be another time in years before 1678 and after 2261."""
    column = pa.array([NOON.replace(year=year)], pa.timestamp("us"))
    path = written(tmp_path, column, use_deprecated_int96_timestamps=True)
    assert read(path, TIME) == ([ZONED.replace(year=year)], {})


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1], pa.int64()), sql.IntegerType()),
        (pa.array([1], pa.uint32()), sql.ShortType()),
        (pa.array([1], pa.int64()), sql.DoubleType()),
        (pa.array([1], pa.int64()), TEXT),
        (pa.array([1.0]), sql.FloatType()),
        (pa.array([Decimal("1.25")], pa.decimal128(5, 2)), sql.DecimalType(5, 1)),
        (pa.array([Decimal("1.25")], pa.decimal128(5, 2)), sql.DecimalType(5, 3)),
        (pa.array([0], pa.date32()), TIME),
        (pa.array([0], pa.timestamp("us")), sql.LongType()),
        (pa.array([0], pa.duration("ns")), sql.DayTimeIntervalType()),
        (pa.array([{"a": 1}]), sql.StructType().add("b", sql.LongType())),
        (pa.array([{"a": 1, "A": 1}]), sql.StructType().add("a", sql.LongType())),
        (pa.array([[1]]), sql.ArrayType(TEXT)),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_a_type_that_may_not_hold_the_values_refuses_the_file(
    tmp_path: Path, column: pa.Array, kind: sql.DataType
) -> None:
    path = written(tmp_path, column)
    with pytest.raises(OtherColumns, match=r"'v' is .*, not "):
        read(path, kind)


def test_names_in_another_case_are_the_declared_ones_and_twins_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    pq.write_table(pa.table({"A.b": [1], "c": [2]}), path)
    assert read(path, sql.LongType(), "a.B") == ([1], {})
    pq.write_table(pa.table({"a": [1], "A": [2]}), path)
    with pytest.raises(OtherColumns, match="'a', 'A' are one name"):
        read(path, sql.LongType(), "a")
    with pytest.raises(OtherColumns, match="missing: 'b'"):
        read(path, sql.LongType(), "b")


CALENDARS = [
    ({"version": "2.4.8"}, False, True),
    ({"version": "4.2.0"}, False, False),
    ({"version": "4.2.0", "legacyDateTime": ""}, False, True),
    ({"version": "4.2.0", "legacyINT96": ""}, False, False),
    ({"version": "3.0.3"}, True, True),
    ({"version": "3.1.1"}, True, False),
    ({}, True, False),
]


def written_by_spark(folder: Path, column: pa.Array, told: dict[str, str], **options: Any) -> Path:
    table = pa.table({"v": column})
    with pq.ParquetWriter(folder / "file", table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({f"org.apache.spark.{name}": text for name, text in told.items()})
    return folder / "file"


@pytest.mark.parametrize(("told", "int96", "is_old"), CALENDARS)
def test_times_before_1900_of_an_old_calendar_are_bad_rows(
    tmp_path: Path, told: dict[str, str], int96: bool, is_old: bool
) -> None:
    times = pa.array([None, NOON, NOON.replace(year=1500)], pa.timestamp("us"))
    values, faults = read(written_by_spark(tmp_path, times, told, use_deprecated_int96_timestamps=int96), TIME)
    assert faults.keys() == ({2} if is_old else set())
    assert values[1] == ZONED


@pytest.mark.parametrize(("told", "is_old"), [(told, is_old) for told, int96, is_old in CALENDARS if not int96])
def test_days_of_the_julian_calendar_are_the_same_days_of_ours(
    tmp_path: Path, told: dict[str, str], is_old: bool
) -> None:
    """The file has 4 October 1582, 1 March 1500, 29 February 1500 and 3 January of year 1 of the Julian calendar."""
    numbers = [None, 0, -141_427, -141_428, -171_595, -171_596, -719_162]
    days = pa.array([[number] for number in numbers], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    values, faults = read(written_by_spark(tmp_path, days, told), sql.ArrayType(sql.DateType()))
    assert [day for (day,) in values[:3]] == [None, dt.date(1970, 1, 1), dt.date(1582, 10, 15)]
    if is_old:
        assert [day for (day,) in values[3:5]] == [dt.date(1582, 10, 4), dt.date(1500, 3, 1)]
        assert faults.keys() == {5}
        assert values[6] == [dt.date(1, 1, 3)]
    else:
        assert (values[3], faults) == ([dt.date(1582, 10, 14)], {})


@pytest.mark.parametrize("nested", [False, True])
def test_a_uuid_is_no_text_of_sixteen_bytes_whoever_wrote_it(tmp_path: Path, nested: bool) -> None:
    """Files of DuckDB have no note of Arrow's types; these 16 bytes are UTF-8."""
    column = pa.array([UUID.bytes, None], pa.uuid())
    kind: sql.DataType = TEXT
    if nested:
        keys, offsets = pa.array(["k", "l"]), pa.array([0, 1, 2], pa.int32())
        column, kind = pa.MapArray.from_arrays(offsets, keys, column), sql.MapType(TEXT, TEXT)
    values, _ = read(written(tmp_path, column, store_schema=False), kind)
    assert values[0] == ([("k", str(UUID))] if nested else str(UUID))


def test_row_groups_without_rows_and_columns_that_are_not_declared_do_not_matter(tmp_path: Path) -> None:
    table = pa.table({"w": ["x", "y"], "v": [1, 2]})
    with pq.ParquetWriter(tmp_path / "file", table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 1), table.slice(0, 0), table.slice(1)):
            writer.write_table(part)
    assert read(tmp_path / "file", sql.LongType()) == ([1, 2], {})


def test_the_place_of_a_bad_row_is_that_in_its_batch(tmp_path: Path) -> None:
    column = pa.array([b"a", b"\xff", b"b", b"\xff"])
    batches = parsed(written(tmp_path, column, row_group_size=3), declared(TEXT))
    assert [list(part.faults) for part in batches] == [[1], [0]]


def test_a_row_group_of_long_values_comes_in_pieces(tmp_path: Path) -> None:
    path = written(tmp_path, pa.array(["x" * 1_000_000] * 40), use_dictionary=False)
    assert max(part.rows.nbytes for part in parsed(path, declared(TEXT))) < 10_000_000


def test_a_damaged_page_refuses_the_file(tmp_path: Path) -> None:
    options = {"use_dictionary": False, "compression": "none", "write_page_checksum": True, "write_statistics": False}
    path = written(tmp_path, pa.array(["only here"]), **options)
    path.write_bytes(path.read_bytes().replace(b"only here", b"ONLY here"))
    with pytest.raises(Refused, match="pages that cannot be read"):
        read(path, TEXT)
