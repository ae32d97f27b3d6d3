"""Part `persisting`: writing the batches in flight with a state, against draining them first (V202).

Streams drains the connections before it takes a state; Flink writes the records in them. The authors of Streams left
the comparison open. The job is a source, a channel, and a stage that only passes the rows on to a table: the case in
which draining is cheapest. The stage waits until the channel holds the given MB, in batches of 2 MB that are not
written yet. Then a state of all of them is requested, the stage goes on at the same moment, and the clock runs until
the row of the state is committed.

- `persist_seconds_<mb>mb`: unaligned; the batches are written, and the stage works meanwhile.
- `drain_seconds_<mb>mb`: aligned; the stage processes all batches, and its rows are staged.
- `persist_over_drain_<mb>mb`: the former over the latter, for runs of the same round.

Every row of the table is counted at the end of each run.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_input import WrongResult
from bench_results import Figures, spread
from bench_stages_job import drained, left_in
from rich.console import Console

import drainmark as dm
from drainmark.jobs.runtime.commit.commit_point import GroupCommits
from drainmark.jobs.runtime.stages.connected_stages import ConnectedStages
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.testing.processing import settings_of
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.spark.session import SparkEngine

if TYPE_CHECKING:
    from drainmark.jobs.runtime.commit.staged_group import StagedGroup

BATCH_MB = 2
MEGABYTES = {False: (2, 8, 32, 64), True: (8, 32)}
"""The MB in flight, by `quick`."""
PAYLOAD_BYTES = 1000
BATCH_ROWS = BATCH_MB * 1000
_OUTPUT = "id bigint, payload string"
_TABLE = "passed"
_PATIENCE_SECONDS = 600.0

WAYS: Mapping[str, Mapping[str, Any]] = {
    "persist": {"alignment": "unaligned", "channels": "memory"},
    # An aligned region commits groups as they are done; with an interval of 0 there is one commit, of all groups.
    "drain": {"alignment": "aligned", "checkpoint_interval": dt.timedelta(0)},
}


@dataclass(slots=True)
class Filling:
    """A hold on the reading stage until the channel is full, and the time that the state takes then.

    Attributes:
        batches: number of batches that should be in flight.
        flows: set when they are in flight.
        found: (batches, bytes) that were in flight.
        asked, durable: monotonic times at which the first state was requested, and committed.
        ids: number of ids of that state.
    """

    batches: int
    flows: threading.Event = field(default_factory=threading.Event)
    found: tuple[int, int] = (0, 0)
    asked: float | None = None
    durable: float | None = None
    ids: int = 0

    def is_full(self, stages: ConnectedStages) -> bool:
        board = stages.board
        if board is None or len(board.groups) < self.batches:
            return False
        return board.exchange.begun >= board.groups[-1].last_id

    def begin(self, stages: ConnectedStages) -> None:
        if stages.board is not None:
            exchange = stages.board.exchange
            batches = sum(channel.batches for channel in exchange.channels.values())
            self.found = batches, exchange.budget.used
        self.asked = time.monotonic()
        self.flows.set()

    def seconds(self) -> float:
        """Return the seconds of the state.

        Raises:
            WrongResult: the state, or the channel, did not have the wanted number of batches.
        """
        if self.asked is None or self.durable is None or (self.found[0], self.ids) != (self.batches, self.batches):
            raise WrongResult(f"{self.found[0]} batches in flight, a state of {self.ids} files, of {self.batches}")
        return self.durable - self.asked


@contextmanager
def holding(filling: Filling) -> Iterator[None]:
    """Keep staged runs of this process from requesting a state until the channel is full; later they run normally."""
    due, commit = ConnectedStages.due, GroupCommits.commit

    def asked(stages: ConnectedStages, *, is_final: bool) -> StagedGroup | None:
        if filling.asked is None:
            if not filling.is_full(stages):
                return None
            filling.begin(stages)
        return due(stages, is_final=is_final)

    def committed(groups: GroupCommits, staged: StagedGroup) -> Any:
        row = commit(groups, staged)
        if filling.durable is None:
            filling.durable, filling.ids = time.monotonic(), len(staged.group.members)
        return row

    with patch.object(ConnectedStages, "due", asked), patch.object(GroupCommits, "commit", committed):
        yield


# --- the application ----------------------------------------------------------------------------------------------


def write_batches(inbox: Path, batches: int) -> None:
    """Write Parquet files of 2 MB, with consecutive row numbers; their content does not compress."""
    inbox.mkdir(parents=True)
    chance = np.random.default_rng(7)
    for number in range(batches):
        letters = chance.integers(33, 126, size=BATCH_ROWS * PAYLOAD_BYTES, dtype=np.uint8)
        offsets = np.arange(0, (BATCH_ROWS + 1) * PAYLOAD_BYTES, PAYLOAD_BYTES, dtype=np.int32)
        payload = pa.StringArray.from_buffers(BATCH_ROWS, pa.py_buffer(offsets), pa.py_buffer(letters))
        ids = np.arange(number * BATCH_ROWS, (number + 1) * BATCH_ROWS)
        pq.write_table(pa.table({"id": ids, "payload": payload}), inbox / f"{number:06d}.parquet")


def application(inbox: Path, filling: Filling, way: Mapping[str, Any]) -> Opened:
    """Return an application of a source, a channel, and a stage that waits and then passes all rows on."""

    class Passing(dm.StateHandler):
        def process(self, rows: pa.Table, context: Any) -> pa.Table:
            if not filling.flows.wait(_PATIENCE_SECONDS):
                raise TimeoutError("the channel was never full")
            return rows.select(["id", "payload"])

    with dm.application("persisting") as declared:

        @dm.consistent(trigger="operator-driven", group_timeout=dt.timedelta(seconds=2 * _PATIENCE_SECONDS), **way)
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.parquet", format="parquet", schema=_OUTPUT, settle=0))
        def batches(scanned: Any) -> Any:
            return scanned.drop("source_file")

        through = dm.buffered(batches, batches=filling.batches + 1, size="1 GB")
        dm.sink(dm.operator(Passing, output=_OUTPUT, name="passing", inputs=[through]), dm.DeltaAppend(_TABLE))
    return open_application(dm.build_application(declared))


# --- measuring ----------------------------------------------------------------------------------------------------


def measure(console: Console, *, quick: bool, root: Path, rounds: int) -> Figures:
    """Measure both ways in turns, for each amount in flight.

    Raises:
        WrongResult: a row is lost or doubled, or the measured state is not the wanted one.
    """
    engine = SparkEngine("local[*]", {}, root / "spark")
    figures: Figures = {}
    try:
        _warm_up(engine, root)
        for megabytes in MEGABYTES[quick]:
            batches = megabytes // BATCH_MB
            inbox = root / f"{megabytes}mb" / "in"
            write_batches(inbox, batches)
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            for number in range(rounds):
                for way in list(WAYS)[:: -1 if number % 2 else 1]:
                    seconds[way].append(once(engine, inbox, root / f"{way}-{megabytes}-{number}", batches, way))
                persisted, drained_in = seconds["persist"][-1], seconds["drain"][-1]
                console.print(f"[dim]{megabytes} MB in flight: written in {persisted:.3f} s, "
                              f"drained in {drained_in:.3f} s[/dim]")  # fmt: skip
            for way, each in seconds.items():
                figures |= spread(f"{way}_seconds_{megabytes}mb", each)
            quotients = [some / other for some, other in zip(seconds["persist"], seconds["drain"], strict=True)]
            figures |= spread(f"persist_over_drain_{megabytes}mb", quotients)
    finally:
        engine.stop()
    return figures


def _warm_up(engine: SparkEngine, root: Path) -> None:
    inbox = root / "warm" / "in"
    write_batches(inbox, 2)
    for way in WAYS:
        once(engine, inbox, root / f"warm-{way}", 2, way)


def once(engine: SparkEngine, inbox: Path, home: Path, batches: int, way: str) -> float:
    """Run the application in a home of its own; return the seconds of the state."""
    place = Workplace(settings_of(home, inbox.parent))
    place.use_engine(engine)
    filling = Filling(batches=batches)
    opened = application(inbox, filling, WAYS[way])
    region = opened.region()
    scan_region(place, region)
    with holding(filling):
        drained(place, opened, region)
    found = np.sort(left_in(place, region.name, _TABLE)["id"].to_numpy())
    place.registry.close()
    if not np.array_equal(found, np.arange(batches * BATCH_ROWS)):
        raise WrongResult(f"{way}: {len(found)} rows, {len(np.unique(found))} apart, of {batches * BATCH_ROWS}")
    return filling.seconds()
