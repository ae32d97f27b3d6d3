"""`Checkpoint`: typed values, in the order of writing, cut into chunks of one size (V120, V157, V160)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from drainmark.jobs.errors.operator_code import CheckpointUnreadable
from drainmark.jobs.state.handlers.checkpoint import CHUNK_BYTES, CheckpointReader, CheckpointWriter, Header
from drainmark.jobs.state.handlers.handler_state import chunk_rows, values_shown

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**80), 2**80), st.floats(allow_nan=False), st.text(),
    st.binary(), st.dates(), st.datetimes(), st.timedeltas(), st.decimals(allow_nan=False),
)  # fmt: skip
HASHABLE = st.one_of(st.integers(), st.text(max_size=4), st.tuples(st.integers(), st.text(max_size=2)))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
        st.frozensets(HASHABLE, max_size=4),
    ),
    max_leaves=12,
)


def write(values: list[Any], number: int = 1, previous: Header | None = None, size: int = 64) -> CheckpointWriter:
    writer = CheckpointWriter(sequence_id=number, previous=previous, chunk_bytes=size)
    for value in values:
        writer.write(value)
    writer.finish()
    return writer


def read_back(writer: CheckpointWriter, others: Sequence[CheckpointWriter] = ()) -> CheckpointReader:
    """Return a reader of a checkpoint; `others` are earlier ones, which have the chunks that did not change."""
    by_id = {each.sequence_id: each.changed for each in (*others, writer)}
    return CheckpointReader(header=writer.finish(), fetch=lambda index, at: by_id[at][index])


def kinds(value: Any) -> Any:
    """Return a value together with its types, since 1 == True == 1.0."""
    if isinstance(value, list | tuple):
        return type(value), [kinds(item) for item in value]
    if isinstance(value, dict):
        return dict, [(kinds(key), kinds(item)) for key, item in value.items()]
    return type(value), value


@pytest.mark.seed("V120", "V160")
@given(values=st.lists(VALUES, max_size=6), size=st.integers(1, 200))
@settings(max_examples=examples(150), deadline=None)
def test_values_come_back_as_they_went_in(values: list[Any], size: int) -> None:
    writer = write(values, size=size)
    reader = read_back(writer)
    assert [kinds(reader.read()) for _ in values] == [kinds(value) for value in values]
    assert reader.is_at_end
    lengths = [len(writer.changed[index]) for index in sorted(writer.changed)]
    assert sorted(writer.changed) == list(range(1, writer.finish().chunks + 1))
    assert all(length == size for length in lengths[:-1])
    assert sum(lengths) == writer.finish().length
    assert Header.from_bytes(writer.finish().to_bytes()) == writer.finish()


@pytest.mark.seed("V160")
@given(
    states=st.lists(st.lists(st.one_of(st.integers(0, 3), st.binary(max_size=150)), max_size=5), min_size=1, max_size=6)
)
@settings(max_examples=examples(100), deadline=None)
def test_a_chunk_that_did_not_change_is_not_written_again(states: list[list[Any]]) -> None:
    written: list[CheckpointWriter] = []
    for number, values in enumerate(states, 1):
        written.append(write(values, number, written[-1].finish() if written else None))
    for place, values in enumerate(states):
        reader = read_back(written[place], written[:place])
        assert [reader.read() for _ in values] == values
    same = write(states[-1], 99, written[-1].finish())
    assert same.changed == {}
    assert set(same.finish().written_at) <= {each.sequence_id for each in written}


def test_a_counter_that_grows_moves_nothing() -> None:
    before = write([10, b"x" * 1000])
    after = write([2**40, b"x" * 1000], 2, before.finish())
    assert sorted(after.changed) == [1]


def test_arrow_tables_go_in() -> None:
    table = pa.table({"a": [1, None], "b": ["x", "y"], "t": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * 2})
    assert read_back(write([table, Decimal("1.50")])).read(pa.Table).equals(table)


@pytest.mark.seed("V120")
def test_another_order_of_reading_is_an_error() -> None:
    writer = write([1, "a", True])
    reader = read_back(writer)
    with pytest.raises(CheckpointUnreadable):
        reader.read(str)
    reader = read_back(writer)
    assert (reader.read(int), reader.read(str)) == (1, "a")
    with pytest.raises(CheckpointUnreadable):
        reader.read(int)
    with pytest.raises(CheckpointUnreadable):
        reader.read()


def test_handles_are_for_one_direction() -> None:
    writer = write([1])
    for wrong in (lambda: writer.write(2), writer.read, lambda: read_back(writer).write(1)):
        with pytest.raises(CheckpointUnreadable):
            wrong()


@pytest.mark.parametrize(
    "value", [object(), {1: object()}, [bytearray, 1], pa.array([1])], ids=("object", "inside", "class", "array")
)
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        CheckpointWriter(sequence_id=1).write(value)


def test_a_newer_format_and_damage_are_refused() -> None:
    with pytest.raises(CheckpointUnreadable):
        Header.from_bytes(b'{"format": 2}')
    with pytest.raises(CheckpointUnreadable):
        Header.from_bytes(b"\x00")
    writer = write([b"x" * 100])
    gone = CheckpointReader(header=writer.finish(), fetch=lambda index, at: {1: writer.changed[1]}[index])
    with pytest.raises(CheckpointUnreadable):
        gone.read()
    assert CheckpointWriter(sequence_id=1).chunk_bytes == CHUNK_BYTES


def test_the_values_of_a_state_are_shown_as_texts_in_the_order_of_writing() -> None:
    """Of the newest checkpoint among the rows: its chunks may have been written by earlier ones."""
    first = CheckpointWriter(sequence_id=1)
    first.write(["a", 1])
    first.write(b"\0" * 3 * CHUNK_BYTES)
    second = CheckpointWriter(sequence_id=2, previous=first.finish())
    second.write(["a", 1])
    second.write(b"\0" * 3 * CHUNK_BYTES)
    second.write(dt.date(2020, 1, 2))
    second.finish()
    assert 1 not in second.changed, "the first chunk is as it was"
    shown = values_shown(chunk_rows("op", [first, second], are_headers_all=False))
    assert shown.column_names == ["_sequence_id", "place", "value"]
    rows = shown.to_pylist()
    assert [(row["_sequence_id"], row["place"]) for row in rows] == [(2, 1), (2, 2), (2, 3)]
    assert (rows[0]["value"], rows[2]["value"]) == ("['a', 1]", "datetime.date(2020, 1, 2)")
    elsewhere = chunk_rows("op", [first, second], are_headers_all=True)
    assert values_shown(elsewhere) is elsewhere, "chunks in a `state_store`"
    assert values_shown(elsewhere.slice(0, 0)).num_rows == 0
