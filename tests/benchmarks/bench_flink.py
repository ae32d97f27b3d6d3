"""Part `flink`: Drainmark against Flink SQL, the same CSV files, filter and totals, on the same cores, in turns.

Flink runs in a process and a Python environment of its own (`make bench-flink-setup`), as `flink_job.py` says. It gets
every benefit: each process runs the job over a smaller folder first, so that its JVM is warm and its classes are
loaded, and its time is the job manager's own runtime, without planning and without starting a cluster. Our time is that
of everything, scan and claim included, on a warm session. Both leave files of the rows kept. Our totals are keyed state
that can be rewound; Flink's are its state and the lines of a `print` sink.

`flink_files_per_second_whole` counts planning and the mini cluster's start as well, `flink_files_per_second_cold` a
process that starts anew for the folder, Python and JVM included.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_ours
from bench_input import LIMIT, Expected, WrongResult, write_files
from bench_parts import PassedOver
from bench_results import Figures, ratios, spread
from rich.console import Console

from drainmark.resources.spark.session import SparkEngine

ENVIRONMENT = Path(__file__).parents[2] / ".bench-venv-flink"
JOB = Path(__file__).with_name("flink_job.py")
_WARM_FILES = 200
_TIMEOUT_SECONDS = 900
_CHANGE = r"(?::\d+)?> ([+-])[IUD]\[(\w+), (\d+), ([-+.\dE]+)\]"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkRun:
    """The times and results of a run of Flink.

    Attributes:
        net_seconds: the job's own runtime, as the job manager reports it.
        whole_seconds: from the job's submission to its end, planning and the cluster's start included.
        process_seconds: of the whole process, the warm job included.
    """

    net_seconds: float
    whole_seconds: float
    process_seconds: float
    kept: int
    totals: Mapping[str, tuple[int, float]]


def measure(
    console: Console, *, quick: bool, root: Path, bulk_files: int, rounds: int, master: str, conf: Sequence[str]
) -> Figures:
    """Let both process one folder, in turns.

    Raises:
        PassedOver: Flink is not installed.
        WrongResult: one of them miscounted.
    """
    require_flink()
    inbox, warm = root / "input", root / "warm"
    expected, _ = write_files(inbox, bulk_files, seed=12)
    write_files(warm, min(_WARM_FILES, bulk_files), seed=13)
    engine = SparkEngine(master, dict(item.split("=", 1) for item in conf), root / "spark")
    try:
        bench_ours.measure(engine, warm, root / "ours-warm", None, False)
        ours, flink = [], []
        for number in range(rounds):
            measured, _ = bench_ours.measure(engine, inbox, root / f"ours-{number}", None, False)
            expected.check("Drainmark", measured.kept, measured.totals)
            ours.append(measured.whole_seconds)
            flink.append(_once(inbox, warm, root / f"flink-{number}", expected))
            console.print(f"[dim]{bulk_files} files: Drainmark {ours[-1]:.2f} s, Flink {flink[-1].net_seconds:.2f} s "
                          f"({flink[-1].whole_seconds:.2f} s with its start)[/dim]")  # fmt: skip
        nothing = root / "nothing"
        write_files(nothing, 1, seed=14)
        cold = _once(inbox, nothing, root / "flink-cold", expected)
    finally:
        engine.stop()
    ratio, by_round = ratios(ours, {"flink": [run.net_seconds for run in flink]})
    figures = {
        **spread("bulk_ratio_flink", by_round),
        "bulk_ratio_flink": round(ratio, 3),
        **spread("flink_files_per_second_ours", [bulk_files / seconds for seconds in ours], digits=1),
        **spread("flink_files_per_second", [bulk_files / run.net_seconds for run in flink], digits=1),
        **spread("flink_files_per_second_whole", [bulk_files / run.whole_seconds for run in flink], digits=1),
        "flink_files_per_second_cold": round(bulk_files / cold.process_seconds, 1),
    }
    names = ("_ours", "", "_whole", "_cold")
    rates = [figures[f"flink_files_per_second{name}"] for name in names]
    console.print("files/s: Drainmark {}; Flink {} without its start-up, {} with, {} cold".format(*rates))
    return figures


def require_flink() -> None:
    """Refuse if Flink's environment is missing.

    Raises:
        PassedOver: Flink cannot be used; the message names the command to type.
    """
    if not (ENVIRONMENT / "bin" / "python").exists():
        raise PassedOver("Flink is not installed: make bench-flink-setup (a gigabyte, once)")
    found = subprocess.run([ENVIRONMENT / "bin" / "python", "-c", "import pyflink"], capture_output=True, check=False)
    if found.returncode:
        raise PassedOver(f"{ENVIRONMENT.name} has no PyFlink that can be imported: delete it, make bench-flink-setup")


def _once(inbox: Path, warm: Path, home: Path, expected: Expected) -> FlinkRun:
    home.mkdir()
    started = time.monotonic()
    told, printed = run_flink(JOB, inbox, warm, home)
    run = FlinkRun(
        net_seconds=told["net_seconds"],
        whole_seconds=told["whole_seconds"],
        process_seconds=time.monotonic() - started,
        kept=_kept(home / "measured" / "large"),
        totals=totals_of(printed, "measured"),
    )
    expected.check("Flink", run.kept, run.totals)
    return run


def run_flink(job: Path, *folders: Path) -> tuple[Any, str]:
    """Run a job in Flink's environment on all cores; return the JSON of its last line, and its whole output.

    Raises:
        RuntimeError: it failed.
    """
    program = [str(part) for part in (ENVIRONMENT / "bin" / "python", job, *folders, os.cpu_count() or 1)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        program, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
    )
    if done.returncode:
        msg = f"Flink's job failed with exit code {done.returncode}: {done.stderr[-3000:]}"
        raise RuntimeError(msg)
    return json.loads(done.stdout.rstrip().rpartition("\n")[2]), done.stdout


def _kept(folder: Path) -> int:
    """Count the rows of the sink's files; raise WrongResult for an uncommitted file, whose name begins with a dot."""
    kept = 0
    for path in folder.iterdir():
        if path.name.startswith((".", "_")):
            msg = f"Flink's sink left {path.name} uncommitted"
            raise WrongResult(msg)
        with path.open(newline="") as file:
            for row in csv.reader(file):
                kept += 1
                if len(row) != 4 or float(row[2]) <= LIMIT:
                    msg = f"Flink's sink holds {row}"
                    raise WrongResult(msg)
    return kept


def totals_of(printed: str, name: str) -> dict[str, tuple[int, float]]:
    """Return the last total of each key from the lines of a `print` sink, such as `+U[k01, 12, 3.5]`."""
    totals: dict[str, tuple[int, float]] = {}
    for sign, key, count, total in re.findall(name + _CHANGE, printed):
        if sign == "+":
            totals[key] = (int(count), float(total))
    return totals
