"""Rows in memory in the order of their stream; rows without a position come first (E8)."""

from __future__ import annotations

import pyarrow as pa

from drainmark.jobs.frames.row_order import in_order, rows_by_id
from drainmark.jobs.state.keyed_rows import last_rows_per_key

PLACE = pa.struct([("block", pa.int64()), ("row", pa.int64())])


def tagged(*rows: tuple[int, tuple[int, int] | None, str]) -> pa.Table:
    """Return rows of (id, position, x), in two chunks."""

    def chunk(some: tuple[tuple[int, tuple[int, int] | None, str], ...]) -> pa.Table:
        places = [None if at is None else {"block": at[0], "row": at[1]} for _, at, _ in some]
        return pa.table({
            "_sequence_id": pa.array([number for number, _, _ in some], pa.int64()),
            "_position": pa.array(places, PLACE), "x": pa.array([x for _, _, x in some], pa.string()),
        })  # fmt: skip

    return pa.concat_tables([chunk(rows[:1]), chunk(rows[1:])])


ROWS = tagged((2, (0, 1), "e"), (1, (1, 0), "c"), (2, None, "d"), (1, (0, 7), "b"), (1, None, "a"), (3, None, "f"))


def test_rows_without_a_position_come_first_of_their_id() -> None:
    assert in_order(ROWS)["x"].to_pylist() == ["a", "b", "c", "d", "e", "f"]
    assert {number: rows["x"].to_pylist() for number, rows in rows_by_id(ROWS).items()} == {
        1: ["a", "b", "c"], 2: ["d", "e"], 3: ["f"],
    }  # fmt: skip


def test_ids_alone_are_an_order_too() -> None:
    bare = ROWS.drop_columns(["_position"])
    assert in_order(bare)["_sequence_id"].to_pylist() == [1, 1, 1, 2, 2, 3]
    assert in_order(ROWS.slice(0, 0)).num_rows == 0


def test_the_last_rows_of_a_key_go_by_the_same_order() -> None:
    keyed = ROWS.append_column("k", pa.array(["k"] * ROWS.num_rows))
    assert sorted(last_rows_per_key(keyed, ["k"], 2)["x"].to_pylist()) == ["e", "f"]
    assert sorted(last_rows_per_key(keyed, ["k"], 5)["x"].to_pylist()) == ["b", "c", "d", "e", "f"]
