"""A value of a file of text is what the file says, or its record is bad and the reason names the column (I12)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from reads import read_bytes

AMOUNT = DecimalType(10, 2)
PART = StructType().add("at", TimestampType()).add("amount", AMOUNT)
FLAT: tuple[tuple[str, DataType], ...] = (
    ("k", StringType()), ("at", TimestampType()), ("amount", AMOUNT), ("x", DoubleType()), ("day", DateType()),
    ("local", TimestampNTZType()),
)  # fmt: skip
COLUMNS = (*FLAT, ("part", PART), ("parts", ArrayType(PART)), ("by_name", MapType(StringType(), AMOUNT)))
NOON = dt.datetime(2026, 1, 1, 12, 34, tzinfo=dt.UTC)


@pytest.mark.seed("RT5", "RT11")
@pytest.mark.parametrize(
    ("record", "column"),
    [
        ('{"at":"12:34"}', "at"),
        ('{"at":" 2026-01-01"}', "at"),
        ('{"at":"2026-01-01 12:34:00 +01:00"}', "at"),
        ('{"at":"2026-01-01T12:34:00.1234567"}', "at"),
        ('{"at":1700000000}', "at"),
        ('{"day":"20260101"}', "day"),
        ('{"day":"2026-01-01 junk"}', "day"),
        ('{"local":"2026-01-01T12:34:00Z"}', "local"),
        ('{"amount":0.005}', "amount"),
        ('{"amount":"1,5"}', "amount"),
        ('{"amount":1e-3}', "amount"),
        ('{"amount":12345678901234567890.123}', "amount"),
        ('{"x":1e400}', "x"),
        ('{"x":1e-400}', "x"),
        ('{"x":"1"}', "x"),
        ('{"part":{"at":"12:34"}}', "part.at"),
        ('{"parts":[{"amount":1},{"amount":1.001}]}', "parts[1].amount"),
        ('{"by_name":{"a":1.001}}', "by_name['a']"),
        ('{"K":"a","x":1}', "K"),
        ('{"part":{"AT":null}}', "part.AT"),
    ],
)
def test_a_value_that_would_be_another_one_makes_its_record_bad(tmp_path: Path, record: str, column: str) -> None:
    good = '{"k":"a","at":"2026-01-01T12:34:00Z"}'
    found = read_bytes(tmp_path, f"{good}\n{record}\n{good}\n".encode(), "json", COLUMNS)
    assert len(found.rows) == 2
    assert found.reasons[2].startswith(f"field {column!r}: ")


@pytest.mark.parametrize(
    ("record", "values"),
    [
        ('{"at":"2026-01-01T12:34:00Z"}', {"at": NOON}),
        ('{"at":"2026-1-1 13:34+01:00"}', {"at": NOON}),
        ('{"amount":0.5}', {"amount": Decimal("0.50")}),
        ('{"amount":"1.250"}', {"amount": Decimal("1.25")}),
        ('{"amount":12.5e-1}', {"amount": Decimal("1.25")}),
        ('{"amount":1e2,"x":0.005}', {"amount": Decimal(100), "x": 0.005}),
        ('{"k":"12:34","local":"2026-01-01T12:34:00"}', {"k": "12:34", "local": NOON.replace(tzinfo=None)}),
        ('{"K":"other","k":"a"}', {"k": "a"}),
        ('{"k":1.10}', {"k": "1.10"}),
        ('{"k":-999.9999999999999995}', {"k": "-999.9999999999999995"}),
        ('{"k":1e400}', {"k": "1e400"}),
        ('{"k":{"b": [1.0,\t"\\u00e9"]}}', {"k": '{"b": [1.0,\t"\\u00e9"]}'}),
        ('{"part":{"at":"2026-01-01T12:34","amount":1.25}}', {"part": {"at": NOON, "amount": Decimal("1.25")}}),
        ('{"by_name":{"A":1.5,"a":2}}', {"by_name": [("A", Decimal("1.5")), ("a", Decimal(2))]}),
    ],
)
def test_a_value_is_what_the_file_says(tmp_path: Path, record: str, values: dict[str, Any]) -> None:
    for others in ("", '{"k":"b"}\n{\n'):  # with a bad record as well the lines are read one by one
        found = read_bytes(tmp_path, f"{record}\n{others}".encode(), "json", COLUMNS)
        assert found.rows[0] == {**{name: None for name, _ in COLUMNS}, **values}


def test_a_misspelt_name_is_seen_beside_records_that_have_it_right(tmp_path: Path) -> None:
    lines = b'{"k":"a","part":{"at":null}}\n{"K":"b"}\n{"k":"a","part":{"AT":null}}\n'
    assert [*read_bytes(tmp_path, lines, "json", COLUMNS).reasons] == [2, 3]


def test_rounding_and_formats_are_the_authors_word(tmp_path: Path) -> None:
    found = read_bytes(tmp_path, b'{"amount":0.005}\n{"amount":"1e9"}\n', "json", COLUMNS, rounding="half_up")
    assert found.rows[0]["amount"] == Decimal("0.01")
    assert [*found.reasons] == [2], "digits before the point are never dropped"
    options = {"timestampformat": "dd.MM.yyyy HH:mm", "dateformat": "d/M/yy"}
    record = b"a,01.01.2026 12:34,,,1/2/26,\nb,2026-01-01T12:34Z,,,2026-02-01,\n"
    found = read_bytes(tmp_path, record, "csv", FLAT, options=options)
    assert [(row["at"], row["day"]) for row in found.rows] == [(NOON, dt.date(2026, 2, 1))]


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("a,12:34,,,,", "at"),
        ('a,"12:34",,,,', "at"),
        ("a, 2026-01-01,,,,", "at"),
        ("a,,0.005,,,", "amount"),
        ("a,,1.5e-3,,,", "amount"),
        ('a,,"1,000.50",,,', "amount"),
        ("a,,,1e400,,", "x"),
        ("a,,,inf,,", "x"),
        ("a,,,,2026-02-29,", "day"),
        ("12:34,2026-01-01T12:34:00Z,1.25,0.001,2026-01-01,2026-01-01T12:34:00", None),
    ],
)
def test_csv_alike(tmp_path: Path, line: str, column: str | None) -> None:
    found = read_bytes(tmp_path, f"{line}\n".encode(), "csv", FLAT)
    assert len(found.rows) == (column is None)
    assert column is None or found.reasons[1].startswith(f"column {column!r}: ")


@pytest.mark.parametrize(
    ("kind", "content", "options"),
    [
        ("json", b'[{"x":0.5},{"k":"a","at":"12:34"}]', {"multiline": "true"}),
        ("csv", b',,,0.5,,\n"a\nb",12:34,,,,\n', {"multiline": "true"}),
        ("csv", ",,,0.5,,\na,,0.005,,,\n".encode("utf-16"), {"encoding": "UTF-16"}),
        ("json", b'{"x":0.5};{"amount":0.005}', {"linesep": ";"}),
    ],
)
def test_one_record_is_bad_of_a_file_without_lines_as_well(
    tmp_path: Path, kind: str, content: bytes, options: Any
) -> None:
    found = read_bytes(tmp_path, content, kind, FLAT if kind == "csv" else COLUMNS, options=options)
    assert ([row["x"] for row in found.rows], [*found.reasons]) == ([0.5], [2])


def test_floats_round_to_the_nearest_and_never_to_nothing(tmp_path: Path) -> None:
    found = read_bytes(tmp_path, b"0.1\n1e39\n1e-50\nNaN\n-Infinity\n", "csv", (("f", FloatType()),))
    assert [*found.reasons] == [2, 3]
    assert [str(row["f"]) for row in found.rows] == ["0.10000000149011612", "nan", "-inf"]
