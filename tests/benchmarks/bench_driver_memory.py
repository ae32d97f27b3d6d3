"""The memory of a run's process with a large group, and with a large state: its peak, less the peak with one line.

Each run, and each plan of a rewind, is a process of its own; the kernel reports its largest resident size (`VmHWM`).
Executors are in Spark's JVM here, whose heap is bounded; its figure is separate.

Part `large_files` reads one file of several gigabytes with a heap of one gigabyte, and reports each process's peak.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from bench_input import WrongResult
from bench_results import Figures
from clusters import Project, environment
from rich.console import Console

from drainmark.jobs.regions.formatting import counted

_MEGABYTES = {"append": 5 * 2**10, "overwrite": 500, "files": 500, "upsert": 1300}
"""Size of the group by sink; every line has a key of its own, so the upsert table has 20 million keys."""

_QUICK_MEGABYTES = 16
_SECONDS = 1800
_WATCH_SECONDS = 0.02
_CONF = {"spark.driver.memory": "2g"}
_LARGE_CONF = {"spark.driver.memory": "1g"}
_LARGE_GIGABYTES = {"csv": 5, "json": 5, "csv.gz": 8}
_PIECE_LINES = 200_000
_SINKS = {
    "append": 'dm.sink(rows, dm.DeltaAppend("out"))',
    "overwrite": 'dm.sink(rows, dm.DeltaOverwrite("out"))',
    "files": 'dm.sink(rows, dm.FileSink("{home}/exports", format="csv"))',
    "upsert": 'dm.sink(rows, dm.DeltaUpsert("out", keys=["k"]))',
}
_APP = """
import drainmark as dm


@dm.consistent(trigger="operator-driven", group_timeout={seconds})
@dm.source(dm.DirectoryScan(path="inbox", format="{format}", schema="k string, n bigint, x double, t string", settle=0))
def rows(scanned):
    return scanned


"""


@dataclass(slots=True)
class Peak:
    """The largest resident size, in MB, of the process of a verb, of Spark's JVM, and of one of its Python workers."""

    python: float = 0.0
    jvm: float = 0.0
    worker: float = 0.0

    def above(self, other: Peak) -> Peak:
        return Peak(self.python - other.python, self.jvm - other.jvm, self.worker - other.worker)


def measure(console: Console, *, quick: bool, root: Path) -> Figures:
    """Return the growth of the peaks in MB: by a group, by a group of one line after it, by the plan of a rewind."""
    grown: dict[str, Peak] = {}
    for kind, sink in _SINKS.items():
        given = root / "given.csv"
        lines = _write(given, (_QUICK_MEGABYTES if quick else _MEGABYTES[kind]) * 2**20)
        small, large = (_Place(root / f"{kind}-{name}", _app(sink)) for name in ("small", "large"))
        few = small.run("a,1,1.0,a\n", lines=1)
        grown[kind] = large.run(given, lines=lines).above(few)
        if kind == "upsert":
            grown["state"] = large.run("k0,1,1.0,a\n", lines=1).above(small.run("k0,1,1.0,a\n", lines=1))
            grown["plan"] = large.plan().above(small.plan())
        size = given.stat().st_size
        console.print(f"{kind}: {size / 2**20:.0f} MB, {lines} rows; {grown}", highlight=False)
        large.clear()
        given.unlink()
    figures = {f"driver_memory_growth_mb_{kind}": round(peak.python, 1) for kind, peak in grown.items()}
    return figures | {
        "driver_memory_growth_mb": max(figures.values()),
        "driver_memory_growth_mb_jvm": round(max(peak.jvm for peak in grown.values()), 1),
    }


def measure_large(console: Console, *, quick: bool, root: Path) -> Figures:
    """Return the peak MB, by process, of a run that reads one large file: of lines, and compressed."""
    figures: Figures = {}
    for name, gigabytes in _LARGE_GIGABYTES.items():
        given = root / f"given.{name}"
        lines = _write_pieces(given, gigabytes * (2**26 if quick else 2**30))
        form = name.partition(".")[0]
        place = _Place(root / name, _app(_SINKS["append"], form), _LARGE_CONF)
        peak = place.run(given, lines=lines)
        size = given.stat().st_size
        console.print(f"{name}: {size / 2**30:.2f} GB, {lines} rows; {peak}", highlight=False)
        key = name.replace(".", "_")
        figures |= {f"large_file_mb_{key}_{which}": round(mb, 1) for which, mb in asdict(peak).items()}
        place.clear()
        given.unlink()
    return figures


