"""`python tests/benchmarks/bench_checkpoints.py`: how much throughput is kept while state is checkpointed (N31, N32).

A source of Parquet files, a chain of 64 functors, and behind it a window over the last rows of each of 16 keys, of 8
or 512 MB in typed columns. A file is a period's worth of input; how hard the functors work is set once, so that a
period takes about eight seconds with the smallest window. The window is filled before anything is measured.

- *none*: the same source, functors and window by Spark alone, appended to the same kind of table: no region, no state
  written, no checks. Pipelined as a region is: the next file is read and computed while the window of one is written.
- *whole*: a region, one consistent state a file, and each state writes the whole window, as in the paper. Drainmark
  never does so by itself: the benchmark makes it think that a state is always due to be written whole.
- *incremental*: the same as Drainmark does it. A state writes the rows that are new in the window, some megabytes, and
  the window whole only when the changes exceed half of it, which the larger one does not see while measured.

*Blocking* and *non-blocking* say whether the flow waits until a state is written. All ways have the product's default
heap. `small_group_bytes` is a megabyte: a group of a few megabytes goes to one core by default, which is right where
rows cost little. `written_<size>mb_<way>` are the megabytes in the files that a state leaves, on average.

Kept is the seconds of a period with *none* over those with checkpoints. A period is measured from one group's report to
the next, with *none* from one file's rows in the table to the next one's, while the flow is full. The mean has a 95 %
interval by Student's t over the periods of two rounds of each way, in turns: the JVM grows faster with time. A third
one, before anything is measured, warms it up. Files arrive faster than they are processed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_input import WrongResult
from rich.console import Console

import drainmark as dm
from drainmark import F
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.operators.windows.sliding import SlidingAggregate
from drainmark.jobs.protocol.history import RegionHistory, manifest_of
from drainmark.jobs.state.keyed_state import KeyedState
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZES = (8, 512)
FUNCTORS = 64
KEYS = 16
SPREAD_BYTES = 1 << 20
"""`small_group_bytes`: small enough that eight seconds of work on five megabytes are spread over the cores."""
PAYLOAD_BYTES = 200
ROW_BYTES = PAYLOAD_BYTES + 8 + 8 + 16 + 8
"""The bytes of payload, key, value, place in the file and sequence id."""
PERIOD_ROWS = 24_000
PERIOD_SECONDS = 8.0
PERIODS = 3
ROUNDS = 2
FILL_ROWS = 2_400_000
SCHEMA = "key bigint, x double, payload string, work int"
LONG_AGO = 1_000_000_000
NONE = "none"
LEAD = 2
"""Number of files between those that fill the window, whose state is still being written, and the measured ones."""
MOST_HASHES = 30
T_975 = {4: 2.776, 10: 2.228}
_MEGABYTE = 2**20


@dataclass(frozen=True, slots=True)
class Way:
    """A way to write a region's states.

    Attributes:
        key: the way's part of the names of figures.
        checkpoints: the parameter of `dm.consistent`.
        is_whole: each state writes the whole window.
    """

    key: str
    checkpoints: str
    is_whole: bool


WAYS = (
    Way("whole_nonblocking", "non-blocking", True),
    Way("whole_blocking", "blocking", True),
    Way("incremental_nonblocking", "non-blocking", False),
    Way("incremental_blocking", "blocking", False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A window's size, and its input.

    Attributes:
        work: hashes that a functor computes for a row of a measured file; for files that only fill the window it is 0.
        periods: number of measured periods.
    """

    megabytes: int
    work: int
    periods: int

    @property
    def rows(self) -> int:
        return self.megabytes * 2**20 // ROW_BYTES

    @property
    def fills(self) -> int:
        return math.ceil(self.rows / FILL_ROWS)


