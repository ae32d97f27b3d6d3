"""Records that come as bytes become columns, or a reason why they are none, where they are read (I12)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DecimalType, IntegerType, StringType, TimestampType

from drainmark.jobs.formats.byte_records import Records, TextParser, parse_texts, read_records
from drainmark.jobs.formats.format import Expected

COLUMNS = (("k", StringType()), ("n", IntegerType()))


def expected(form: str) -> Expected:
    return Expected(format=form, columns=None if form == "text" else COLUMNS)


def read(values: list[bytes | None], form: str, **more: Any) -> list[dict[str, Any]]:
    """Return the rows of a batch of a source, which also has a column `offset`."""
    given = {"schema": None if form == "text" else "k string, n int", "takes_null": False, **more}
    records = Records(column="value", format=form, options={}, others={"offset": "bigint"}, on_bad="halt", **given)
    batch = pa.record_batch([pa.array(values, pa.binary()), pa.array(range(len(values)))], names=["value", "offset"])
    rows = [row for found in read_records([batch], records, expected(form)) for row in found.to_pylist()]
    assert [row.pop("offset") for row in rows] == list(range(len(values)))
    return rows


def faults(values: list[bytes | None], form: str, **more: Any) -> list[str | None]:
    rows = read(values, form, **more)
    assert [row["__raw"] for row in rows] == [
        value if row["__bad"] else None for row, value in zip(rows, values, strict=True)
    ]
    return [row["__bad"] for row in rows]


GOOD = {
    "json": [b'{"k": "a", "n": 1}', b' {"k":\n "b"}\n', b'{"n": null}', '{"k": "\u00e9"}'.encode()],
    "csv": [b"a,1", b"a,1\n", b"a,1\r\n", b'"a,\nb",2', b'"a""b",3', b","],
    "text": [b"", b"a\nb", "\u00e9".encode()],
}
BAD = {
    "json": {
        b"": "empty", b" \n": "empty", b"nothing": "no JSON", b"[]": "no object", b'{"k": 1} {"k": 2}': "no JSON",
        b'{"k": 1, "k": 2}': "twice", b'{"k": NaN}': "no number", b'{"k": "\xff"}': "UTF-8", b'{"k": "\0"}': "NUL",
        b'{"k": "\\ud800"}': "surrogate", b'{"k": ' + b"[" * 600 + b"]" * 600 + b"}": "nested",
        b"{}": "no declared field", b'{"K": 1}': "declared as", b'{"n": "1"}': "field 'n'", b'{"n": 1e400}': "no int",
    },
    "csv": {b"": "empty", b'"a,1': "quote", b"a,1\nb,2": "lines", b"a,1\n\n": "lines", b"a\xff,1": "UTF-8"},
    "text": {b"\xff": "UTF-8", b"a\0": "NUL"},
}  # fmt: skip


@pytest.mark.parametrize("form", GOOD)
def test_nothing_is_wrong_with_what_is_good(form: str) -> None:
    assert faults(GOOD[form], form) == [None] * len(GOOD[form])
    assert [faults([value], form) for value in GOOD[form]] == [[None]] * len(GOOD[form])


@pytest.mark.parametrize(("form", "value"), [(form, value) for form, found in BAD.items() for value in found])
def test_what_is_bad_says_why_and_leaves_the_others_alone(form: str, value: bytes) -> None:
    (fault,) = faults([value], form)
    assert BAD[form][value] in (fault or "")
    assert faults([*GOOD[form], value, *GOOD[form]], form) == [
        *[None] * len(GOOD[form]), fault, *[None] * len(GOOD[form])
    ]  # fmt: skip


def test_a_record_without_a_value_is_bad_unless_that_is_taken() -> None:
    assert "tombstone" in (faults([None], "json")[0] or "")
    assert read([None, b'{"k": "a"}'], "json", takes_null=True) == [
        {"k": None, "n": None, "__bad": None, "__raw": None},
        {"k": "a", "n": None, "__bad": None, "__raw": None},
    ]


def test_a_text_is_one_record_whether_it_is_read_alone_or_among_others() -> None:
    """Texts are read together where each is plain; a text with a line end must not become two records then."""
    texts = [b'{"k": "a",\n"n": 1}', b'{"k": "b"}', b"", b'{"k": "c"}\r{"k": "d"}', b'{"k": 1.10}', b'{"k": "e"}']
    rows, why = parse_texts(pa.array(texts), expected("json"))
    alone = [parse_texts(pa.array([text]), expected("json")) for text in texts]
    assert rows.to_pylist() == [row for found, _ in alone for row in found.to_pylist()]
    assert why.to_pylist() == [each[0].as_py() for _, each in alone]
    assert [row["k"] for row in rows.to_pylist()] == ["a", "b", None, None, "1.10", "e"]


def test_bad_texts_have_no_value_in_any_column() -> None:
    rows, why = parse_texts(pa.array([b'{"k": "a", "n": "x"}', None, b"\xff"]), expected("json"))
    assert rows.to_pylist() == [{"k": None, "n": None}] * 3
    assert [each is not None for each in why.to_pylist()] == [True, False, True]


def test_parsed_texts_have_the_types_that_spark_expects() -> None:
    columns = (("d", ArrayType(DecimalType(10, 2))), ("t", TimestampType()))
    parse = TextParser(form="json", columns=columns)
    found = parse(pa.array(['{"d": [1.5], "t": "2026-01-01"}', "x", None]))
    assert found.type.field("row").type.field("d").type == pa.list_(pa.decimal128(10, 2))
    assert found.type == parse(pa.array([], pa.string())).type == parse(pa.array([None], pa.binary())).type


@pytest.mark.parametrize(
    ("text", "row", "why"),
    [
        ("k=a,n=4", ("a", 4), None),
        (" k = a b , n = 4 ", ("a b", 4), None),
        ("n=1,other=x,n=2", (None, 2), None),
        ("k=x=y,n", ("x=y", None), None),
        ("k=,n=7", ("", 7), None),
        ("k=a,n=", (None, None), "key 'n'"),
        ("k=a,n=4.0", (None, None), "key 'n': '4.0'"),
        ("other=1", (None, None), "none of the keys k, n"),
        ("", (None, None), "none of the keys"),
    ],
)
def test_pairs_become_columns(text: str, row: tuple[Any, ...], why: str | None) -> None:
    (found,) = TextParser(form="key_value", columns=COLUMNS)(pa.array([text])).to_pylist()
    assert tuple(found["row"].values()) == row
    assert found["why"] is None if why is None else why in found["why"]
