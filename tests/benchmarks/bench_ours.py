"""Our side of the benchmark: one scan of a folder and one run over it, in this process, in a home of its own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from bench_input import as_totals
from bench_peer import Measured

from drainmark.jobs.runtime.region_run import GroupReport
from drainmark.jobs.state.keyed_rows import last_per_key
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

HERE = Path(__file__).parent
_FRESH_IDS = itertools.count(10_000, 10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The seconds of one run by step; the steps of all groups are added up."""

    seconds: Mapping[str, float]


def measure(
    engine: SparkEngine, inbox: Path, home: Path, max_group: int | None, upsert: bool
) -> tuple[Measured, Phases]:
    """Scan a folder and run the application over it until it is idle.

    Args:
        max_group: triggers in a group; None is the settings' default.
    """
    began = time.monotonic()
    workplace = Workplace(Settings(home=home, project_root=HERE))
    workplace.use_engine(engine)
    name = "bench_upsert_app" if upsert else "bench_app"
    opened = open_application(str(HERE / f"{name}.py"), inputs=[str(inbox)])
    region = opened.region()
    scan_region(workplace, region)
    scanned = time.monotonic()
    run = region_run(workplace, opened, region, max_group=max_group)
    analysed = time.monotonic()
    run.claim()
    # Spark caches generated code by its text, which includes ids: ids of an earlier run would cost less than new ones.
    workplace.registry.progress.take_ids(region.name, run.owner.epoch, next(_FRESH_IDS))
    first = time.monotonic()
    reports = list(run.groups())
    last = time.monotonic()
    run.hand_over()
    ended = time.monotonic()
    workplace.registry.close()
    phases = {
        "scan": scanned - began,
        "analyse": analysed - scanned,
        "claim": first - analysed,
        **steps_of(reports, last - first),
        "hand over": ended - last,
    }
    kept, totals = _results(workplace, region.name, name)
    measured = Measured(
        whole_seconds=ended - began, span_seconds=last - first, triggers=len(reports), kept=kept, totals=totals
    )
    return measured, Phases(seconds=phases)


def steps_of(reports: Sequence[GroupReport], span: float) -> dict[str, float]:
    """Return the seconds of each step of some groups, from the product's own reports.

    Args:
        span: seconds of all of them; what no step has is between the groups, below zero where steps overlap.
    """
    steps = {
        "process": sum(report.process_seconds for report in reports),
        "drain": sum(report.drain_seconds for report in reports),
        "checkpoint": sum(report.checkpoint_seconds for report in reports),
        "publish": sum(report.publish_seconds for report in reports),
    }
    return {**steps, "between": span - sum(steps.values())}


def _results(workplace: Workplace, region: str, name: str) -> tuple[int, dict[str, tuple[int, float]]]:
    """Return the number of rows kept and the totals from the published tables: only files of the newest versions."""
    store = workplace.store(region)
    kept = sum(file.rows for file in store.table("lake/large_rows").files.live())
    upsert = name == "bench_upsert_app"
    table = store.table("lake/totals_by_key" if upsert else f"state/{name}/totals")
    tables = list(table.files.read_each(table.files.live()))
    if not tables:
        return kept, {}
    rows = pa.concat_tables(tables, promote_options="permissive")
    if not upsert:
        rows = last_per_key(rows, ["k"])
    return kept, as_totals(*(rows[column].to_pylist() for column in ("k", "n", "total")))
