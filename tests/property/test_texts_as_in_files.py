"""A line of a file, a text of `dm.parse` and a record of a topic have the same values, or the same fault (I12)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from drainmark.jobs.formats.byte_records import Records, TextParser, parse_texts, read_records
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.lines.content import Held
from drainmark.jobs.formats.lines.line_ranges import RangeReader

PLAIN = (("k", StringType()), ("n", IntegerType()), ("d", DecimalType(10, 2)), ("t", TimestampType()))
COLUMNS = {
    "csv": (*PLAIN, ("x", DoubleType()), ("b", BooleanType()), ("day", DateType())),
    "json": (*PLAIN, ("l", ArrayType(StructType([StructField("a", DoubleType()), StructField("s", StringType())])))),
}
FIELDS = ("a", "", " a ", "7", "-1", "1.50", "1e3", "1,5", "NaN", "1e400", "true", "2026-02-28", "2026-02-30", "\\",
          "2026-01-01T10:00:00Z", "2026-01-01 10:00:00.5+01:00", "12:34", '"a"', '"a,b"', '"a""b"', '"a', 'a"b', "é",
          "null", '"\\""', "\x1f", "9" * 40)  # fmt: skip
GOOD_FIELDS = (("a", "é", '"a,b"'), ("7", ""), ("1.5", "-2"), ("2026-01-01T10:00:00Z", ""), ("1.5", "1e3"),
               ("true", ""), ("2026-02-28", ""))  # fmt: skip
TOKENS = ("1", "-1.50", "1e3", "1e400", "0.005", '"a"', '"1.5"', '"2026-01-01T10:00:00Z"', "null", "true", "[]",
          '[{"a":1,"s":2.50}]', '[{"A":1}]', '{"a" : 1}', '"\\ud800"', '"é"', "01", "nan", "")  # fmt: skip
GOOD_TOKENS = {"k": ('"a"', "1.10"), "n": ("1", "null"), "d": ("1.5", '"2"'), "t": ('"2026-01-01"',),
               "l": ('[{"a":1,"s":"x"}]', "[]")}  # fmt: skip


def csv_line(chance: random.Random, oddity: float) -> str:
    fields = [chance.choice(FIELDS if chance.random() < oddity else good) for good in GOOD_FIELDS]
    return ",".join(fields[: chance.choice((7, 6, 7)) if chance.random() < oddity else 7])


def json_line(chance: random.Random, oddity: float) -> str:
    names = [chance.choice(("k", "K", "n", "z", name)) if chance.random() < oddity else name for name in GOOD_TOKENS]
    values = [
        chance.choice(TOKENS if chance.random() < oddity or name not in GOOD_TOKENS else GOOD_TOKENS[name])
        for name in names
    ]
    behind = chance.choice((" ", "x", "{}")) if chance.random() < oddity else ""
    return f"{{{', '.join(f'{json.dumps(n)}: {value}' for n, value in zip(names, values, strict=True))}}}{behind}"


LINES = {"csv": csv_line, "json": json_line}


def of_file(lines: Sequence[str], expected: Expected) -> list[str]:
    """Return the row of each line, or its fault, as a source of files has them."""
    content = "".join(f"{line}\n" for line in lines).encode()
    assert expected.lines is not None
    reader = RangeReader(expected=expected, lines=expected.lines, sends_all=True)
    rows = [row for _, table in reader.read(Held(content), 0, len(content)) for row in table.to_pylist()]
    bad = {record.position: record.reason for record in reader.facts.bad}
    good = iter(rows)
    return [bad[place] if place in bad else repr(next(good)) for place in range(1, len(lines) + 1)]


def of_texts(lines: Sequence[str], form: str) -> list[str]:
    parsed = TextParser(form=form, columns=COLUMNS[form])(pa.array(lines, pa.string())).to_pylist()
    return [found["why"] or repr(found["row"]) for found in parsed]


def of_topic(lines: Sequence[str], form: str, expected: Expected) -> list[str]:
    records = Records(
        column="value", format=form, schema="-", options={}, others={}, on_bad="quarantine", takes_null=False
    )
    batch = pa.record_batch([pa.array([line.encode() for line in lines], pa.binary())], names=["value"])
    found = [row for batch in read_records([batch], records, expected) for row in batch.to_pylist()]
    return [row["__bad"] or repr({name: row[name] for name, _ in COLUMNS[form]}) for row in found]


@pytest.mark.seed("RT5", "I12")
@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_record_is_the_same_from_a_file_a_column_and_a_topic(form: str) -> None:
    chance, expected = random.Random(form), Expected(format=form, columns=COLUMNS[form])
    seen = {"good": 0, "bad": 0}
    for _ in range(150):
        oddity = chance.choice((0.0, 0.1, 0.5))
        lines = [LINES[form](chance, oddity) for _ in range(chance.randrange(1, 8))]
        found = of_file(lines, expected)
        assert of_texts(lines, form) == found, lines
        assert of_topic(lines, form, expected) == found, lines
        for each in found:
            seen["good" if each.startswith("{'k'") else "bad"] += 1
    assert min(seen.values()) > 50, seen


def test_a_byte_order_mark_at_the_begin_of_a_text_is_kept_wherever_the_text_stands() -> None:
    """A mark is one of files. Arrow's parser would drop it from the first text that comes with others."""
    expected = Expected(format="csv", columns=(("k", StringType()),))
    for lines in (["\ufeffa", "b"], ["b", "\ufeffa"], ["\ufeffa"]):
        rows, why = parse_texts(pa.array(lines), expected)
        assert rows["k"].to_pylist() == lines
        assert why.null_count == len(lines)