def measure(
    console: Console, *, quick: bool, root: Path, engine: SparkEngine | None = None, sizes: Sequence[int] = SIZES
) -> dict[str, float]:
    """Measure every window in every mode.

    Args:
        quick: only the first window, periods of a second, one round.
        root: an empty folder on a disk that holds twenty gigabytes.

    Returns:
        `kept_<size>mb_<way>`, fractions, with `_low` and `_high` for the 95 % interval; `seconds_<size>mb_<way>`, the
        mean seconds of a period; `written_<size>mb_<way>`, megabytes a state.
    """
    engine = engine or SparkEngine(f"local[{os.cpu_count()}]", {}, root / "spark")
    sizes = sizes[:1] if quick else sizes
    warm_up(engine, root / "warm-up")
    work = calibrated(engine, root / "calibration", PERIOD_SECONDS / 8 if quick else PERIOD_SECONDS)
    console.print(f"64 functors of {work} hashes a row, {PERIOD_ROWS} rows a period", highlight=False)
    found: dict[str, float] = {"hashes": work}
    for size in sizes:
        load = Load(megabytes=size, work=work, periods=PERIODS)
        folder = root / f"{size}mb"
        inbox = written(folder / "inbox", load)
        seconds: dict[str, list[float]] = {key: [] for key in (NONE, *(way.key for way in WAYS))}
        for _ in range(1 if quick else ROUNDS):
            seconds[NONE] += without_region(engine, inbox, folder / NONE, load)
            for way in WAYS:
                taken, megabytes = with_region(engine, inbox, folder, load, way)
                seconds[way.key] += taken
                found[f"written_{size}mb_{way.key}"] = round(megabytes, 2)
                console.print(f"{size} MB, {way.key}: {megabytes:.1f} MB a state", highlight=False)
        found.update(compared(size, seconds))
        for key, values in seconds.items():
            console.print(f"{size} MB, {key}: {[round(value, 2) for value in values]} s", highlight=False)
        shutil.rmtree(folder)
    return found


def warm_up(engine: SparkEngine, folder: Path) -> None:
    """Let the JVM compile the code that all ways run."""
    load = Load(megabytes=2 * SIZES[0], work=2, periods=PERIODS)
    inbox = written(folder / "inbox", load)
    without_region(engine, inbox, folder / NONE, load)
    with_region(engine, inbox, folder, load, WAYS[0])
    shutil.rmtree(folder)


