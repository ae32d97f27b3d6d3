"""The cost of one commit on each publisher: an append of one file's staged rows, checked, committed and read back."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from bench_input import ROWS_A_FILE
from bench_results import Figures
from deltalake import Schema
from rich.console import Console

from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.resources.delta.adopted.adopted_table import AdoptedTable
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.spark.session import SparkEngine

REGION = "bench/commits"
_WARM = 3


def measure(console: Console, *, quick: bool, root: Path, commits: int, master: str, conf: Sequence[str]) -> Figures:
    """Return the seconds of a commit by `deltalake`, for our own tables, and by delta-spark, for adopted tables."""
    engine = SparkEngine(master, dict(item.split("=", 1) for item in conf), root / "spark")
    try:
        seconds = commit_seconds(engine, root / "commits", commits)
    finally:
        engine.stop()
    costs = ", ".join(f"{value * 1000:.0f} ms by {name}" for name, value in seconds.items())
    console.print(f"one commit of {ROWS_A_FILE} rows, checked and read back: {costs}", highlight=False)
    return {f"commit_seconds_{name.replace('-', '_')}": round(value, 4) for name, value in seconds.items()}


def commit_seconds(engine: SparkEngine, root: Path, commits: int) -> Mapping[str, float]:
    """Return the median seconds of an append, by publisher, after a few appends that are not counted."""
    rows = pa.table({"_sequence_id": pa.array([1] * ROWS_A_FILE, pa.int64()), "value": pa.array(range(ROWS_A_FILE))})
    schema = Schema.from_arrow(rows.schema).to_json()
    managed = ManagedTable(root / "managed", REGION)
    managed.create(schema)
    adopted = AdoptedTable(root / "adopted", REGION, lambda: engine)
    engine.session.sql(f"CREATE TABLE delta.`{root / 'adopted'}` (value BIGINT) USING delta")
    adopted.create(schema)
    return {
        "deltalake": _median(managed, rows, commits),
        "delta-spark": _median(adopted, rows, commits),
    }


def _median(table: ManagedTable | AdoptedTable, rows: pa.Table, commits: int) -> float:
    seconds = []
    for number in range(1, _WARM + commits + 1):
        files = Staging(table.folder, 1, uuid.uuid4().hex).write(rows, "rows")
        started = time.monotonic()
        table.publish(txn_version(1, number), files)
        seconds.append(time.monotonic() - started)
    return statistics.median(seconds[_WARM:])
