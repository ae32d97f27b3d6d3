"""What texts become: the table of the reference, reasons of misfits, formats and types that are refused."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from drainmark.jobs.formats.values.grammar import TABLE, Rules, misfit, pattern_fault, unreadable, values_of

AS_WRITTEN = Rules()
WRITTEN = [
    (entry.kinds[0], text, is_value)
    for entry in TABLE
    for is_value, texts in ((True, entry.values), (False, entry.misfits))
    for text in texts
]


def type_named(name: str) -> DataType:
    written = {"int": "integer"}.get(name, name)
    return StructField.fromJson({"name": "", "type": written, "nullable": True, "metadata": {}}).dataType


def value(text: str, kind: DataType, rules: Rules = AS_WRITTEN) -> Any:
    """Return the value of a text, "misfit" if it is none."""
    found = values_of(pa.array([None, text]), kind, rules)
    assert found.misfits in ([], (), [1])
    return "misfit" if found.misfits else found.values[1].as_py()


@pytest.mark.parametrize(("name", "text", "is_value"), WRITTEN)
def test_the_examples_of_the_reference_are_right(name: str, text: str, is_value: bool) -> None:
    kind = type_named(name)
    assert (value(text, kind) != "misfit") == is_value
    if not is_value:
        assert misfit(text, kind, AS_WRITTEN).startswith(repr(text))


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("-128", ByteType(), -128),
        ("1" * 30, LongType(), "misfit"),
        ("0" * 30 + "7", LongType(), 7),
        ("1.1", FloatType(), 1.100000023841858),
        ("9" * 38, DecimalType(38, 0), Decimal("9" * 38)),
        ("4", DecimalType(38, 38), "misfit"),  # Arrow's cast gives 0.59717…
        ("1e-105", DecimalType(10, 2), "misfit"),  # Arrow's cast gives 0.00
        ("1" * 5000, DecimalType(38, 0), "misfit"),
        ("1e999999999999", DecimalType(38, 0), "misfit"),
        ("tea", BinaryType(), b"tea"),
        ("1900-02-29", DateType(), "misfit"),
        ("1582-10-10", DateType(), dt.date(1582, 10, 10)),
        ("2024-01-05T12:34:56.5-09:30", TimestampType(), dt.datetime(2024, 1, 5, 22, 4, 56, 500000, dt.UTC)),
        ("0001-01-01 00:00:00+01:00", TimestampType(), "misfit"),
        ("2024-1-5 3:4", TimestampNTZType(), dt.datetime(2024, 1, 5, 3, 4)),  # noqa: DTZ001
    ],
)
def test_hard_texts(text: str, kind: DataType, expected: Any) -> None:
    assert value(text, kind) == expected


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+01:00", "9999-12-31 23:59:59-18:00"])
def test_a_time_that_its_zone_leads_out_of_the_years_is_told_so(text: str) -> None:
    assert value(text, TimestampType()) == "misfit"
    assert misfit(text, TimestampType(), AS_WRITTEN).endswith("in UTC it is outside of the years 0001 to 9999")


@pytest.mark.parametrize("text", ["({}", "1{}", "{}-", "1 {}"])
@pytest.mark.parametrize("filling", ["1", "_", "1,", " "])
def test_the_reason_of_a_long_text_takes_no_time_by_the_square_of_its_length(text: str, filling: str) -> None:
    long = text.format(filling * 200_000) + "x"
    start = time.process_time()
    assert "is no int" in misfit(long, IntegerType(), Rules())
    assert time.process_time() - start < 5, "by the square it is half a minute"


@pytest.mark.parametrize(
    ("text", "expected"), [("1.005", "1.01"), ("-1.005", "-1.01"), ("1.0049", "1.00"), ("7", "7.00")]
)
def test_digits_behind_the_point_are_rounded_if_asked_for(text: str, expected: str) -> None:
    assert value(text, DecimalType(10, 2), Rules(rounding="half_up")) == Decimal(expected)


def test_rounding_never_drops_digits_before_the_point() -> None:
    assert value("99999999.995", DecimalType(10, 2), Rules(rounding="half_up")) == "misfit"


def test_odd_texts_leave_the_others_as_they_are() -> None:
    found = values_of(pa.array(["1", "n/a", None, "+2", "0x1F", "3"]).slice(1), IntegerType(), AS_WRITTEN)
    assert found.values.to_pylist() == [None, None, 2, None, 3]
    assert list(found.misfits) == [0, 3]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_empty_columns_and_nulls_have_no_misfits(kind: pa.DataType) -> None:
    for each in (IntegerType(), DoubleType(), DecimalType(5, 2), DateType(), TimestampType(), StringType()):
        assert list(values_of(pa.array([], kind), each, AS_WRITTEN).misfits) == []
        assert values_of(pa.array([None, None], kind), each, AS_WRITTEN).values.null_count == 2


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("dd.MM.yyyy HH:mm", "31.12.2024 23:59", dt.datetime(2024, 12, 31, 23, 59)),  # noqa: DTZ001
        ("M/d/yy h:mm a", "1/5/24 12:30 am", dt.datetime(2024, 1, 5, 0, 30)),  # noqa: DTZ001
        ("EEE, d MMM yyyy HH:mm:ss", "Fri, 5 Jan 2024 00:00:01", dt.datetime(2024, 1, 5, 0, 0, 1)),  # noqa: DTZ001
        ("EEE, d MMM yyyy", "Mon, 5 Jan 2024", "misfit"),
        ("HH:mm", "12:34", dt.datetime(1970, 1, 1, 12, 34)),  # noqa: DTZ001
        ("yyyy-MM-dd'T'HH:mm[:ss[.SSS]]", "2024-01-05T12:34", dt.datetime(2024, 1, 5, 12, 34)),  # noqa: DTZ001
        ("yyyyMMddHHmmssSSS", "20240105123456789", dt.datetime(2024, 1, 5, 12, 34, 56, 789000)),  # noqa: DTZ001
        ("dd.MM.yyyy", "30.02.2024", "misfit"),
        ("dd.MM.yyyy", "5.1.2024", "misfit"),
    ],
)
def test_times_are_read_by_formats_of_users(pattern: str, text: str, expected: Any) -> None:
    assert value(text, TimestampNTZType(), Rules(timestamp_ntz_format=pattern)) == expected


def test_a_format_holds_for_its_own_type_only() -> None:
    rules = Rules.of({"dateformat": "dd.MM.yyyy"}, rounding=None)
    assert value("05.01.2024", DateType(), rules) == dt.date(2024, 1, 5)
    assert value("05.01.2024", TimestampType(), rules) == "misfit"


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("YYYY-MM-dd", "yyyy"), ("yyyy-MM-dd hh:mm", "HH"), ("yyyy-MM-dd VV", "XXX"), ("dMyyyy", "'d'"),
        ("yyyyy", "yyyy"), ("yyyy-MM-dd'T", "''"), ("[yyyy", "]"), ("yyyy]", "["), ("", "empty"),
        ("yyyy-MM-dd G", "era"), ("HH:mm a", "hh"),
    ],
)  # fmt: skip
def test_formats_that_are_not_read_are_refused_by_name(pattern: str, says: str) -> None:
    assert says in (pattern_fault(pattern) or "")


def test_a_format_of_dates_has_a_date_and_one_without_zone_has_none() -> None:
    assert pattern_fault("HH:mm") is None
    assert "yyyy" in (pattern_fault("HH:mm", "dateformat") or "")
    assert "timestampFormat" in (pattern_fault("yyyy-MM-dd HH:mm XXX", "timestampntzformat") or "")


@pytest.mark.parametrize(
    "kind",
    [
        VariantType(), CharType(3), NullType(), ArrayType(DayTimeIntervalType()), MapType(IntegerType(), StringType()),
        StructType().add("a", ArrayType(MapType(StringType(), NullType()))),
    ],
)  # fmt: skip
def test_types_that_no_text_becomes_are_named_at_any_depth(kind: DataType) -> None:
    assert "declare" in (unreadable(kind) or "")


def test_types_that_texts_become_are_readable() -> None:
    every = [type_named(name) for name in ("string", "int", "decimal(10,2)", "double", "boolean", "date", "binary")]
    nested = [ArrayType(MapType(StringType(), TimestampType())), StructType().add("a", StringType("UTF8_LCASE"))]
    assert [unreadable(kind) for kind in (*every, *nested)] == [None] * 9