def _write_pieces(path: Path, size: int) -> int:
    """Write lines of about `size` bytes in total, before compression; return the number of lines."""
    chance = random.Random(7)
    values = ((f"k{n}", n, chance.random(), f"{chance.getrandbits(128):032x}") for n in range(_PIECE_LINES))
    if ".json" in path.suffixes:
        texts = (json.dumps(dict(zip("knxt", value, strict=True))) for value in values)
    else:
        texts = (",".join(map(str, value)) for value in values)
    piece = "".join(f"{text}\n" for text in texts).encode()
    times = max(1, size // len(piece))
    content = gzip.compress(piece, 1) if path.suffix == ".gz" else piece  # gzip reads many members as one file
    with path.open("wb") as file:
        file.writelines(itertools.repeat(content, times))
    return times * _PIECE_LINES


def _app(sink: str, form: str = "csv") -> str:
    return _APP.replace("{format}", form).replace("{seconds}", str(_SECONDS)) + f"{sink}\n"


def _write(path: Path, size: int) -> int:
    """Write lines of about `size` bytes in total, each with a key of its own; return the number of lines."""
    chance, lines = random.Random(7), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        while file.tell() < size:
            file.writelines(f"k{n},{n},{chance.random()},{chance.getrandbits(128):032x}\n" for n in _thousand(lines))
            lines += 1000
    return lines


def _thousand(first: int) -> Sequence[int]:
    return range(first, first + 1000)


class _Place:
    """A project of one application; each verb runs in a process of its own."""

    def __init__(self, folder: Path, app: str, conf: Mapping[str, str] = _CONF) -> None:
        self._project = Project(folder, "local[2]", conf)
        self._project.write(app, {}, small_group_bytes=0, max_group_bytes=16 * 2**30)
        self._files = 0

    def run(self, given: Path | str, *, lines: int) -> Peak:
        """Run a group that is one file, or a text written to a file.

        Raises:
            WrongResult: the run failed, or read another number of rows.
        """
        self._files += 1
        ending = "".join(given.suffixes) if isinstance(given, Path) else ".csv"
        target = self._project.folder / "inbox" / f"{self._files}{ending}"
        if isinstance(given, str):
            target.write_text(given)
        else:
            target.hardlink_to(given)
        peak, told = self._watched("run", "app.py")
        if f", {counted(lines, 'row')}," not in told:
            raise WrongResult(f"expected {lines} rows: {told[-800:]}")
        return peak

    def plan(self) -> Peak:
        """Ask for the plan of a rewind to the initial state."""
        peak, told = self._watched("reset", "app/rows", "--to", "0", code=2)
        if "rows leave or change" not in told:
            raise WrongResult(told[-800:])
        return peak

    def clear(self) -> None:
        subprocess.run(["rm", "-rf", str(self._project.folder)], check=True)

    def _watched(self, *arguments: str, code: int = 0) -> tuple[Peak, str]:
        log, peak = self._project.folder / "log", Peak()
        with log.open("w") as told:
            process = subprocess.Popen(
                [sys.executable, "-m", "drainmark.orchestration.cli.main", *arguments],
                cwd=self._project.folder, env=environment(), stdout=told, stderr=told,
            )  # fmt: skip
        deadline = time.monotonic() + _SECONDS
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            peak.python = max(peak.python, _resident(process.pid))
            below = _below(process.pid)
            peak.jvm = max(peak.jvm, *(_resident(each) for each, name in below if name == "java"), 0.0)
            peak.worker = max(peak.worker, *(_resident(each) for each, name in below if name != "java"), 0.0)
            time.sleep(_WATCH_SECONDS)
        if process.returncode != code:
            raise WrongResult(f"{arguments} ended with {process.returncode}: {log.read_text()[-800:]}")
        return peak, log.read_text()


def _below(pid: int) -> list[tuple[int, str]]:
    """Return the child processes: JVMs, and Spark's Python workers."""
    try:
        return [(each.pid, each.name()) for each in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _resident(pid: int) -> float:
    """Return the largest resident size of a process so far, in MB; 0 if it has ended."""
    try:
        told = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in told.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) / 1024 if found else 0.0
