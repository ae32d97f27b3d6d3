"""Part `stage_recovery`: a middle stage fails once; a restart of this stage alone against a reset of the region.

The job is a source with totals of 20 000 keys as state, a middle stage, and a stage that writes a table, with a channel
between stages and a backlog of input. The middle stage fails halfway through the backlog, in two ways:

- `local`: its function raises an error. The stage takes the batch from the channel again; the others go on (K10, K22).
- `region`: it asks for a reset of the region (E19). Every stage drops all uncommitted work. With groups of one file the
  run ends, and the next run claims the region and loads its states.

The clock runs from the failure to the first commit to the table that adds a row of the failed file, or of a later one.
`stage_recovery_ratio` is local over region; `stage_recovery_ratio_in_place` is the same with groups of two files, for
which the run goes on, resets all its stages and splits the group. `drainmark run` waits a second before it claims
again, which is not part of the measured time; a stage waits 0.05 s before it begins again, which is. All runs are in
one process, on a warm Spark. At the end of each run every row of the table is counted, and the way of recovery is
checked.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bench_input import WrongResult
from bench_results import Figures, spread
from bench_stages_job import drained, left_in
from rich.console import Console

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors.operator_code import ResetWanted
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.testing.processing import settings_of
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.spark.session import SparkEngine

KINDS = ("local", "region")
GROUPS = {"": 1, "_in_place": 2}
"""Files of a group, by the ending of the figures' keys."""
KEYS = 20_000
_SIZES = {False: (16, 20_000), True: (8, 4000)}
"""Number of files and rows of each file, by `quick`."""
_SCHEMA = "id bigint, key bigint"
_TABLE = "rows_behind"


@dataclass(slots=True, kw_only=True)
class Fault:
    """A fault of the middle stage that occurs once.

    Attributes:
        kind: one of `KINDS`.
        after: number of files that pass before the failure.
        failed_at: the wall-clock time of the failure; None before it.
        failed_row: the id of the first row of the failed file.
    """

    kind: str
    after: int
    failed_at: float | None = None
    failed_row: int = 0
    _passed: int = 0

    def passing(self, rows: pa.Table, context: Any) -> None:
        if self.failed_at is None and self._passed == self.after:
            self.failed_row, self.failed_at = rows["id"][0].as_py(), time.time()
            if self.kind == "region":
                context.reset_region("the benchmark wants one")
            raise RuntimeError("the benchmark wants a failure")
        self._passed += 1


def write_rows(inbox: Path, files: int, rows: int) -> None:
    """Write Parquet files with consecutive row numbers from 0."""
    inbox.mkdir(parents=True)
    for number in range(files):
        ids = np.arange(number * rows, (number + 1) * rows)
        pq.write_table(pa.table({"id": ids, "key": ids % KEYS}), inbox / f"{number:06d}.parquet")


def application(inbox: Path, fault: Fault) -> Opened:
    """Return the application of three stages."""

    class Middle(dm.StateHandler):
        def process(self, rows: pa.Table, context: Any) -> pa.Table:
            fault.passing(rows, context)
            return rows.select(["id", "key"])

    with dm.application("recovering") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.parquet", format="parquet", schema=_SCHEMA, settle=0))
        def rows(scanned: Any) -> Any:
            return scanned.drop("source_file")

        dm.aggregate(rows, keys=["key"], values={"n": dm.count(), "largest": dm.max("id")}, name="totals")
        middle = dm.operator(Middle, output=_SCHEMA, name="middle", inputs=[dm.buffered(rows)])
        behind = dm.functor(_tripled, name="behind", inputs=[dm.buffered(middle)])
        dm.sink(behind, dm.DeltaAppend(_TABLE))
    return open_application(dm.build_application(declared))


def _tripled(rows: Any) -> Any:
    return rows.withColumn("tripled", F.col("id") * 3)


