"""Faults that are found in the bytes of a record before Spark parses it (I12); Spark only parses the DDL."""

from __future__ import annotations

import pyarrow as pa
import pytest

from drainmark.jobs.formats.byte_records import expected_of, with_faults
from drainmark.jobs.formats.records import Records

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("drainmark_session")]


def records(form: str, **more: object) -> Records:
    schema = "k string, n int" if form in ("csv", "json") else None
    given = {"options": {}, "others": {}, "on_bad": "quarantine", "strict": True, "takes_null": False, **more}
    return Records(column="value", format=form, schema=schema, **given)  # type: ignore[arg-type]


def faults(values: list[bytes | None], form: str, **more: object) -> list[str | None]:
    batch = pa.record_batch([pa.array(values, pa.binary())], names=["value"])
    given = records(form, **more)
    (found,) = with_faults([batch], given, expected_of(given))
    assert found.column("value").to_pylist() == values
    told: list[str | None] = found.column("__fault").to_pylist()
    return told


GOOD = {
    "json": [b'{"k": "a", "n": 1}', b' {"k":\n "b"}\n', b"{}", '{"k": "\u00e9"}'.encode()],
    "csv": [b"a,1", b"a,1\n", b"a,1\r\n", b'"a,\nb",2', b'"a""b",3', b",", b"a"],
    "text": [b"", b"a\nb", "\u00e9".encode()],
}
BAD = {
    "json": {
        b"": "empty", b" \n": "empty", b"nothing": "no JSON", b"[]": "no object", b'{"k": 1} {"k": 2}': "no JSON",
        b'{"k": 1, "k": 2}': "twice", b'{"k": NaN}': "no number", b'{"k": "\xff"}': "UTF-8", b'{"k": "\0"}': "NUL",
        b'{"k": "\\ud800"}': "surrogate", b'{"k": ' + b"[" * 600 + b"]" * 600 + b"}": "nested",
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
    assert faults([None, b"{}"], "json", takes_null=True) == [None, None]


def test_json_that_is_taken_in_part_is_let_through_where_that_is_asked_for() -> None:
    assert faults([b'{"k": 1} more'], "json", strict=False) == [None]
