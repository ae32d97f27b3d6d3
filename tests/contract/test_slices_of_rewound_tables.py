"""A slice that tells of a rewind upstream: which states are wrong, and to which one their region goes back.

The regions are fed by hand: a group is checked, and its slices are read, as `RowIntake` does it, without Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from by_hand import HandFed
from deltalake import DeltaTable

import drainmark as dm
from drainmark.jobs.errors import SourceRewound
from drainmark.jobs.frames.origins import ORIGIN, OriginsSeen
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.input.rewound_sources import require_in_force
from drainmark.jobs.runtime.input.slices import cut_period, slice_of
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

HORIZON = 1000


@dataclass
class Reader(HandFed):
    """A periodic region that appends the rows of one or two tables to `lake/read`; a period is a tick."""

    sources: tuple[SlicedSource, ...] = ()
    horizon: int = HORIZON
    notes: bool = True

    def tick(self) -> None:
        newest = self.workplace.registry.triggers.newest(self.region)
        trigger = cut_period(self.sources, newest.identity if newest else None, self.reach, limit=None)
        if trigger is not None:
            self.workplace.registry.triggers.add(self.region, [trigger], after=newest.order_index if newest else 0)

    def run(self, size: int = 1) -> None:
        self.tick()
        self.drain(size)

    @property
    def reach(self) -> Any:
        return self.owner.outside.reach if hasattr(self, "owner") else self.workplace.reach(self.region)

    def group(self, count: int) -> StagedGroup:
        first = self.workplace.registry.progress.take_ids(self.region, self.owner.epoch, count := len(self.next(count)))
        members = tuple(Assigned(sequence_id=first + i, trigger=each) for i, each in enumerate(self.next(count)))
        group = Group(members=members, epoch=self.owner.epoch, attempt=uuid.uuid4().hex)
        rows = [batch for source in self.sources for batch in self.read(source, members)]
        area = self.workplace.store(self.region).staging(self.tables[0], group.epoch, group.attempt)
        whole = pa.Table.from_batches(rows) if rows else None
        files = area.write(whole, "rows") if whole is not None and len(whole) else ()
        tables = {self.tables[0].name: StagedTable(files=files, rows=whole, frame=None)}  # type: ignore[arg-type]
        rows_in = {member.sequence_id: 0 for member in members}
        for batch in rows:
            rows_in[batch["_sequence_id"][0].as_py()] += batch.num_rows
        return StagedGroup(group=group, rows_in=rows_in, tables=tables, lookups={}, process_seconds=0.0,
                           drain_seconds=0.0)  # fmt: skip

    def read(self, source: SlicedSource, members: tuple[Assigned, ...]) -> Iterator[pa.RecordBatch]:
        reads: Any = source.reads
        found = ((member, slice_of(member.trigger.identity, source.name)) for member in members)
        pieces = [(member, piece) for member, piece in found if piece is not None]
        require_in_force(source, reads, pieces, self.owner.outside, self.horizon)
        for member, piece in pieces:
            seen = OriginsSeen()
            for batch in reads.read(piece, self.reach):
                seen.add(batch.column(ORIGIN))
                ids = pa.array([member.sequence_id] * batch.num_rows, pa.int64())
                if batch.num_rows:
                    yield batch.select(["value"]).append_column("_sequence_id", ids)
            if self.notes:
                member.trigger.digests[source.name] = str(seen.highest_id)
                self.reach.ids_read.note(source.name, member.trigger.order_index, seen.highest_id)

    def halted(self) -> int:
        """Run into the halt, and return the id that its remedy names."""
        with pytest.raises(SourceRewound) as caught:
            self.run()
        assert f"drainmark reset {self.region} --to {caught.value.facts['to']}, and run" in (caught.value.remedy or "")
        return int(caught.value.facts["to"])

    def rewind(self, to: int) -> None:
        with self.owning() as owner:
            owner.rewind(to, self.horizon)

    def skip(self) -> None:
        self.tick()
        with self.owning() as owner:
            owner.groups.skip(self.next(1)[0], "unwanted")

    def rows(self) -> list[str]:
        return sorted(value for _, value in self.values("read"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    found = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    yield found
    found.registry.close()


def source_of(name: str, table: str) -> SlicedSource:
    def start(scanned: Any) -> Any:
        return scanned

    start.__name__ = name
    with dm.application("down"):
        operator = dm.consistent(trigger="periodic", period=60)(dm.source(dm.TableSource(table))(start)).operator
    assert isinstance(operator, SlicedSource)
    return operator


@pytest.fixture
def up(place: Workplace, tmp_path: Path) -> HandFed:
    return HandFed(place, tmp_path / "inbox", region="up/files")


@pytest.fixture
def other(place: Workplace, tmp_path: Path) -> HandFed:
    return HandFed(place, tmp_path / "others", region="other/files", names=("other",))


@pytest.fixture
def down(place: Workplace, tmp_path: Path) -> Reader:
    return Reader(place, tmp_path / "none", region="down/rows", names=("read",), sources=(source_of("start", "kept"),))


def take(fed: HandFed, *names: str) -> None:
    for name in names:
        fed.write(name, [name])
        fed.add(name)
    fed.drain(len(names))


def rewound(fed: HandFed, to: int) -> None:
    with fed.owning() as owner:
        owner.rewind(to, HORIZON)


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


def test_versions_that_left_the_log_since_the_last_slice_are_not_asked_for(up: HandFed, down: Reader) -> None:
    take(up, "a")
    down.run()
    log = down.reach.table("kept").uri
    for _ in range(3):
        rewound(up, 1)  # versions without rows, as those of a compaction
    newest = int(down.reach.newest_version("kept")[0])
    piece = Slice(start={"version": newest}, end={"version": newest + 1, "table": table_id(down)}, size_bytes=1)
    take(up, "b")
    DeltaTable(log).create_checkpoint()
    for version in range(newest):
        Path(log, "_delta_log", f"{version:020d}.json").unlink()
    (rows,) = down.sources[0].reads.read(piece, down.reach)
    assert rows["value"].to_pylist() == ["b"]


def table_id(down: Reader) -> str:
    return str(down.reach.newest_version("kept")[1])
