"""The cost of a trigger after a hundred thousand of them, over its cost at first; also memory and `status`.

The history is synthesised. Rows and files are committed through the project's own functions: first many ids in each
commit, then hundreds of single ids with real maintenance in between. So logs and tables look as after real runs.
"""

from __future__ import annotations

import datetime as dt
import itertools
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_input import write_files
from rich.console import Console

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.runtime.maintenance.compaction import maintain_tables
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.inspection.metrics import EVERY_SECONDS, MetricsFile
from drainmark.orchestration.runs.region_runs import region_owner, region_run
from drainmark.orchestration.workplace.declaration import remember
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

if TYPE_CHECKING:
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner

HERE = Path(__file__).parent
_BULK_IDS = 16_384  # ids in a compacted file of the highest tier
_EVERY = 20
_MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The numbers of states, triggers and groups that are measured.

    Attributes:
        states: number of synthesised states.
        commits: the last of these states, each with a commit of its own, with maintenance.
        triggers: number timed at the start and at the end, each after as many untimed ones.
        groups: groups over which memory is measured, after `warm` others.
    """

    states: int
    commits: int
    triggers: int
    groups: int
    warm: int


DEFAULT = Size(states=100_000, commits=600, triggers=60, groups=120, warm=60)
QUICK = Size(states=2_000, commits=60, triggers=20, groups=30, warm=15)


def measure(console: Console, *, quick: bool, root: Path, engine: SparkEngine | None = None) -> dict[str, float]:
    """Run all parts.

    Args:
        console: gets a line for each figure.
        quick: small sizes, under a minute: shows that it runs, not the real cost.
        root: a folder for homes and inputs, empty or missing.
        engine: the engine to use; by default a new one.

    Returns:
        figures by key: seconds, megabytes, ratios.
    """
    size = QUICK if quick else DEFAULT
    with _own(engine, root) as own:
        return growth(console, size, root / "growth", own)


@contextmanager
def _own(engine: SparkEngine | None, root: Path) -> Iterator[SparkEngine]:
    """Yield the given engine, or a new one that is stopped afterwards."""
    own = engine or SparkEngine("local[2]", {}, root / "spark")
    try:
        yield own
    finally:
        if engine is None:
            own.stop()


# --- a long history -----------------------------------------------------------------------------------------------


def growth(console: Console, size: Size, root: Path, engine: SparkEngine) -> dict[str, float]:
    """Time triggers, append a long history, and time triggers again."""
    inbox, later = root / "inbox", root / "later"
    write_files(inbox, 2 * size.triggers)
    write_files(later, 2 * size.triggers + size.warm + size.groups, seed=8)
    workplace = Workplace(Settings(home=root / "home", project_root=HERE))
    workplace.use_engine(engine)
    opened = open_application(str(HERE / "bench_upsert_app.py"), inputs=[str(inbox)])
    region = opened.region()
    scan_region(workplace, region)
    remember(workplace, opened, region)  # as `drainmark run` does
    first, _ = timed(workplace, opened, size.triggers)
    with owning(region_owner(workplace, region.name)) as owner:
        synthesise(workplace, owner, size)
    for path in sorted(later.iterdir()):
        path.rename(inbox / f"later-{path.name}")
    scan_region(workplace, region)
    looks = {"status_100k_states_s": status_seconds(root / "home"), "metrics_share": metrics_share(workplace, region)}
    last, claim = timed(workplace, opened, size.triggers)
    memory = memory_growth(workplace, opened, engine, size)
    found = {
        "trigger_cost_growth": statistics.median(last) / statistics.median(first),
        "trigger_mean_growth": statistics.fmean(last) / statistics.fmean(first),
        "trigger_seconds_start": statistics.median(first),
        "trigger_seconds_end": statistics.median(last),
        "claim_100k_states_s": claim,
        **looks,
        "driver_memory_growth_mb_per_1000_groups": memory,
    }
    workplace.registry.close()
    for name, value in found.items():
        console.print(f"  {name} = {value:.4g}", highlight=False)
    return found


def timed(workplace: Workplace, opened: Opened, count: int) -> tuple[list[float], float]:
    """Return the seconds of each trigger, maintenance included, after as many untimed ones; and those of the claim."""
    run = region_run(workplace, opened, opened.region(), max_group=1, max_triggers=2 * count)
    began = time.monotonic()
    run.claim()
    ends = [time.monotonic()]
    claim = ends[0] - began
    ends += [time.monotonic() for _ in run.groups()]
    run.hand_over()
    seconds = [after - before for before, after in itertools.pairwise(ends)]
    return seconds[count:], claim


def status_seconds(home: Path) -> float:
    """Return the seconds of `drainmark status` as a process of its own, the median of three."""
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "status", "--home", str(home), "--json"]
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run(command, check=True, capture_output=True, cwd=HERE.parents[1])
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds)


def metrics_share(workplace: Workplace, region: Any) -> float:
    """Return the share of a run's time that writing the metrics file takes, at its usual interval."""
    file = MetricsFile(workplace=workplace, region=region.name, checkpoint=workplace.store(region.name).checkpoint)
    file.write()
    began = time.monotonic()
    for _ in range(5):
        file.write()
    return (time.monotonic() - began) / 5 / EVERY_SECONDS


