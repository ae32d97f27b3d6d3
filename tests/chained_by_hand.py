"""Regions fed by hand that read tables of other regions; a period is a tick.

A group is checked, and its slices are read, as `RowIntake` does it, without Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from by_hand import HandFed
from slices_by_hand import read_slices

import drainmark as dm
from drainmark.jobs.errors import SourceRewound
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.input.slices import cut_period
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

HORIZON = 1000


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    """Yield the home of a chain."""
    found = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    yield found
    found.registry.close()


@pytest.fixture
def one(place: Workplace, tmp_path: Path) -> HandFed:
    """Return the region at the top of a chain, which reads files."""
    return HandFed(place, tmp_path / "inbox", region="one/files", names=("first",))


@dataclass
class Reader(HandFed):
    """A periodic region that appends the rows of one or two tables to `lake/read`; a period is a tick."""

    sources: tuple[SlicedSource, ...] = ()
    horizon: int = HORIZON
    notes: bool = True

    def tick(self) -> None:
        newest = self.workplace.registry.triggers.newest(self.region)
        trigger = cut_period(self.sources, newest.identity if newest else None, self.access, limit=None)
        if trigger is not None:
            self.workplace.registry.triggers.add(self.region, [trigger], after=newest.order_index if newest else 0)

    def run(self, size: int = 1) -> None:
        self.tick()
        self.drain(size)

    @property
    def access(self) -> Any:
        return self.owner.outside.access if hasattr(self, "owner") else self.workplace.access(self.region)

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
        for number, batches in read_slices(source, members, self.owner.outside, self.horizon, notes=self.notes):
            for batch in batches:
                ids = pa.array([number] * batch.num_rows, pa.int64())
                yield batch.select(["value"]).append_column("_sequence_id", ids)

    def halted(self) -> int:
        """Run into the halt, and return the id that its remedy names."""
        with pytest.raises(SourceRewound) as caught:
            self.run()
        to = int(caught.value.facts["to"])
        assert f"drainmark reset {self.region} --to {to} --cascade, and run" in (caught.value.remedy or "")
        return to

    def rewind(self, to: int) -> None:
        with self.owning() as owner:
            owner.rewind(to, self.horizon)

    def skip(self) -> None:
        self.tick()
        with self.owning() as owner:
            owner.groups.skip(self.next(1)[0], "unwanted")

    def rows(self) -> list[str]:
        return sorted(value for _, value in self.values())


def source_of(name: str, table: str, **options: Any) -> SlicedSource:
    def start(scanned: Any) -> Any:
        return scanned

    start.__name__ = name
    with dm.application("down"):
        operator = dm.consistent(trigger="periodic", period=60)(
            dm.source(dm.TableSource(table, **options))(start)
        ).operator
    assert isinstance(operator, SlicedSource)
    return operator


def take(fed: HandFed, *names: str) -> None:
    for name in names:
        fed.write(name, [name])
        fed.add(name)
    fed.drain(len(names))


def rewound(fed: HandFed, to: int) -> None:
    with fed.owning() as owner:
        owner.rewind(to, HORIZON)
