"""Program that reads folders of files for part `formats`, in one process that stays warm: one run a request.

`python formats_job.py ROOT MASTER CONF…`, with the Python of the checkout that is measured: its code runs, not that of
the checkout of this file. So this file uses only what commits have had for long. A request is a line of JSON on
standard input, `{"application": …, "inbox": …}`. The answer is a line on standard output: seconds from the claim to the
publish of the last group, CPU seconds of this process and all below it in that time, cores, rows in the table, the sum
of their ids, rows in the quarantine.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.compute as pc

from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

_FRESH_IDS = itertools.count(10_000, 10_000)
_APP = "app"


def read(engine: SparkEngine, application: Path, inbox: Path, home: Path) -> dict[str, Any]:
    """Run an application over a folder, all files by tasks; return the answer."""
    workplace = Workplace(Settings(home=home, project_root=application.parent, small_group_bytes=0))
    workplace.use_engine(engine)
    opened = open_application(str(application), inputs=[str(inbox)])
    region = opened.region()
    scan_region(workplace, region)
    run = region_run(workplace, opened, region)
    run.claim()
    # Spark caches generated code by its text, which includes ids: ids of an earlier run would cost less than new ones.
    workplace.registry.progress.take_ids(region.name, run.owner.epoch, next(_FRESH_IDS))
    busy, began = _cpu_seconds(), time.monotonic()
    groups = len(list(run.groups()))
    ended, busy = time.monotonic(), _cpu_seconds() - busy
    run.hand_over()
    rows, ids = _counted(workplace, region.name, "lake/out")
    bad, _ = _counted(workplace, region.name, f"lake/{_APP}_quarantine")
    workplace.registry.close()
    cores = engine.session.sparkContext.defaultParallelism
    return {
        "seconds": ended - began,
        "cpu": busy,
        "cores": cores,
        "groups": groups,
        "rows": rows,
        "ids": ids,
        "bad": bad,
    }


def _counted(workplace: Workplace, region: str, name: str) -> tuple[int, int]:
    """Return the rows of a table, and the sum of their ids; 0 without such a column."""
    files = workplace.store(region).table(name).files
    rows = ids = 0
    for table in files.read_each(files.live()):
        rows += len(table)
        ids += (pc.sum(table["id"]).as_py() or 0) if "id" in table.column_names else 0
    return rows, ids


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process, Spark's JVM and its Python workers, also of those that have ended."""
    total = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def main(arguments: Sequence[str]) -> None:
    """Answer requests until standard input ends."""
    root = Path(arguments[0])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark or a library prints is no answer
    engine = SparkEngine(arguments[1], dict(item.split("=", 1) for item in arguments[2:]), root / "spark")
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        answer = read(engine, Path(request["application"]), Path(request["inbox"]), root / f"home-{number}")
        print(json.dumps(answer), file=answers, flush=True)
    engine.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(0)  # do not wait for daemon threads or the JVM (H34)
