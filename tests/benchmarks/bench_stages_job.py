"""The job of part `stages` as a Drainmark application, and a run of it that times its states.

The job is source, map, map, sleepy map, measuring map, and a table. There is a channel between each two of them, so
each is a stage. A file is a group, a batch in each channel, and a state.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_input import WrongResult
from bench_passages import Passage, require_rows

import drainmark as dm
from drainmark import F
from drainmark.jobs.runtime.commit.commit_point import GroupCommits
from drainmark.jobs.runtime.stages.pipeline import Pipeline
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.testing.processing import settings_of
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.protocol.records.triggers import Trigger
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.commit.staged_group import StagedGroup
    from drainmark.jobs.runtime.outside import Report
    from drainmark.resources.spark.session import SparkEngine

SCHEMA = "id bigint"
_OUTPUT = "id bigint, x double"
_TABLE = "measured"
_LONG = dt.timedelta(minutes=30)
_NAP_US = 1000
"""A row that sleeps does so for a millisecond, and only some rows sleep: as in Flink's job."""
_fresh_ids = itertools.count(10_000, 10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A way to establish states.

    Attributes:
        parameters: the parameters of `dm.consistent`.
        has_states: states are established while the flow is full; otherwise only one at the end.
    """

    parameters: Mapping[str, Any]
    has_states: bool = True


MODES = {
    "aligned": Mode(parameters={"alignment": "aligned"}),
    "unaligned": Mode(parameters={"alignment": "unaligned", "channels": "memory"}),
    "unaligned_durable": Mode(parameters={"alignment": "unaligned", "channels": "durable"}),
    "without": Mode(parameters={"alignment": "aligned", "checkpoint_interval": dt.timedelta(0)}, has_states=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The input, and the size of the channels.

    Attributes:
        files, rows: number of input files, and of rows in each.
        batches: number of batches that a channel holds.
        sleepers: number of threads that share the rows of a batch.
    """

    files: int
    rows: int
    batches: int
    sleepers: int


def write_numbers(inbox: Path, load: Load) -> None:
    """Write Parquet files with consecutive row numbers from 0."""
    inbox.mkdir(parents=True)
    for number in range(load.files):
        first = number * load.rows
        pq.write_table(pa.table({"id": np.arange(first, first + load.rows)}), inbox / f"{number:06d}.parquet")


# --- the application ----------------------------------------------------------------------------------------------


def application(inbox: Path, load: Load, sleep_us: int, mode: Mode) -> Opened:
    """Return the application of the job over a folder.

    Args:
        sleep_us: mean sleep of the sleepy map for a row, in µs.
    """
    every = _NAP_US // sleep_us if sleep_us else 0

    class Sleepy(dm.StateHandler):
        """A map that sleeps for the same rows as Flink's map, one row after another in each of several threads."""

        def process(self, rows: pa.Table, context: Any) -> pa.Table:
            shares = dealt(rows["id"].to_pylist(), every, load.sleepers) if every else []
            with ThreadPoolExecutor(load.sleepers) as sleepers:
                list(sleepers.map(_sleep_through, shares))
            return rows.select(["id", "x"])

    class Measuring(dm.StateHandler):
        def process(self, rows: pa.Table, context: Any) -> pa.Table:
            now = np.full(rows.num_rows, time.time())
            return pa.table({"id": rows["id"], "x": rows["x"], "measured": now})

    def through(stream: Any) -> Any:
        return dm.buffered(stream, batches=load.batches)

    with dm.application("stages") as declared:

        @dm.consistent(trigger="operator-driven", group_timeout=_LONG, **mode.parameters)
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.parquet", format="parquet", schema=SCHEMA, settle=0))
        def numbers(scanned: DataFrame) -> DataFrame:
            return scanned.drop("source_file")

        first = dm.functor(_halved, name="first", inputs=[through(numbers)])
        second = dm.functor(_one_more, name="second", inputs=[through(first)])
        sleepy = dm.operator(Sleepy, output=_OUTPUT, name="sleepy", inputs=[through(second)])
        measuring = dm.operator(
            Measuring, output=f"{_OUTPUT}, measured double", name="measuring", inputs=[through(sleepy)]
        )
        dm.sink(measuring, dm.DeltaAppend(_TABLE))
    return open_application(dm.build_application(declared))


def dealt(numbers: Sequence[int], every: int, sleepers: int) -> list[list[int]]:
    """Return the rows that each sleeper sleeps for: equal numbers, or one more, in any order of the rows.

    Rows that do not sleep cost nothing, so only rows that sleep are dealt. If all rows were dealt in turns, one of 2 or
    5 sleepers would get every tenth row, which are all that sleep.
    """
    sleeping = [number for number in numbers if number % every == 0]
    return [sleeping[share::sleepers] for share in range(sleepers)]


def _sleep_through(numbers: Sequence[int]) -> None:
    for _ in numbers:
        time.sleep(_NAP_US / 1e6)


def _halved(rows: DataFrame) -> DataFrame:
    return rows.withColumn("x", F.col("id") / 2)


def _one_more(rows: DataFrame) -> DataFrame:
    return rows.withColumn("x", F.col("x") + 1)


# --- timing -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Watch:
    """The times at which groups begin and become durable, by sequence id, in seconds of the wall clock.

    Attributes:
        begun: the time before the region takes an id for a trigger; nothing of the trigger is read.
        durable: the time after the commit of the checkpoint table's row with the id.
    """

    begun: dict[int, float] = field(default_factory=dict)
    durable: dict[int, float] = field(default_factory=dict)

    @property
    def states(self) -> Sequence[tuple[float, float]]:
        return [(self.begun[number], durable) for number, durable in self.durable.items()]


@contextmanager
def watched() -> Iterator[Watch]:
    """Time two calls of the product in staged runs of this process; nothing else of the product changes."""
    watch = Watch()
    give, commit = Pipeline.give, GroupCommits.commit

    def given(pipeline: Pipeline, pending: Sequence[Trigger]) -> None:
        now = time.time()
        give(pipeline, pending)
        watch.begun.update((member.sequence_id, now) for member in pipeline.stages.groups[-1].members)

    def committed(groups: GroupCommits, staged: StagedGroup) -> Any:
        row = commit(groups, staged)
        now = time.time()
        watch.durable.update((member.sequence_id, now) for member in staged.group.members)
        return row

    with patch.object(Pipeline, "give", given), patch.object(GroupCommits, "commit", committed):
        yield watch


# --- a run --------------------------------------------------------------------------------------------------------


def drained(
    place: Workplace, opened: Opened, region: RegionPlan, *, files: int = 1, report: Report = lambda step, numbers: None
) -> None:
    """Claim a region, process the pending triggers and hand it over; an error that ends the run is raised again.

    Args:
        files: the most files in a group.
    """
    run = region_run(place, opened, region, max_group=files, report=report)
    error: BaseException | None = None
    try:
        run.claim()
        # Spark caches generated code by its text, which includes ids: ids of an earlier run would cost less.
        place.registry.progress.take_ids(region.name, run.owner.epoch, next(_fresh_ids))
        for _ in run.groups():
            pass
    except BaseException as raised:
        error = raised
        raise
    finally:
        run.hand_over(error)


def passage(engine: SparkEngine, inbox: Path, home: Path, load: Load, *, sleep_us: int, mode: Mode) -> Passage:
    """Run the job over a folder in a home of its own.

    Raises:
        WrongResult: rows were lost or doubled, or the region was not cut into the right stages.
    """
    place = Workplace(settings_of(home, inbox.parent))
    place.use_engine(engine)
    opened = application(inbox, load, sleep_us, mode)
    region = opened.region()
    if len(region.stages) != 5 or len(region.channels) != 4:
        raise WrongResult(f"{len(region.stages)} stages and {len(region.channels)} channels, 5 and 4 were to be")
    scan_region(place, region)
    with watched() as watch:
        drained(place, opened, region)
    rows = left_in(place, region.name, _TABLE)
    place.registry.close()
    require_rows(f"Drainmark, {sleep_us} µs", *(rows[name].to_numpy() for name in ("id", "x")), load.files * load.rows)
    if watch.begun.keys() != watch.durable.keys() or len(watch.begun) != load.files:
        raise WrongResult(f"{len(watch.begun)} groups began, {len(watch.durable)} became states, of {load.files}")
    begun = np.vectorize(watch.begun.__getitem__, otypes=[float])
    return Passage(
        created=begun(rows["_sequence_id"].to_numpy()),
        measured=rows["measured"].to_numpy(),
        states=watch.states if mode.has_states else (),
    )


def left_in(place: Workplace, region: str, name: str) -> pa.Table:
    """Return the rows of a published table: every file of its newest version."""
    table = place.store(region).table(f"lake/{name}")
    return pa.concat_tables(list(table.files.read_each(table.files.live())), promote_options="permissive")
