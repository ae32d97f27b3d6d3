"""Values that Spark's parsers would change silently are faults of their records (I12, RT5, RT11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from drainmark.jobs.formats.bad_records import FileVerdict
from drainmark.jobs.formats.csv_dialect import Dialect
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.json_records import good_records
from drainmark.jobs.formats.lines.line_format import inspect
from drainmark.jobs.formats.values.lossy_values import Lossless

AMOUNT = DecimalType(10, 2)
PART = StructType().add("at", TimestampType()).add("amount", AMOUNT)
COLUMNS: tuple[tuple[str, DataType], ...] = (
    ("k", StringType()), ("at", TimestampType()), ("amount", AMOUNT), ("x", DoubleType()), ("day", DateType()),
    ("local", TimestampNTZType()), ("part", PART), ("parts", ArrayType(PART)),
    ("by_name", MapType(StringType(), AMOUNT)),
)  # fmt: skip
FLAT = COLUMNS[:6]


def judge(rounding: str | None = None, **options: str) -> Lossless:
    return Lossless.of(COLUMNS, options, rounding)


@pytest.mark.seed("RT5", "RT11")
@pytest.mark.parametrize(
    ("record", "column"),
    [
        ('{"at":"12:34"}', "at"),
        ('{"at":"T12:34"}', "at"),
        ('{"at":" 9:05:01.5 +01:00"}', "at"),
        ('{"amount":0.005}', "amount"),
        ('{"amount":"0.005"}', "amount"),
        ('{"amount":1e-3}', "amount"),
        ('{"amount":12345678901234567890.123}', "amount"),
        ('{"part":{"at":"12:34"}}', "part.at"),
        ('{"parts":[{"amount":1},{"amount":1.001}]}', "parts.amount"),
        ('{"by_name":{"a":1.001}}', "by_name"),
        ('{"K":"a"}', "K"),
        ('{"part":{"AT":null}}', "part.AT"),
    ],
)
def test_a_value_that_would_be_another_one_is_a_fault(record: str, column: str) -> None:
    fault = judge().fault_of_json(record)
    assert fault is not None
    assert repr(column) in fault
    assert good_records(record.encode(), judge()) is None, "and the quick look is not content with it"


@pytest.mark.parametrize(
    "record",
    [
        '{"at":"2026-01-01T12:34:00Z"}', '{"at":"2026-01-01 12:34"}', '{"at":"2026"}', '{"at":1700000000}',
        '{"amount":0.5}', '{"amount":"1.250"}', '{"amount":12.5e-1}', '{"amount":100}', '{"amount":1e2}', '{"x":0.005}',
        '{"k":"12:34","day":"2026-01-01","local":"2026-01-01T12:34:00"}', '{"K":"other","k":"a"}',
        '{"part":{"at":"2026-01-01","amount":1.25}}', '{"by_name":{"A":1.5,"a":2}}',
    ],
)  # fmt: skip
def test_a_value_that_comes_out_as_it_is_written_is_none(record: str) -> None:
    assert judge().fault_of_json(record) is None


def test_a_misspelt_name_is_seen_beside_records_that_have_it_right() -> None:
    lines = b'{"k":"a","part":{"at":null}}\n{"K":"b"}\n'
    assert good_records(lines, judge()) is None
    assert good_records(lines.replace(b"K", b"k").replace(b'"at"', b'"AT"') + lines[:28], judge()) is None


def test_rounding_and_formats_are_the_authors_word() -> None:
    assert judge("half_up").fault_of_json('{"amount":0.005}') is None
    assert good_records(b'{"amount":0.005}\n', judge("half_up")) == 1
    assert judge(timestampformat="HH:mm").fault_of_json('{"at":"12:34"}') is None


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("a,12:34,,,,", "at"),
        ('a,"12:34",,,,', "at"),
        ("a, T9:05,,,,", "at"),
        ("a,,0.005,,,", "amount"),
        ("a,,1.5e-3,,,", "amount"),
        ("12:34,2026-01-01T12:34:00Z,1.25,0.001,2026-01-01,2026-01-01T12:34:00", None),
        ('a,,"1,000.50",,,', None),
    ],
)
def test_csv_alike(line: str, column: str | None) -> None:
    lossless, dialect = Lossless.of(FLAT, {}, None), Dialect()
    fault = lossless.fault_of_csv(line, dialect)
    assert (fault is None) if column is None else (fault is not None and repr(column) in fault)
    if column is not None:
        assert lossless.suspects_csv(f"{line}\n".encode(), dialect.sep, dialect.quote)


def test_nothing_is_suspected_of_plain_times_and_amounts() -> None:
    """So a file of such values is not checked line by line."""
    chunk = b"a,2026-01-01T12:34:00Z,1.25,0.5,2026-01-01,2026-01-01 12:34:00\n" * 3
    assert not Lossless.of(FLAT, {}, None).suspects_csv(chunk, ",", '"')
    lines = b'{"k":"12:34","at":"2026-01-01T12:34:00Z","amount":1.25,"x":0.0001}\n' * 3
    assert good_records(lines, judge()) == 3


@pytest.mark.parametrize(
    ("kind", "content", "options"),
    [
        ("json", b'[{"k":"a","at":"12:34"}]', {"multiline": "true"}),
        ("csv", b'"a\nb",12:34,,,,\n', {"multiline": "true"}),
        ("csv", "a,,0.005,,,\n".encode("utf-16"), {"encoding": "UTF-16"}),
        ("json", b'{"k":"a"};{"amount":0.005}', {"linesep": ";"}),
    ],
)
def test_a_file_without_lines_is_refused_whole(tmp_path: Path, kind: str, content: bytes, options: Any) -> None:
    def verdict(written: bytes) -> FileVerdict:
        path = tmp_path / "file.data"
        path.write_bytes(written)
        columns = FLAT if kind == "csv" else COLUMNS
        return inspect(path, Expected(format=kind, columns=columns, options=options), tmp_path / "cleaned")

    refused = verdict(content).refused
    assert refused is not None
    assert "'at'" in refused or "'amount'" in refused
    good = content.replace(b"12:34", b"2026").replace("0.005".encode("utf-16-le"), "0.5".encode("utf-16-le"))
    assert verdict(good.replace(b"0.005", b"0.5")).refused is None
