"""`python tests/benchmarks/bench_checkpoints.py`: how much throughput is kept while state is checkpointed (N31, N32).

A source of Parquet files, a chain of 64 functors, and behind it a window over the last rows of each of 16 keys, of 8,
64 and 512 MB in typed columns. A file is a period's worth of input; how hard the functors work is set once, so
that a period takes about eight seconds with the smallest window. The window is filled before anything is measured.

- *none*: the same source, functors and window by Spark alone, appended to the same kind of table: no region, no state
  written, no checks.
- *blocking*, *non-blocking*: a region, one consistent state a file. With `small_group_bytes` of a megabyte: a group of
  a few megabytes goes to one core by default, which is right where rows cost little.

All ways have a JVM of 6 GB: two versions of the largest window are in memory while one of them is written.

Kept is the seconds of a period with *none* over those with checkpoints; a period is measured from one group's report to
the next while the flow is full, and the mean has a 95 % interval by Student's t over the periods of two rounds of each
way, in turns: the JVM grows faster with time. A third one, before anything is measured, warms it up.
Files arrive faster than they are processed. What a checkpoint writes here are the changes of a period, not the window;
the window is written whole when the changes exceed half of it, which the larger ones do not see while measured.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

import drainmark as dm
from drainmark import F
from jobs.graph.operator import POSITION, SEQUENCE_ID
from jobs.operators.sliding import SlidingAggregate
from orchestration.assembly import Opened, Workplace, open_application, region_run
from orchestration.discovery import scan_region
from resources.settings import Settings
from resources.spark import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZES = (8, 64, 512)
FUNCTORS = 64
KEYS = 16
SPREAD_BYTES = 1 << 20
"""`small_group_bytes`: eight seconds of work in five megabytes are to be spread over the cores."""
PAYLOAD_BYTES = 200
ROW_BYTES = PAYLOAD_BYTES + 8 + 8 + 16 + 8
"""Payload, key, value, place in the file, sequence id."""
PERIOD_ROWS = 24_000
PERIOD_SECONDS = 8.0
PERIODS = 3
ROUNDS = 2
FILL_ROWS = 2_400_000
SCHEMA = "key bigint, x double, payload string, work int"
LONG_AGO = 1_000_000_000
MODES = ("blocking", "non-blocking")
LEAD = 2
"""Files between those that fill the window, whose state is still being written, and those that are measured."""
HEAP = "6g"
"""For all ways: with the default of 3 GB two versions of the largest window and what a period computes just fit."""
MOST_HASHES = 30
T_975 = {4: 2.776, 10: 2.228}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One window.

    Attributes:
        work: hashes a functor computes for a row of a measured file; a file that only fills the window has none.
        periods: measured ones.
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
        quick: the two smallest windows, periods of a second.
        root: an empty folder on a disk that holds a few gigabytes.

    Returns:
        `keys_kept…`: `kept_<size>mb_<mode>`, fractions, with `_low` and `_high` for the 95 % interval, and
        `seconds_<size>mb_<mode>`, the mean seconds of a period; the largest window's are repeated as
        `keys_kept_<size>mb_<mode>`.
    """
    engine = engine or SparkEngine(f"local[{os.cpu_count()}]", {"spark.driver.memory": HEAP}, root / "spark")
    sizes = sizes[:2] if quick else sizes
    warm_up(engine, root / "warm-up")
    work = calibrated(engine, root / "calibration", PERIOD_SECONDS / 8 if quick else PERIOD_SECONDS)
    console.print(f"64 functors of {work} hashes a row, {PERIOD_ROWS} rows a period", highlight=False)
    found: dict[str, float] = {"hashes": work}
    for size in sizes:
        load = Load(megabytes=size, work=work, periods=PERIODS)
        folder = root / f"{size}mb"
        inbox = written(folder / "inbox", load)
        seconds: dict[str, list[float]] = {mode: [] for mode in ("none", *MODES)}
        for mode in list(seconds) * (1 if quick else ROUNDS):
            if mode == "none":
                seconds[mode] += without_region(engine, inbox, folder / mode, load)
            else:
                seconds[mode] += with_region(engine, inbox, folder, load, mode)
        found.update(compared(size, seconds))
        for mode in ("none", *MODES):
            console.print(f"{size} MB, {mode}: {[round(value, 2) for value in seconds[mode]]} s", highlight=False)
        shutil.rmtree(folder)
    largest = max(sizes)
    for mode in ("blocking", "nonblocking"):
        for suffix in ("", "_low", "_high"):
            found[f"keys_kept_{largest}mb_{mode}{suffix}"] = found[f"kept_{largest}mb_{mode}{suffix}"]
    return found


def warm_up(engine: SparkEngine, folder: Path) -> None:
    """Have the JVM compile what all ways run."""
    load = Load(megabytes=2 * SIZES[0], work=2, periods=PERIODS)
    inbox = written(folder / "inbox", load)
    without_region(engine, inbox, folder / "none", load)
    with_region(engine, inbox, folder, load, MODES[1])
    shutil.rmtree(folder)


