"""The places of rows that Spark has read: those in their file, independent of other files in its task."""

from __future__ import annotations

import pyarrow as pa

from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.runtime.input.materialisation import _from_zero

PLACE = pa.struct([("block", pa.int64()), ("row", pa.int64())])


def read(*rows: tuple[int, int, int]) -> pa.Table:
    places = [{"block": block, "row": row} for _, block, row in rows]
    ids = pa.array([number for number, _, _ in rows], pa.int64())
    return pa.table({SEQUENCE_ID: ids, POSITION: pa.array(places, PLACE), "x": pa.array(range(len(rows)))})


def test_rows_are_numbered_from_0_in_each_block_of_a_file() -> None:
    table = read((2, 0, 5), (1, 0, 3), (1, 0, 4), (2, 0, 6), (1, 128, 0), (1, 128, 1), (3, 0, 9))
    found = _from_zero(table).to_pylist()
    assert [row["x"] for row in found] == [*range(7)], "their order is not touched"
    places = [(row[SEQUENCE_ID], row[POSITION]["block"], row[POSITION]["row"]) for row in found]
    assert places == [(2, 0, 0), (1, 0, 0), (1, 0, 1), (2, 0, 1), (1, 128, 0), (1, 128, 1), (3, 0, 0)]
    assert _from_zero(read()).num_rows == 0