def compared(size: int, seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return the fraction of the throughput that each mode keeps, with its interval (delta method)."""
    found = {}
    base = seconds[NONE]
    for way, measured in seconds.items():
        key = f"{size}mb_{way}"
        found[f"seconds_{key}"] = statistics.mean(measured)
        if way == NONE:
            continue
        kept = statistics.mean(base) / statistics.mean(measured)
        spread = math.sqrt(_relative_variance(base) + _relative_variance(measured))
        half = T_975[len(base) + len(measured) - 2] * kept * spread
        found.update({f"kept_{key}": kept, f"kept_{key}_low": kept - half, f"kept_{key}_high": kept + half})
    return found


def _relative_variance(values: Sequence[float]) -> float:
    return statistics.variance(values) / len(values) / statistics.mean(values) ** 2


# --- input --------------------------------------------------------------------------------------------------------


def written(inbox: Path, load: Load) -> Path:
    """Write the files that fill the window, then `LEAD` files, the measured ones, and one more."""
    inbox.mkdir(parents=True)
    chance = np.random.default_rng(7)
    sizes = [*([load.rows // load.fills] * load.fills), *([PERIOD_ROWS] * (LEAD + load.periods + 1))]
    for number, count in enumerate(sizes):
        path = inbox / f"{number:04d}.parquet"
        work = load.work if number >= load.fills else 0
        pq.write_table(_rows(chance, count, work), path, row_group_size=count // 16)  # every core gets its share
        os.utime(path, (LONG_AGO, LONG_AGO))
    return inbox


def _rows(chance: Any, count: int, work: int) -> pa.Table:
    letters = chance.integers(33, 126, size=count * PAYLOAD_BYTES, dtype=np.uint8)
    offsets = np.arange(0, (count + 1) * PAYLOAD_BYTES, PAYLOAD_BYTES, dtype=np.int32)
    payload = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
    return pa.table(
        {
            "key": pa.array(np.arange(count) % KEYS),
            "x": pa.array(chance.random(count)),
            "payload": payload,
            "work": pa.array(np.full(count, work, dtype=np.int32)),
        }
    )


# --- the application ----------------------------------------------------------------------------------------------


def functor(rows: DataFrame, number: int) -> DataFrame:
    """Compute as many hashes for each row as its `work` says; `x` depends on the last one.

    No two functors hash the same text, since Spark computes equal expressions once. One expression loops over the
    hashes: with one expression for each of thousands of hashes, Spark generates methods too large for the JVM to
    compile, and their times vary at random.
    """
    rounds = F.array_repeat(F.lit(0), F.col("work"))
    salt = F.lit(f"functor {number}")
    hashed = F.aggregate(rounds, F.col("payload"), lambda found, _: F.sha2(F.concat(salt, "payload", found), 256))
    return rows.withColumn("x", F.col("x") + F.length(hashed) % 2)


def opened(inbox: Path, load: Load, checkpoints: str = "blocking") -> Opened:
    with dm.application("checkpoints") as declared:

        @dm.consistent(trigger="operator-driven", checkpoints=checkpoints, group_timeout=600.0)
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.parquet", format="parquet", schema=SCHEMA, settle=0))
        def events(scanned: Any) -> Any:
            return scanned

        stream = events
        for number in range(FUNCTORS):
            stream = dm.functor(_function(number), name=f"f{number:02d}", inputs=[stream])
        window = dm.aggregate(
            stream,
            name="window",
            keys=["key"],
            values={"total": dm.sum("x"), "newest": dm.last("payload")},
            window=dm.sliding(rows=max(1, load.rows // KEYS)),
        )
        dm.sink(window, dm.DeltaAppend("windows"))
    return open_application(dm.build_application(declared))


def _function(number: int) -> Any:
    return lambda rows: functor(rows, number)


# --- with a region ------------------------------------------------------------------------------------------------


def with_region(engine: SparkEngine, inbox: Path, folder: Path, load: Load, way: Way) -> tuple[list[float], float]:
    """Fill the window; return the seconds of the measured periods, and the mean megabytes that their states wrote.

    Raises:
        WrongResult: rows are lost, or a state names no files or, if written whole, lacks rows of the window.
    """
    home = folder / way.key
    place = Workplace(Settings(home=home, project_root=folder, small_group_bytes=SPREAD_BYTES))
    place.use_engine(engine)
    application = opened(inbox, load, way.checkpoints)
    region = application.region()
    scan_region(place, region)
    run = region_run(place, application, region, max_group=1)
    with patch.object(KeyedState, "image_due", _always if way.is_whole else KeyedState.image_due):
        run.claim()
        times = [time.monotonic() for _ in run.groups()]
        run.hand_over()
    first = load.fills + LEAD  # earlier files start the flow; after the last file there is none
    megabytes = written_by(place.history(region.name), load, way, first)
    place.registry.close()
    shutil.rmtree(home)
    return periods_of(times, first, load), megabytes


def periods_of(ends: Sequence[float], first: int, load: Load) -> list[float]:
    """Return the seconds of the measured periods from the times at which the files were done.

    Args:
        first: index of the first measured file.
    """
    return [after - before for before, after in itertools.pairwise(ends[first - 1 : first + load.periods])]


def _always(state: KeyedState, new_rows: int, new_files: int) -> bool:
    return True


def written_by(history: RegionHistory, load: Load, way: Way, first: int) -> float:
    """Return the mean megabytes of state in the files of the measured states.

    Args:
        first: index of the first measured file.

    Raises:
        WrongResult: rows are lost, or a state names no files or, if written whole, lacks rows of the window.
    """
    states = [history.states[number] for number in sorted(history.states)]
    counted = sum(row.rows_in or 0 for row in states)
    expected = load.fills * (load.rows // load.fills) + (LEAD + load.periods + 1) * PERIOD_ROWS
    if counted != expected:
        raise WrongResult(f"{counted} rows were processed, {expected} were written")
    sizes = []
    for row in states[first : first + load.periods]:
        manifest = manifest_of(row)
        if manifest is None:
            raise WrongResult(f"the state {row.sequence_id} names no files")
        images = [file for image in manifest.images for file in image.files]
        changes = [file for name, files in manifest.files.items() if name.startswith("state/") for file in files]
        rows = sum(file.rows for file in images)
        if way.is_whole and rows != load.rows // KEYS * KEYS:
            raise WrongResult(f"a state wrote {rows} rows of a window of {load.rows // KEYS * KEYS}")
        sizes.append(sum(file.size for file in (*images, *changes)) / _MEGABYTE)
    return statistics.mean(sizes)


# --- without one --------------------------------------------------------------------------------------------------


def without_region(engine: SparkEngine, inbox: Path, table: Path, load: Load) -> list[float]:
    """Return the seconds of the periods with Spark alone, which also keeps the rows of the window.

    Raises:
        WrongResult: the table lacks a row for a key and a file after those that fill the window, or has too many.
    """
    application = opened(inbox, load)
    window = next(op for op in application.application.operators if isinstance(op, SlidingAggregate))
    files = sorted(inbox.iterdir())
    filling, measured = files[: load.fills], files[load.fills :]
    held = [_read(engine, filling, 1).transform(window.newest).persist()]
    held[0].count()

    def compute(path: Path) -> DataFrame:
        rows = _read(engine, [path], len(held) + 1)
        for each in range(FUNCTORS):
            rows = functor(rows, each)
        new = window.newest(rows).persist()
        new.count()
        history = new.withColumn("__is_new", F.lit(True))
        for before in held:
            history = history.unionByName(before.withColumn("__is_new", F.lit(False)))
        held.append(new)
        return window.output_state.seen(window.computed(history))

    ends = pipelined(measured, compute, lambda rows: rows.write.format("delta").mode("append").save(str(table)))
    kept = engine.session.read.format("delta").load(str(table)).count()
    for frame in held:
        frame.unpersist()
    shutil.rmtree(table)
    if kept != len(measured) * KEYS:
        raise WrongResult(f"Spark alone left {kept} rows of {len(measured) * KEYS}")
    return periods_of(ends, LEAD, load)


def pipelined(files: Sequence[Path], compute: Callable[[Path], Any], write: Callable[[Any], None]) -> list[float]:
    """Compute file after file while the rows of the previous file are written; return the time each was written."""

    def written(rows: Any) -> float:
        write(rows)
        return time.monotonic()

    with ThreadPoolExecutor(1) as writer:
        ends: list[Future[float]] = []
        for path in files:
            rows = compute(path)
            if ends:
                ends[-1].result()  # a region is also one group ahead
            ends.append(writer.submit(written, rows))
        return [end.result() for end in ends]


def _read(engine: SparkEngine, files: Sequence[Path], number: int) -> DataFrame:
    rows = engine.session.read.schema(SCHEMA).parquet(*map(str, files))
    place = F.struct(F.lit(0).cast("bigint").alias("block"), F.monotonically_increasing_id().alias("row"))
    return rows.withColumn(SEQUENCE_ID, F.lit(number).cast("bigint")).withColumn(POSITION, place)


def calibrated(engine: SparkEngine, folder: Path, seconds: float) -> int:
    """Return how many hashes a functor must compute so that a period takes `seconds` with a window of 1 MB."""

    def period(work: int) -> float:
        load = Load(megabytes=1, work=work, periods=2)
        inbox = written(folder / "inbox", load)
        took = statistics.mean(without_region(engine, inbox, folder / "none", load))
        shutil.rmtree(folder)
        return took

    for work in (1, 1, 4):  # the JVM has compiled the functors by then
        period(work)
    least, estimate = period(1), 4
    for _ in range(2):
        each = max((period(estimate) - least) / (estimate - 1), 1e-3)
        estimate = min(MOST_HASHES, max(2, round(1 + (seconds - least) / each)))
    return estimate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small windows, short periods")
    parser.add_argument("--size", type=int, action="append", help="only windows of so many MB")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="drainmark-bench-") as folder:
        console.print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", highlight=False)
        found = measure(console, quick=options.quick, root=Path(folder), sizes=options.size or SIZES)
        console.print_json(json.dumps(found))


if __name__ == "__main__":
    main()