def compared(size: int, seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return the fraction of the throughput that each mode keeps, with its interval (delta method)."""
    found = {}
    base = seconds["none"]
    for mode, measured in seconds.items():
        key = f"{size}mb_{mode.replace('-', '')}"
        found[f"seconds_{key}"] = statistics.mean(measured)
        if mode == "none":
            continue
        kept = statistics.mean(base) / statistics.mean(measured)
        spread = math.sqrt(_relative_variance(base) + _relative_variance(measured))
        half = T_975[len(base) + len(measured) - 2] * kept * spread
        found.update({f"kept_{key}": kept, f"kept_{key}_low": kept - half, f"kept_{key}_high": kept + half})
    return found


def _relative_variance(values: Sequence[float]) -> float:
    return statistics.variance(values) / len(values) / statistics.mean(values) ** 2


# --- input ---------------------------------------------------------------------------------------------------------


def written(inbox: Path, load: Load) -> Path:
    """Write the files that fill the window, and those that are measured, `LEAD` before and one behind them."""
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


# --- the application -----------------------------------------------------------------------------------------------


def functor(rows: DataFrame, number: int) -> DataFrame:
    """Work on each row as often as it says: hashes, of which a bit gets into `x`.

    No two functors hash the same text: what is equal Spark computes once. One expression goes round, instead of one a
    hash: of thousands Spark makes methods too large for the JVM to compile, and what these take is chance.
    """
    rounds = F.array_repeat(F.lit(0), F.col("work"))
    salt = F.lit(f"functor {number}")
    hashed = F.aggregate(rounds, F.col("payload"), lambda found, _: F.sha2(F.concat(salt, "payload", found), 256))
    return rows.withColumn("x", F.col("x") + F.length(hashed) % 2)


def opened(inbox: Path, load: Load, mode: str) -> Opened:
    with dm.application("checkpoints") as declared:

        @dm.consistent(trigger="operator-driven", checkpoints=mode, drain_timeout=600.0)
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


# --- with a region -------------------------------------------------------------------------------------------------


def with_region(engine: SparkEngine, inbox: Path, folder: Path, load: Load, mode: str) -> list[float]:
    """Fill the window, then return the seconds of the periods."""
    home = folder / mode
    place = Workplace(Settings(home=home, project_root=folder, small_group_bytes=SPREAD_BYTES))
    place.use_engine(engine)
    application = opened(inbox, load, mode)
    region = application.region()
    scan_region(place, region)
    run = region_run(place, application, region, max_group=1)
    run.claim()
    times = [time.monotonic() for _ in run.groups()]
    run.hand_over()
    counted = sum(row["rows_in"] for row in _states(place, region.name))
    expected = load.fills * (load.rows // load.fills) + (LEAD + load.periods + 1) * PERIOD_ROWS
    if counted != expected:
        raise RuntimeError(f"{counted} rows were processed, {expected} were written")
    place.registry.close()
    shutil.rmtree(home)
    # The first files bring the flow up, and behind the last there is no flow to be kept.
    periods = [after - before for before, after in itertools.pairwise(times)]
    first = load.fills + LEAD - 1
    return periods[first : first + load.periods]


def _states(place: Workplace, region: str) -> list[dict[str, Any]]:
    return [{"rows_in": row.rows_in or 0} for row in place.history(region).states.values()]


# --- without one ---------------------------------------------------------------------------------------------------


def without_region(engine: SparkEngine, inbox: Path, table: Path, load: Load) -> list[float]:
    """Return the seconds of the periods by Spark alone, the rows of the window kept by Spark, too."""
    application = opened(inbox, load, "blocking")
    window = next(op for op in application.application.operators if isinstance(op, SlidingAggregate))
    files = sorted(inbox.iterdir())
    filling, measured = files[: load.fills], files[load.fills :]
    held = [_read(engine, filling, 1).transform(window.newest).persist()]
    held[0].count()
    seconds = []
    for number, path in enumerate(measured[: LEAD + load.periods], 2):
        started = time.monotonic()
        rows = _read(engine, [path], number)
        for each in range(FUNCTORS):
            rows = functor(rows, each)
        new = window.newest(rows).persist()
        history = new.withColumn("_is_new", F.lit(True))
        for before in held:
            history = history.unionByName(before.withColumn("_is_new", F.lit(False)))
        window.seen(window.computed(history)).write.format("delta").mode("append").save(str(table))
        held.append(new)
        seconds.append(time.monotonic() - started)
    for frame in held:
        frame.unpersist()
    shutil.rmtree(table)
    return seconds[LEAD:]


def _read(engine: SparkEngine, files: Sequence[Path], number: int) -> DataFrame:
    rows = engine.session.read.schema(SCHEMA).parquet(*map(str, files))
    place = F.struct(F.lit(0).cast("bigint").alias("block"), F.monotonically_increasing_id().alias("row"))
    return rows.withColumn(SEQUENCE_ID, F.lit(number).cast("bigint")).withColumn(POSITION, place)


def calibrated(engine: SparkEngine, folder: Path, seconds: float) -> int:
    """Return how many hashes a functor computes for a period to take so many seconds with a window of 1 MB."""
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
