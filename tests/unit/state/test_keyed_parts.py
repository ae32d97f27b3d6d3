"""Keys of many rows, read in parts: the same number of keys and the same last rows as all at once (DX1)."""

from __future__ import annotations

import math
import random
import struct
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from drainmark.jobs.state import keyed_parts
from drainmark.jobs.state.keyed_rows import last_per_key, rows_of_keys

pytestmark = pytest.mark.seed("DX1")

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.float64()), ("day", pa.date32()), ("_sequence_id", pa.int64())])
KEYS = ["k", "x", "day"]
OTHER_NAN = struct.unpack("d", (0xFFF8000000000000).to_bytes(8, sys.byteorder))[0]
"""The NaN that Spark returns for an undefined sum or root."""

VALUES = (["a", "b", "nan", "", None], [0.0, -0.0, math.nan, OTHER_NAN, 1.5, None], [0, 2_932_897, None])


@pytest.fixture
def tables() -> list[pa.Table]:
    """Return tables that share keys; some days are outside the range of Python's dates."""
    chance = random.Random(7)
    number = iter(range(10_000))

    def table(count: int) -> pa.Table:
        k, x, day = ([chance.choice(values) for _ in range(count)] for values in VALUES)
        days = pa.array(day, pa.int32()).cast(pa.date32())
        ids = pa.array([next(number) for _ in range(count)], pa.int64())
        return pa.table([pa.array(k, pa.string()), pa.array(x, pa.float64()), days, ids], schema=SCHEMA)

    return [table(count) for count in (400, 0, 1, 600)]


def test_keys_are_counted_and_found_in_parts_as_at_once(
    tables: list[pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = last_per_key(pa.concat_tables(tables), KEYS)
    assert whole.num_rows == 5 * 4 * 3
    assert keyed_parts.count_keys(lambda: tables, 1001, KEYS) == whole.num_rows
    monkeypatch.setattr(keyed_parts, "ROWS_AT_ONCE", 80)
    monkeypatch.setattr(keyed_parts, "HASHES_AT_ONCE", 160)
    readings = []

    def read() -> Iterator[pa.Table]:
        readings.append(0)
        yield from tables

    assert keyed_parts.count_keys(read, 1001, KEYS) == whole.num_rows
    assert len(readings) == 7, "a reading a part"
    parts = list(keyed_parts.last_of_keys(read, 1001, KEYS))
    assert len(parts) > 6
    assert max(part.num_rows for part in parts) < whole.num_rows / 3
    ids = sorted(number for part in parts for number in part["_sequence_id"].to_pylist())
    assert ids == sorted(whole["_sequence_id"].to_pylist())
    assert keyed_parts.count_keys(list, 0, KEYS) == 0


def test_texts_that_nobody_can_read_are_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cast of bytes gives such texts; the texts of a large group are not checked."""
    monkeypatch.setattr(keyed_parts, "ROWS_AT_ONCE", 1)
    odd = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"\xfe"], pa.binary()).buffers())
    assert keyed_parts.count_keys(lambda: [pa.table({"k": odd})], 2, ["k"]) == 2


def test_rows_of_a_key_that_is_another_nan_are_found() -> None:
    table = pa.table({"x": [math.nan, OTHER_NAN, 1.0], "n": [1, 2, 3]})
    for asked in (math.nan, OTHER_NAN):
        assert rows_of_keys(table, pa.table({"x": [asked]}), ["x"])["n"].to_pylist() == [1, 2]


def test_keys_with_structs_arrays_and_maps_have_parts() -> None:
    pairs = pa.map_(pa.string(), pa.float64())
    rows = pa.table(
        {
            "n": [1, 2, 1, 1],
            "s": pa.array([{"a": 0.0}, {"a": 1.0}, {"a": -0.0}, None]),
            "l": pa.array([[1], [], [1], None]),
            "m": pa.array([[("x", 1.0), ("y", 2.0)], [], [("y", 2.0), ("x", 1.0)], None], pairs),
        }
    )
    found = keyed_parts.part_numbers(rows, ["n", "s", "l", "m"], 1000).tolist()
    assert found[0] == found[2] != found[1]
    assert keyed_parts.part_numbers(rows, ["s", "l", "m"], 1000).tolist() == [0, 0, 0, 0]
