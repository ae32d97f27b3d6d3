"""From a file landing in a folder to its rows in the lake, through Dagster: daemon, code server, sensor, run.

    python tests/benchmarks/bench_landing.py [--quick]

The latency of a file is counted from its rename into the folder, closed, to the commit of the sink's Delta log that
adds its rows. Files land one by one, at random moments, each after the rows of the one before are there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

ROOT = Path(__file__).parents[2]
ROWS_A_FILE = 100
WAIT_SECONDS = 180.0
TAIL_CHARACTERS = 6000

APPLICATION = """
import drainmark as dm
from drainmark import F


@dm.consistent(trigger="operator-driven"{consistent})
@dm.source(dm.DirectoryScan(path="{name}_inbox", pattern="*.csv", format="csv", schema="k string, v bigint"{scan}))
def rows(scanned):
    return scanned


@dm.functor
def doubled(rows):
    return dm.select(rows, "k", (F.col("v") * 2).alias("v"))


totals = dm.aggregate(doubled, keys=["k"], values={{"total": dm.sum("v")}}, name="totals")
dm.sink(doubled, dm.DeltaAppend("{name}_rows"))
dm.sink(totals, dm.DeltaUpsert("{name}_totals", keys=["k"]))
"""

APPLICATIONS = {
    "lingering": ("", ""),
    "unsettled": ("", ", settle=0.0"),
    "each": (', runs="per_trigger"', ""),
}
"""By name: additional arguments of `@consistent`, and of `DirectoryScan`."""


@dataclass(slots=True)
class Landing:
    """The folder of one application, and its append sink."""

    root: Path
    name: str
    dropped: int = 0
    _rows: int = 0
    _read: set[str] = field(default_factory=set)

    @property
    def inbox(self) -> Path:
        return self.root / f"{self.name}_inbox"

    def drop(self) -> float:
        """Land a file; return the seconds until its rows are in the lake."""
        self.dropped += 1
        hidden = self.inbox / f".{self.dropped}.part"
        hidden.write_text("".join(f"k{n % 7},{n}\n" for n in range(ROWS_A_FILE)))
        hidden.rename(self.inbox / f"{self.dropped:06}.csv")
        landed = time.monotonic()
        while self._visible() < self.dropped * ROWS_A_FILE:
            if time.monotonic() - landed > WAIT_SECONDS:
                late = f"{self.name}: file {self.dropped} did not become visible in {WAIT_SECONDS:g} s"
                raise TimeoutError(f"{late}; Dagster's log ends with:\n{log_tail(self.root)}")
            time.sleep(0.01)
        return time.monotonic() - landed

    def _visible(self) -> int:
        """Return how many rows the commits of the sink's log have added."""
        log = self.root / ".drainmark" / "lake" / f"{self.name}_rows" / "_delta_log"
        names = set(os.listdir(log)) if log.is_dir() else set()
        for name in sorted(names - self._read):
            if name.endswith(".json") and name[:-5].isdigit():
                for line in (log / name).read_text().splitlines():
                    add = json.loads(line).get("add")
                    if add and add["dataChange"]:
                        self._rows += json.loads(add["stats"])["numRecords"]
            self._read.add(name)
        return self._rows


def log_tail(root: Path) -> str:
    """Return the end of the output of Dagster, its code server and the runs."""
    log = root / "dagster.log"
    return log.read_text(errors="replace")[-TAIL_CHARACTERS:] if log.exists() else "(there is none)"


@contextmanager
def deployment(root: Path, settings: str = "") -> Iterator[Path]:
    """Run `drainmark dev` on a project of all the applications; yield the project's folder."""
    for name, (consistent, scan) in APPLICATIONS.items():
        (root / f"{name}_inbox").mkdir(parents=True)
        text = APPLICATION.format(name=name, consistent=consistent, scan=scan)
        (root / f"{name}.py").write_text(text)
    listed = ", ".join(f'"{name}.py"' for name in APPLICATIONS)
    spark = '[spark_conf]\n"spark.driver.memory" = "1g"\n'
    (root / "drainmark.toml").write_text(f"applications = [{listed}]\n{settings}\n{spark}")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DRAINMARK_", "DAGSTER_"))}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "dev", "--port", str(_free_port())]
    with (root / "dagster.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _await_ready(root, process)
            yield root
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_ready(root: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the resident Spark is warm and the sensors have ticked."""
    from drainmark.resources.spark.resident.files import all_servers

    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        servers = [access for files in all_servers(root / ".drainmark" / "spark") if (access := files.access())]
        has_ticked = "Checking for new runs for sensor" in (root / "dagster.log").read_text()
        if has_ticked and any(access.is_warm for access in servers):
            time.sleep(3)
            return
        if process.poll() is not None:
            break
        time.sleep(0.2)
    raise TimeoutError(f"Dagster or its Spark did not get ready; the log ends with:\n{log_tail(root)}")


def _free_port() -> int:
    from drainmark.resources.spark.resident.server import free_port

    return free_port()


def landings(landing: Landing, files: int, *, seed: int, pause: tuple[float, float]) -> list[float]:
    """Land files one by one after random pauses; return their latencies, seconds."""
    moments, seconds = random.Random(seed), []
    for _ in range(files):
        time.sleep(moments.uniform(*pause))
        seconds.append(landing.drop())
    return seconds


def measure(console: Any, *, quick: bool, root: Path) -> dict[str, float]:
    """Return seconds from landing to visible, by key: with a lingering run, and with a run for each file.

    `landing_first_file_s` is the time of the first file, for which a run starts, on a warm server. `..._settle_0_...`
    is without the half second for which `DirectoryScan` by default lets a file settle.
    """
    files, unsettled_files, runs = (12, 12, 4) if quick else (30, 20, 6)
    with deployment(root) as place:
        found = {"landing_first_file_s": Landing(place, "lingering").drop()}
        lingering = Landing(place, "lingering", dropped=1)
        lingering._visible()
        console.print(f"first file: {found['landing_first_file_s']:.2f} s")
        seconds = landings(lingering, files, seed=1, pause=(0.5, 3.0))
        found["landing_to_visible_p50_s"] = statistics.median(seconds)
        found["landing_to_visible_p95_s"] = _percentile(seconds, 95)
        console.print("lingering: " + " ".join(f"{s:.2f}" for s in seconds))
        unsettled = Landing(place, "unsettled")
        unsettled.drop()
        seconds = landings(unsettled, unsettled_files, seed=2, pause=(0.5, 3.0))
        found["landing_settle_0_to_visible_p50_s"] = statistics.median(seconds)
        found["landing_settle_0_to_visible_p95_s"] = _percentile(seconds, 95)
        console.print("settle=0:  " + " ".join(f"{s:.2f}" for s in seconds))
        each = Landing(place, "each")
        each.drop()
        seconds = landings(each, runs, seed=3, pause=(6.0, 9.0))
        found["landing_run_per_file_p50_s"] = statistics.median(seconds)
        found["landing_run_per_file_max_s"] = max(seconds)
        console.print("a run each: " + " ".join(f"{s:.2f}" for s in seconds))
    return found


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    console = Console()
    with tempfile.TemporaryDirectory(prefix="bench-landing-") as folder:
        for key, value in measure(console, quick=quick, root=Path(folder)).items():
            console.print(f"{key}: {value:.3f}")


if __name__ == "__main__":
    main()
