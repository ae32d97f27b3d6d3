"""A region that follows the changes of a table halts if they were withdrawn upstream, and its remedy is right; fed by
hand, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_hand import HandFed
from chained_by_hand import Reader, place, rewound, source_of, take

from drainmark.orchestration.workplace.workplace import Workplace

__all__ = ["place"]


@pytest.fixture
def up(place: Workplace, tmp_path: Path) -> HandFed:
    return HandFed(place, tmp_path / "inbox", region="up/files")


@pytest.fixture
def down(place: Workplace, tmp_path: Path) -> Reader:
    source = source_of("start", "kept", changes=True)
    return Reader(place, tmp_path / "none", region="down/rows", names=("read",), sources=(source,))


def test_the_remedy_leads_to_the_changes_in_force(up: HandFed, down: Reader) -> None:
    for name in "abc":
        take(up, name)
        down.run()
    rewound(up, 1)
    assert down.halted() == 1
    down.rewind(1)
    down.run()
    assert down.rows() == ["a"]
    up.drain()
    down.run()
    assert down.rows() == ["a", "b", "c"]


def test_the_whole_table_is_read_again_after_a_rewind_to_the_beginning(up: HandFed, down: Reader) -> None:
    take(up, "a", "b")
    down.run()
    assert down.rows() == ["a", "b"]
    rewound(up, 0)
    up.drain(2)
    assert down.halted() == 0
    down.rewind(0)
    down.run()
    down.run()
    assert down.rows() == ["a", "b"]


def test_a_skipped_slice_leaves_the_later_ones_right(up: HandFed, down: Reader) -> None:
    take(up, "a")
    down.run()
    take(up, "b")
    down.skip()
    take(up, "c")
    down.run()
    assert down.rows() == ["a", "c"]
