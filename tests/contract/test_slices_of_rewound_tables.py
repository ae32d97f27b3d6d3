"""A slice that tells of a rewind upstream: which states are wrong, and to which one their region goes back.

The regions are fed by hand: a group is checked, and its slices are read, as `RowIntake` does it, without Spark.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from by_hand import HandFed
from chained_by_hand import Reader, place, rewound, source_of, take
from deltalake import DeltaTable

from drainmark.jobs.errors import SourceRewound
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.input.inbox import Assigned
from drainmark.orchestration.workplace.workplace import Workplace

__all__ = ["place"]


@pytest.fixture
def up(place: Workplace, tmp_path: Path) -> HandFed:
    return HandFed(place, tmp_path / "inbox", region="up/files")


@pytest.fixture
def other(place: Workplace, tmp_path: Path) -> HandFed:
    return HandFed(place, tmp_path / "others", region="other/files", names=("other",))


@pytest.fixture(params=[False, True], ids=["rows", "changes"])
def down(place: Workplace, tmp_path: Path, request: pytest.FixtureRequest) -> Reader:
    source = source_of("start", "kept", changes=request.param)
    return Reader(place, tmp_path / "none", region="down/rows", names=("read",), sources=(source,))


def test_the_remedy_leads_to_the_rows_in_force(up: HandFed, down: Reader) -> None:
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


def test_rewinds_with_replays_in_between_and_to_the_beginning(up: HandFed, down: Reader) -> None:
    for name in "abc":
        take(up, name)
        down.run()
    rewound(up, 2)
    up.drain()
    rewound(up, 1)
    up.drain(2)
    rewound(up, 0)
    rewound(up, 0)
    up.drain(3)
    down.rewind(down.halted())
    down.run()
    assert down.rows() == ["a", "b", "c"]
    rewound(up, 0)
    down.rewind(down.halted())
    down.run()
    assert down.rows() == []


def test_a_period_that_spans_a_rewind_is_right(up: HandFed, down: Reader) -> None:
    take(up, "a")
    down.run()
    take(up, "b", "c")
    rewound(up, 2)  # the file of the group has rows on both sides
    down.run()
    up.drain()
    down.run()
    assert down.rows() == ["a", "b", "c"]


def test_what_a_skipped_slice_tells_of_holds_though_another_source_goes_on(
    up: HandFed, other: HandFed, down: Reader
) -> None:
    down.sources = (*down.sources, source_of("beside", "other"))
    take(other, "x")
    for name in "ab":
        take(up, name)
        down.run()
    rewound(up, 1)
    down.skip()
    take(other, "y")
    down.run()
    up.drain()
    assert down.halted() == 1
    down.rewind(1)
    down.run()
    assert down.rows() == ["a", "b", "x", "y"]


def test_a_skipped_rewind_that_touched_nothing_read_is_passed_over(up: HandFed, down: Reader) -> None:
    take(up, "a")
    down.run()
    take(up, "b")
    down.skip()
    rewound(up, 1)
    down.skip()
    up.drain()
    down.run()
    take(up, "c")
    down.run()
    assert down.rows() == ["a", "b", "c"]


class Late(HandFed):
    """A region whose third group brings rows of the first id, as stages that are behind do."""

    def group(self, count: int) -> StagedGroup:
        staged = super().group(count)
        if staged.group.first_id != 3:
            return staged
        (table,) = staged.tables
        area = self.workplace.store(self.region).staging(table, staged.group.epoch, uuid.uuid4().hex)
        rows = staged.tables[table].rows
        assert rows is not None
        late = rows.set_column(1, "_sequence_id", pa.array([1] * len(rows), pa.int64()))
        found: Any = StagedTable(files=area.write(late, "rows"), rows=late, frame=None)  # type: ignore[arg-type]
        return replace(staged, tables={table: found})


def test_rows_of_an_earlier_id_that_came_late_hide_no_wrong_state(
    place: Workplace, tmp_path: Path, down: Reader
) -> None:
    up = Late(place, tmp_path / "inbox", region="up/files")
    for name in "abc":
        take(up, name)
        down.run()
    rewound(up, 1)
    assert down.halted() == 1


def test_a_state_beyond_the_horizon_is_no_target(up: HandFed, down: Reader) -> None:
    for name in "abcde":
        take(up, name)
        down.run()
    rewound(up, 1)
    down.horizon = 2
    assert down.halted() == 0
    down.rewind(0)
    down.run()
    assert down.rows() == ["a"]


def test_an_attempt_that_failed_before_the_rewind_condemns_nothing(up: HandFed, down: Reader) -> None:
    take(up, "a")
    down.tick()
    with down.owning():
        down.group(1)
        rewound(up, 0)
        down.tick()
        down.process(2)
    assert down.rows() == []


def test_rows_read_and_not_committed_yet_halt_at_a_state_to_which_a_rewind_can_go(up: HandFed, down: Reader) -> None:
    take(up, "a")
    down.run()
    take(up, "b")
    down.skip()
    take(up, "c")
    down.tick()
    with down.owning():
        down.group(1)
        rewound(up, 2)
        down.tick()
        with pytest.raises(SourceRewound) as caught:
            down.read(down.sources[0], behind(down)).__next__()
    assert caught.value.facts["to"] == 1


def behind(down: Reader) -> tuple[Assigned, ...]:
    """Return the slice behind a group that is still in work."""
    (_, last) = down.workplace.registry.triggers.pending(down.region, 2)
    return (Assigned(sequence_id=9, trigger=last),)


@pytest.mark.parametrize(("noted_from", "target"), [(4, 1), (3, 1), (2, 1)])
def test_states_of_an_earlier_version_are_asked_what_they_read(
    up: HandFed, down: Reader, noted_from: int, target: int
) -> None:
    for number, name in enumerate("abc", 1):
        take(up, name)
        down.notes = number >= noted_from
        down.run()
    rewound(up, 1)
    assert down.halted() == target


@pytest.mark.parametrize("down", [False], ids=["rows"], indirect=True)
def test_versions_that_left_the_log_since_the_last_slice_are_not_asked_for(up: HandFed, down: Reader) -> None:
    take(up, "a")
    down.run()
    log = down.access.table("kept").uri
    for _ in range(3):
        rewound(up, 1)  # versions without rows, as those of a compaction
    newest = int(down.access.newest_version("kept")[0])
    piece = Slice(start={"version": newest}, end={"version": newest + 1, "table": table_id(down)}, size_bytes=1)
    take(up, "b")
    DeltaTable(log).create_checkpoint()
    for version in range(newest):
        Path(log, "_delta_log", f"{version:020d}.json").unlink()
    (rows,) = down.sources[0].reads.read(piece, down.access)
    assert rows["value"].to_pylist() == ["b"]


def table_id(down: Reader) -> str:
    return str(down.access.newest_version("kept")[1])


def test_a_skipped_slice_leaves_the_later_ones_right(up: HandFed, down: Reader) -> None:
    take(up, "a")
    down.run()
    take(up, "b")
    down.skip()
    take(up, "c")
    down.run()
    assert down.rows() == ["a", "c"]
