"""A row that PostgreSQL's connector writes by default comes back as it was, alone and among others (CD1)."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from debezium_samples import FIELDS, MYSQL, ORACLE, POSTGRES, envelope, message, written
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import DateType, DecimalType, IntegerType, LongType, StringType, TimestampNTZType, TimestampType

from drainmark.jobs.formats.debezium import FORMAT
from drainmark.jobs.formats.format import Expected

ROWS = st.fixed_dictionaries({
    "id": st.integers(-(1 << 31), (1 << 31) - 1),
    "name": st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    "credit": st.none() | st.integers(-(10**10) + 1, 10**10 - 1).map(lambda number: Decimal(number).scaleb(-2)),
    "born": st.none() | st.dates(),
    "seen": st.none() | st.datetimes(),
})  # fmt: skip
COLUMNS = (
    ("id", IntegerType()),
    ("name", StringType()),
    ("credit", DecimalType(10, 2)),
    ("born", DateType()),
    ("seen", TimestampNTZType()),
    ("_op", StringType()),
    ("_sequence", LongType()),
    ("_changed_at", TimestampType()),
)


@pytest.mark.seed("CD1")
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("crud"), ROWS, st.booleans()), max_size=6))
def test_a_row_comes_back_as_it_was(changes: list[tuple[str, dict[str, Any], bool]]) -> None:
    messages, wanted = list[bytes](), list[dict[str, Any]]()
    for op, row, has_tombstone in changes:
        messages.append(message(envelope(op, written(row)), FIELDS))
        messages += [b"null"] if has_tombstone else []
        wanted.append({**row, "_op": op})
    expected = Expected(format="debezium", columns=COLUMNS)
    found = FORMAT.lines.parse(messages, expected)
    assert found.faults == {}
    names = [name for name, _ in COLUMNS][:-2]
    assert found.good.select(names).to_pylist() == wanted
    for text in messages:
        assert FORMAT.lines.parse([text], expected).good.num_rows == (text != b"null")


EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001


@settings(max_examples=150, deadline=None)
@given(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([1, 1000, 1_000_000]))
def test_a_number_of_a_time_is_exact_or_bad(number: int, nanos: int) -> None:
    name = {1: "NanoTimestamp", 1000: "MicroTimestamp", 1_000_000: "Timestamp"}[nanos]
    field = {"type": "int64", "name": f"io.debezium.time.{name}", "field": "seen"}
    found = FORMAT.lines.parse(
        [message(envelope("c", {"seen": number}), [field])], Expected(format="debezium", columns=COLUMNS[4:])
    )
    if found.faults:
        micros = number * nanos // 1000
        first, last = ((each - EPOCH) // dt.timedelta(microseconds=1) for each in (dt.datetime.min, dt.datetime.max))  # noqa: DTZ901
        assert number * nanos % 1000 or not first <= micros <= last
    else:
        told = (found.rows["seen"][0].as_py() - EPOCH) // dt.timedelta(microseconds=1)
        assert told * 1000 == number * nanos


ODD = (
    None, 0, -1, 1.5, "x", "", [], {}, [None], {"a": 1}, True, 10**30, "9" * 30, "0" * 30 + "9" * 30, "0" * 5000, "-",
    "AA==", -(10**20), "Infinity", "\u0663", {"scale": 10**9, "value": "AA=="}, 1e300, "binlog." + "0" * 13 + "9" * 20,
)  # fmt: skip
"""Values that no connector writes where they are put."""

ROW = {"id": 1, "name": "x", "credit": Decimal("1.25"), "born": dt.date(2020, 1, 1), "seen": dt.datetime(2020, 1, 1)}  # noqa: DTZ001


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, part in parts for place in places(part, (*path, name)))]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([POSTGRES, MYSQL, ORACLE]), st.sampled_from([None, "rescue"]), st.randoms(use_true_random=False))
def test_an_odd_message_is_a_bad_record_and_leaves_its_neighbour_right(
    source: dict[str, Any], on_schema: Any, random: Random
) -> None:
    good = message(envelope("c", written(ROW), source), FIELDS)
    odd = json.loads(good)
    for _ in range(random.randint(1, 2)):
        *above, last = random.choice(places(odd)[1:])
        holder = odd
        for name in above:
            holder = holder[name]
        holder[last] = json.loads(json.dumps(random.choice(ODD)))
    expected = Expected(format="debezium", columns=COLUMNS, on_schema=on_schema)
    found = FORMAT.lines.parse([json.dumps(odd).encode(), good], expected)
    assert 1 not in found.faults
    assert found.rows.slice(1, 1).select(list(ROW)).to_pylist() == [ROW]
