"""Part `state`: the cost of a file of a hundred rows with a state of many keys, over its cost with a thousand keys.

The job is that of `one_upsert`: rows above 50 to an append table, count and sum by key as state and in an upsert table.
Each home first gets its keys, one row for each key. Then files of a hundred random keys come one at a time. A file's
cost includes everything: reading, state, checkpoint, publishing. Merges of the upsert table are not due for each file;
the mean includes them. The same is done again with an upsert table that is merged on read and never lags. The peer,
Structured Streaming with RocksDB as its state store (changelog checkpoints), has the same keys and files: once with the
totals merged into a Delta table (deletion vectors on), once with totals that go nowhere. Another peer is Flink with
RocksDB, if it is installed, with at least one checkpoint for each file; its totals are in its state and on its standard
output.
"""

from __future__ import annotations

import itertools
import random
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bench_flink
import bench_ours
import bench_peer
from bench_input import WrongResult
from bench_parts import PassedOver
from rich.console import Console

from drainmark.jobs.graph.application import load_application
from drainmark.jobs.operators.sinks.delta_upsert import DeltaUpsertSink
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_owner, region_run
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

HERE = Path(__file__).parent
_ROWS = 100
_A_FILE = 1_000_000
_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The sizes of the part.

    Attributes:
        few, many: keys of the two states.
        peer_keys: keys of the peer's state, and of our state that is compared with it.
        files: number of timed files of a hundred rows; `warm` untimed ones come before.
        peer_files: number of timed files of the peer.
    """

    few: int
    many: int
    peer_keys: int
    files: int
    warm: int
    peer_files: int


DEFAULT = Size(few=1_000, many=10_000_000, peer_keys=5_000_000, files=50, warm=5, peer_files=5)
QUICK = Size(few=1_000, many=60_000, peer_keys=60_000, files=6, warm=2, peer_files=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The costs of the files of one home.

    Attributes:
        seconds: seconds of each file.
        end_seconds: seconds of the hand-over, which brings lagging tables up to date.
        recovery_seconds: seconds from a claim to the first state.
        rewind_seconds: seconds of a rewind across the files.
        changed, state, visible: bytes written as changes, as other files of the state, and to the upsert table.
        memory_mb: the largest resident set of this process that was seen after a group.
        steps: mean seconds of each step of a file.
    """

    seconds: Sequence[float]
    end_seconds: float
    recovery_seconds: float
    rewind_seconds: float
    changed: int
    state: int
    visible: int
    memory_mb: float
    steps: Mapping[str, float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def written_per_changed_byte(self) -> float:
        return (self.changed + self.state + self.visible) / self.changed


def measure(console: Console, *, quick: bool, root: Path) -> dict[str, float]:
    """Run the part; return seconds, megabytes and ratios by key."""
    size = QUICK if quick else DEFAULT
    with _engine(root / "spark", {}) as engine:
        ours(engine, root / "warm", size.few, size)  # else the first home alone would pay for cold code
        few = ours(engine, root / "few", size.few, size)
        half = ours(engine, root / "half", size.peer_keys, size)
        many = ours(engine, root / "many", size.many, size)
        few_on_read = ours(engine, root / "few_on_read", size.few, size, on_read=True)
        many_on_read = ours(engine, root / "many_on_read", size.many, size, on_read=True)
    found = {
        "state_cost_growth": many.median / few.median,
        "state_cost_growth_visible": many_on_read.median / few_on_read.median,
        **{f"state_step_ms_{step}": seconds * 1000 for step, seconds in many.steps.items()},
        **{f"state_visible_step_ms_{step}": seconds * 1000 for step, seconds in many_on_read.steps.items()},
        "state_mean_growth": statistics.fmean(many.seconds) / statistics.fmean(few.seconds),
        "state_seconds_few": few.median,
        "state_seconds_many": many.median,
        "state_end_seconds_many": many.end_seconds,
        "state_bytes_per_changed_byte": (many.changed + many.state) / many.changed,
        "bytes_written_per_changed_byte": many.written_per_changed_byte,
        "recovery_growth": many.recovery_seconds / few.recovery_seconds,
        "rewind_growth": many.rewind_seconds / few.rewind_seconds,
        "state_memory_growth_mb": many.memory_mb - few.memory_mb,
        "state_mean_growth_visible": statistics.fmean(many_on_read.seconds) / statistics.fmean(few_on_read.seconds),
        "bytes_written_per_changed_byte_on_read": many_on_read.written_per_changed_byte,
        "rewind_growth_on_read": many_on_read.rewind_seconds / few_on_read.rewind_seconds,
    }
    for name, upsert in (("alone", False), ("merging", True)):
        with _engine(root / f"spark-{name}", _ROCKSDB) as engine:
            found[f"state_seconds_streaming_{name}"] = streaming(engine, root / name, size, upsert=upsert)
        found[f"state_cost_vs_streaming_{name}"] = found[f"state_seconds_streaming_{name}"] / half.median
    found["state_cost_vs_streaming"] = found["state_cost_vs_streaming_merging"]
    try:
        found["state_seconds_flink"] = flink(root / "flink", size)
        found["state_cost_vs_flink"] = half.median / found["state_seconds_flink"]
    except PassedOver as passed:
        console.print(f"  without Flink: {passed}")
    for name, value in found.items():
        console.print(f"  {name} = {value:.4g}", highlight=False)
    return found


@contextmanager
def _engine(folder: Path, settings: dict[str, str]) -> Iterator[SparkEngine]:
    engine = SparkEngine("local[2]", settings, folder)
    try:
        yield engine
    finally:
        engine.stop()


def ours(engine: SparkEngine, root: Path, keys: int, size: Size, *, on_read: bool = False) -> Cost:
    """Fill a home, time files one at a time, then time a rewind across them.

    Args:
        on_read: the upsert table is merged on read, with each file.
    """
    inbox = root / "inbox"
    _write_keys(inbox, keys)
    place = Workplace(Settings(home=root / "home", project_root=HERE))
    place.use_engine(engine)
    opened = _opened(inbox, on_read=on_read)
    _timed(place, opened, None)
    first = place.history(opened.region().name).committed_id
    _write_files(inbox, keys, size.warm + size.files)
    state, visible = root / "home/state", root / "home/lake/totals_by_key"
    before = _bytes(state), _bytes(visible)
    timed = _timed(place, opened, 1)
    changed = sum(path.stat().st_size for path in state.rglob("rows*.parquet"))  # files of tasks have other names
    written = _bytes(state) - before[0] - changed, _bytes(visible) - before[1]
    _check(place, opened, keys, size)
    began = time.monotonic()
    with owning(region_owner(place, opened.region().name)) as owner:
        owner.rewind(first, 10_000)
    rewind = time.monotonic() - began
    place.registry.close()
    shutil.rmtree(root)
    return Cost(
        seconds=timed.seconds[size.warm :],
        end_seconds=timed.end_seconds,
        recovery_seconds=timed.first_seconds,
        rewind_seconds=rewind,
        changed=changed,
        state=written[0],
        visible=written[1],
        memory_mb=timed.memory_mb,
        steps=timed.steps,
    )


def _opened(inbox: Path, *, on_read: bool) -> Opened:
    application = load_application(str(HERE / "bench_upsert_app.py"))
    if on_read:
        operators = (replace(each, merge="on-read", max_lag=0.0) if isinstance(each, DeltaUpsertSink) else each
                     for each in application.operators)  # fmt: skip
        application = replace(application, operators=tuple(operators))
    return open_application(application, inputs=[str(inbox)])


@dataclass(frozen=True, slots=True)
class _Timed:
    """Seconds from a claim to the first group, of each later group, and of the end; the largest resident set; steps."""

    first_seconds: float
    seconds: Sequence[float]
    end_seconds: float
    memory_mb: float
    steps: Mapping[str, float]


def _timed(place: Workplace, opened: Opened, max_group: int | None) -> _Timed:
    """Run a region over new input."""
    region = opened.region()
    scan_region(place, region)
    run = region_run(place, opened, region, max_group=max_group)
    began = time.monotonic()
    run.claim()
    ends, memory, reports = [], 0.0, []
    for report in run.groups():
        reports.append(report)
        ends.append(time.monotonic())
        memory = max(memory, _resident_mb())
    run.hand_over()
    ended = time.monotonic()
    later = list(itertools.pairwise(ends))
    steps = bench_ours.steps_of(reports[1:], ends[-1] - ends[0])
    means = {step: seconds / max(1, len(later)) for step, seconds in steps.items()}
    return _Timed(ends[0] - began, [b - a for a, b in later], ended - ends[-1], memory, means)


def _check(place: Workplace, opened: Opened, keys: int, size: Size) -> None:
    """Compare the upsert table with the input."""
    import pyarrow.compute as pc

    rows = place.store(opened.region().name).table("lake/totals_by_key").read(["k", "n"])
    counted = pc.sum(rows["n"]).as_py()
    expected = keys + _ROWS * (size.warm + size.files)
    if (rows.num_rows, counted) != (keys, expected):
        raise WrongResult(f"{rows.num_rows} keys and {counted} rows, expected {keys} and {expected}")


def streaming(engine: SparkEngine, root: Path, size: Size, *, upsert: bool) -> float:
    """Return the peer's median seconds for a file: of its triggers after those that read the keys."""
    inbox = root / "inbox"
    _write_keys(inbox, size.peer_keys)
    _write_files(inbox, size.peer_keys, size.warm + size.peer_files)
    job: Any = bench_peer.Job(session=engine.session, inbox=inbox, home=root / "home", files=1, upsert=upsert)
    job.home.mkdir(parents=True)
    queries = bench_peer.two_queries(job)
    for query in queries:
        query.awaitTermination()
    seconds = [
        entry["durationMs"]["triggerExecution"] / 1000
        for entry in queries[1].recentProgress
        if entry["numInputRows"] == _ROWS
    ]
    if len(seconds) != size.warm + size.peer_files:
        raise WrongResult(f"the peer had {len(seconds)} triggers of {_ROWS} rows")
    shutil.rmtree(root)
    return statistics.median(seconds[size.warm :])


def flink(root: Path, size: Size) -> float:
    """Return Flink's median seconds for a file, with the same number of keys as the other peer.

    Raises:
        PassedOver: Flink is not installed.
        WrongResult: Flink's totals are wrong.
    """
    bench_flink.require_flink()
    inbox, later = root / "inbox", root / "later"
    _write_keys(inbox, size.peer_keys)
    later.mkdir()
    _write_files(later, size.peer_keys, size.warm + size.files)
    again = Counter(line.split(",")[1] for path in later.iterdir() for line in path.read_text().splitlines())
    expected = {key: (1 + count, (1.0 + count) * (int(key[1:]) % 100)) for key, count in again.items()}
    seconds, printed = bench_flink.run_flink(HERE / "flink_state_job.py", inbox, later, root / "home")
    if bench_flink.totals_of(printed, "totals") != expected:
        raise WrongResult("Flink's totals are not those of the input")
    shutil.rmtree(root)
    return statistics.median(seconds[size.warm :])


def _write_keys(inbox: Path, keys: int) -> None:
    """Write one row for each key."""
    inbox.mkdir(parents=True)
    for number, start in enumerate(range(0, keys, _A_FILE)):
        _write(inbox / f"0-{number:06d}.csv", range(start, min(keys, start + _A_FILE)))


def _write_files(inbox: Path, keys: int, count: int) -> None:
    """Write files of random keys; their names sort after the files with all keys."""
    chance = random.Random(7)
    for number in range(count):
        _write(inbox / f"1-{number:06d}.csv", [chance.randrange(keys) for _ in range(_ROWS)])


def _write(path: Path, keys: Sequence[int]) -> None:
    with path.open("w") as file:
        file.writelines(f"{key},k{key:09d},{key % 100},n\n" for key in keys)


def _bytes(folder: Path) -> int:
    """Return the bytes of data files and of deletion vectors."""
    files = (path for path in folder.rglob("*") if path.suffix in (".parquet", ".bin"))
    return sum(path.stat().st_size for path in files if "_delta_log" not in path.parts)


def _resident_mb() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        measure(Console(width=110), quick="--quick" in sys.argv, root=Path(place))