def memory_growth(workplace: Workplace, opened: Opened, engine: SparkEngine, size: Size) -> float:
    """Return by how many megabytes the driver's live memory, Python's and the JVM's, grows in a thousand groups."""
    wanted = size.warm + size.groups
    run = region_run(workplace, opened, opened.region(), max_group=1, max_triggers=wanted)
    run.claim()
    found = []
    for number, _ in enumerate(run.groups(), 1):
        if number >= size.warm and (number - size.warm) % max(1, size.groups // 6) == 0:
            found.append((number, _live_mb(engine)))
    run.hand_over()
    slope = statistics.linear_regression(*zip(*found, strict=True)).slope
    return 1000 * slope


def _live_mb(engine: SparkEngine) -> float:
    """Return the MB in use after a collection; the size of the heap would depend on when the collector runs."""
    import gc

    gc.collect()
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    java = engine.session._jvm.java.lang  # type: ignore[union-attr]
    java.System.gc()
    runtime = java.Runtime.getRuntime()
    return int(resident.split()[1]) / 1024 + (runtime.totalMemory() - runtime.freeMemory()) / _MB


# --- synthesis ----------------------------------------------------------------------------------------------------


def synthesise(workplace: Workplace, owner: RegionOwner, size: Size) -> None:
    """Commit and publish many states: first many ids in each commit, then one by one with maintenance."""
    store = workplace.store(owner.region)
    owner.outside.registry.progress.take_ids(owner.region, owner.epoch, size.states)
    number, last = owner.history.next_id, owner.history.next_id + size.states - 1
    while number <= last:
        count = min(_BULK_IDS, last - size.commits - number + 1) if number <= last - size.commits else 1
        ids = range(number, number + count)
        rows = [row for each in ids for row in _rows(owner, each)]
        store.checkpoint.append(rows, sequence_id=ids[-1])
        version = txn_version(owner.epoch, ids[-1])
        for table in owner.history.tables:
            if table.history:  # the visible table; its rows are those of the last real group
                store.table(table.name).publish(version, ())
            else:
                store.table(table.name).publish(version, _files(workplace, owner, table.name, ids))
        if count > 1:
            store.checkpoint.compact(files_at_least=1)
        if count > 1 or number % _EVERY == 0:
            maintain_tables(store, owner.history.tables, epoch=owner.epoch, horizon_id=max(0, number - 10_000))
        number += count
    owner.ledger.refresh()


def _rows(owner: RegionOwner, number: int) -> Iterator[CheckpointRow]:
    moment = dt.datetime.now(dt.UTC)
    note = {"versions": {}, "through": number - 1, "commit_seconds": {str(number - 1): 0.01}}
    files = {table.name: [_named(number).to_json()] for table in owner.history.tables if not table.history}
    manifest = {"files": files, "upserts": [], "images": [], "lookups": {}}
    common: dict[str, Any] = {
        "region": owner.region, "epoch": owner.epoch, "recorded_at": moment, "run_id": "bench",
        "drainmark_version": owner.ledger.identity.drainmark_version, "graph_fingerprint": "g", "params_hash": "p",
    }  # fmt: skip
    yield CheckpointRow(kind=RowKind.PUBLISHED, sequence_id=number - 1, attempt=uuid.uuid4().hex, detail=note, **common)
    yield CheckpointRow(
        kind=RowKind.STATE, sequence_id=number, attempt=uuid.uuid4().hex, group_first=number, group_last=number,
        rows_in=1, bytes_in=1, drain_seconds=0.1, trigger_uri=f"file:///synthetic/{number:09d}.csv",
        trigger_kind="file", trigger_identity={"size": 1, "mtime_ns": number, "inode": number}, trigger_order=None,
        detail={"manifest": manifest}, **common,
    )  # fmt: skip


def _named(number: int) -> StagedFile:
    path = f"_staged/1-{uuid.uuid4().hex}/synthetic.parquet"
    return StagedFile(path=path, size=1, rows=1, first_id=number, last_id=number)


def _files(workplace: Workplace, owner: RegionOwner, name: str, ids: Sequence[int]) -> tuple[StagedFile, ...]:
    """Stage a row for each id, a copy of a row of the table; nothing if the table has no files (quarantine)."""
    import pyarrow as pa

    table = workplace.store(owner.region).table(name)
    if not table.files.live():
        return ()
    rows = next(iter(table.files.read_each(table.files.live()[:1]))).slice(0, 1)
    many = pa.concat_tables([rows] * len(ids)).combine_chunks()
    many = many.set_column(many.schema.get_field_index("_sequence_id"), "_sequence_id", pa.array(list(ids), pa.int64()))
    staging = workplace.store(owner.region).staging(name, owner.epoch, uuid.uuid4().hex)
    return staging.write(many, "synthetic")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        console = Console(width=110)
        console.print_json(data=measure(console, quick="--quick" in sys.argv, root=Path(place)))