def measure(console: Console, *, quick: bool, root: Path, rounds: int) -> Figures:
    """Let the stage fail in both ways, in turns.

    Raises:
        WrongResult: a row is lost or doubled, or the wrong part restarted: the stage or the region.
    """
    files, rows = _SIZES[quick]
    inbox = root / "input" / "in"
    write_rows(inbox, files, rows)
    engine = SparkEngine("local[*]", {}, root / "spark")
    seconds: dict[tuple[str, str], list[float]] = {(kind, end): [] for end in GROUPS for kind in KINDS}
    try:
        for kind in KINDS:
            once(engine, inbox, root / f"warm-{kind}", kind=kind, files=1, rows=files * rows)
        for number in range(rounds):
            for kind, end in list(seconds)[:: -1 if number % 2 else 1]:
                home = root / f"{kind}{end}-{number}"
                found = once(engine, inbox, home, kind=kind, files=GROUPS[end], rows=files * rows)
                seconds[kind, end].append(found)
                console.print(f"[dim]{kind}{end}: new rows {found:.3f} s after the failure[/dim]")
    finally:
        engine.stop()
    figures: Figures = {}
    for (kind, end), each in seconds.items():
        figures |= spread(f"stage_recovery_seconds_{kind}{end}", each)
    for end in GROUPS:
        whole = statistics.median(seconds["region", end])
        figures |= spread(f"stage_recovery_ratio{end}", [each / whole for each in seconds["local", end]])
    return figures


def once(engine: SparkEngine, inbox: Path, home: Path, *, kind: str, files: int, rows: int) -> float:
    """Run the application in a home of its own; return the seconds from the failure to new rows.

    Args:
        files: files of a group.
        rows: rows of all files.
    """
    place = Workplace(settings_of(home, inbox.parent))
    place.use_engine(engine)
    fault = Fault(kind=kind, after=len(list(inbox.iterdir())) // 2)
    opened = application(inbox, fault)
    region = opened.region()
    scan_region(place, region)
    steps: Counter[str] = Counter()
    while True:
        try:
            drained(place, opened, region, files=files, report=lambda step, numbers: steps.update([step]))
            break
        except ResetWanted:  # the next run claims the region, as `drainmark run` does
            continue
    left = left_in(place, region.name, _TABLE)
    _require_rows(kind, left["id"].to_numpy(), rows)
    _require_way(place, region.name, kind, files, steps)
    place.registry.close()
    if fault.failed_at is None:
        raise WrongResult(f"{kind}: nothing failed")
    failed = left.filter(pc.equal(left["id"], fault.failed_row))["_sequence_id"][0].as_py()
    return _committed_at(home / "lake" / _TABLE, failed) - fault.failed_at


def _require_rows(kind: str, ids: Any, rows: int) -> None:
    """Check that the table has every row once.

    Raises:
        WrongResult: it has not.
    """
    if not np.array_equal(np.sort(ids), np.arange(rows)):
        raise WrongResult(f"{kind}: {len(ids)} rows, {len(np.unique(ids))} apart, of {rows}")


def _require_way(place: Workplace, region: str, kind: str, files: int, steps: Mapping[str, int]) -> None:
    """Check that only the stage restarted, or only the region, as `kind` requires.

    Raises:
        WrongResult: another restart happened.
    """
    epochs = place.history(region).epoch
    happened = (steps.get("restart", 0), steps.get("failed", 0), epochs)
    wanted = {"local": (1, 0, 1), "region": (0, 1, 2 if files == 1 else 1)}[kind]
    if happened != wanted:
        raise WrongResult(f"{kind}: (restarts of a stage, failures of the region, claims) are {happened}, not {wanted}")


def _committed_at(table: Path, number: int) -> float:
    """Return the wall-clock time of the first commit that adds rows of an id, or of a later one."""
    for path in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        adds = [action["add"] for action in actions if "add" in action and action["add"]["dataChange"]]
        if any(json.loads(add["stats"])["maxValues"]["_sequence_id"] >= number for add in adds):
            return path.stat().st_mtime
    raise WrongResult(f"no commit brings id {number}")
