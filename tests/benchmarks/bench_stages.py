"""Part `stages`: the time of a checkpoint while a slow stage limits the flow, ours and PyFlink's (FLIP-76, F8-F18).

The job: source, map, map, sleepy map (0 or 0.1 ms a row), measuring map, table; a channel between each two of them. The
input is always ahead, so all channels before the slowest stage are full. Our job (`bench_stages_job`) has five stages
on `local[cores]`, and each file of 20 000 rows is a group and a state. Flink's (`flink_stages_job`) has as many slots
as cores and a checkpoint every second. In both, single records sleep: one row in ten sleeps for a millisecond, and as
many rows sleep at the same time as there are cores. Modes: `aligned`; `unaligned`, with channels in memory that are
written for a checkpoint (ad hoc); `unaligned_durable`, with channels written as produced (continuous), only ours;
`without`, with only one state, at the end, and only without sleep.

The figures, measured while the flow is full (`bench_passages`):

- `unaligned_seconds_over_flink`: our unaligned duration over Flink's, with the longest sleep.
- `stages_duration_<mode>_<sleep>us`: median seconds from a state's trigger until it is durable. Ours: from the moment
  before the region takes the id of a file, before it reads the file, until the row of that id is committed; the batches
  in flight are written by then. Flink's: from its own trigger until the last task acknowledges, by its statistics; its
  later writes are not included.
- `stages_latency_<mode>_<sleep>us`: median seconds of a row from that trigger (Flink's: from the source) to the
  measuring map.
- `stages_rows_per_second_<mode>_<sleep>us`: rows that reach the measuring map.

`<mode>_duration_ratio` is the duration with the longest sleep over that without sleep. `<mode>_loss` is the share of
the throughput lost against `aligned`, `<mode>_loss_without` against `without`, both without sleep, when only the
machine limits the throughput. There we make two runs in each round, since single runs differ by more than the loss.
Flink's figures have the same keys after `flink_`; without Flink (`make bench-flink-setup`) there are only ours. Ratios
compare runs of the same round; figures are medians of the rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_flink
import numpy as np
import pyarrow as pa
import pyarrow.csv
from bench_input import WrongResult
from bench_parts import PassedOver
from bench_passages import WITHOUT, Passage, Steady, figures_of, mean_of, require_rows, steady
from bench_results import Figures
from bench_stages_job import MODES, Load, passage, write_numbers
from rich.console import Console

from drainmark.resources.spark.session import SparkEngine

FLINK_JOB = Path(__file__).with_name("flink_stages_job.py")
FLINK_MODES = ("aligned", "unaligned", WITHOUT)
COLUMNS = ("id", "x", "created", "measured")
_TIMEOUT_SECONDS = 1800

Case = tuple[str, int]
"""Mode, and sleep in µs a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The sizes of the runs.

    Attributes:
        sleeps: sleeps of the sleepy map, µs a row.
        awake: our runs for each round and mode without sleep.
        warm_files: files of the run that is not timed.
        flink_rows: rows of Flink's jobs, by sleep.
        flink_warm_rows: rows of Flink's job that is not timed.
    """

    sleeps: Sequence[int]
    awake: int
    load: Load
    warm_files: int
    flink_rows: Mapping[int, int]
    flink_warm_rows: int


def size_of(*, quick: bool) -> Size:
    """Return the sizes; with the default sizes a run takes about half a minute."""
    cores = os.cpu_count() or 1
    if quick:
        return Size(
            sleeps=(0, 100), awake=1, load=Load(files=8, rows=2000, batches=1, sleepers=cores), warm_files=2,
            flink_rows={0: 20_000, 100: 20_000}, flink_warm_rows=1000,
        )  # fmt: skip
    return Size(
        sleeps=(0, 100), awake=2, load=Load(files=32, rows=20_000, batches=4, sleepers=cores), warm_files=8,
        flink_rows={0: 400_000, 100: 400_000}, flink_warm_rows=50_000,
    )  # fmt: skip


def cases(modes: Sequence[str], sleeps: Sequence[int], number: int, *, awake: int = 1) -> list[Case]:
    """Return the cases of a round; every second round has the reverse order.

    Args:
        awake: how often cases without sleep are repeated: single runs of them differ by more than the loss.
    """
    least, found = min(sleeps), []
    for sleep in sleeps:
        of_sleep = [(mode, sleep) for mode in modes if mode != WITHOUT or sleep == least]
        for turn in range(awake if sleep == least else 1):
            found += of_sleep[:: -1 if turn % 2 else 1]
    return found[:: -1 if number % 2 else 1]


def measure(console: Console, *, quick: bool, root: Path, rounds: int) -> Figures:
    """Let Drainmark and Flink run in turns.

    Raises:
        WrongResult: one of them lost or doubled rows.
    """
    size = size_of(quick=quick)
    has_flink = _has_flink(console)
    ours: dict[Case, list[Steady]] = {}
    flink: dict[Case, list[Steady]] = {}
    engine = SparkEngine(f"local[{size.load.sleepers}]", {}, root / "spark")
    try:
        _warm_up(engine, root / "warm", size)
        inbox = root / "input" / "in"
        write_numbers(inbox, size.load)
        for number in range(rounds):
            of_round: dict[Case, list[Steady]] = {}
            for turn, (mode, sleep) in enumerate(cases(tuple(MODES), size.sleeps, number, awake=size.awake)):
                home = root / f"{number}-{turn}-{mode}"
                found = steady(passage(engine, inbox, home, size.load, sleep_us=sleep, mode=MODES[mode]))
                of_round.setdefault((mode, sleep), []).append(found)
                console.print(_line("Drainmark", mode, sleep, found))
            for case, runs in of_round.items():
                ours.setdefault(case, []).append(mean_of(runs))
            if has_flink:
                for case, found in _flink(root / f"flink-{number}", size, number).items():
                    flink.setdefault(case, []).append(found)
                    console.print(_line("Flink", *case, found))
    finally:
        engine.stop()
    figures = figures_of(ours) | (figures_of(flink, "flink_") if flink else {})
    both = f"stages_duration_unaligned_{max(size.sleeps)}us"
    if flink and both in figures:
        figures["unaligned_seconds_over_flink"] = round(figures[both] / figures[f"flink_{both}"], 2)
    return figures


def _has_flink(console: Console) -> bool:
    try:
        bench_flink.require_flink()
    except PassedOver as passed:
        console.print(f"[yellow]{passed}[/yellow]")
        return False
    return True


def _warm_up(engine: SparkEngine, folder: Path, size: Size) -> None:
    load = Load(files=size.warm_files, rows=size.load.rows, batches=1, sleepers=size.load.sleepers)
    inbox = folder / "input" / "in"
    write_numbers(inbox, load)
    passage(engine, inbox, folder / "home", load, sleep_us=0, mode=MODES["unaligned"])


def _line(who: str, mode: str, sleep: int, found: Steady) -> str:
    duration = "no state" if found.duration is None else f"a state in {found.duration:.3f} s"
    return (
        f"[dim]{who}, {mode}, {sleep} µs: {duration}, latency {found.latency:.2f} s, "
        f"{found.rows_per_second:,.0f} rows/s[/dim]"
    )


# --- Flink --------------------------------------------------------------------------------------------------------


def _flink(home: Path, size: Size, number: int) -> dict[Case, Steady]:
    """Run all cases of a round in one process of Flink, after a job that warms it up.

    Raises:
        WrongResult: rows were lost or doubled.
    """
    wanted = cases(FLINK_MODES, size.sleeps, number)
    jobs = [_job(mode, sleep, size.flink_rows[sleep]) for mode, sleep in wanted]
    warm = {**_job("aligned", 0, size.flink_warm_rows), "name": "warm"}
    home.mkdir()
    program = [bench_flink.ENVIRONMENT / "bin" / "python", FLINK_JOB, home, size.load.sleepers]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, program), json.dumps([warm, *jobs])], env=environment, capture_output=True, text=True, check=False,
        timeout=_TIMEOUT_SECONDS,
    )  # fmt: skip
    if done.returncode:
        msg = f"Flink's job failed with exit code {done.returncode}: {done.stderr[-3000:]}"
        raise RuntimeError(msg)
    states: dict[str, list[tuple[float, float]]] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    return {
        case: steady(flink_passage(home / job["name"] / "rows", job, states[job["name"]]))
        for case, job in zip(wanted, jobs, strict=True)
    }


def _job(mode: str, sleep: int, rows: int) -> dict[str, Any]:
    return {"name": f"{mode}-{sleep}", "mode": mode, "sleep_us": sleep, "rows": rows}


def flink_passage(folder: Path, job: Mapping[str, Any], states: Sequence[tuple[float, float]]) -> Passage:
    """Return the passage of a job of Flink, from the files that its sink committed.

    Raises:
        WrongResult: a file is not committed, or a row is lost or doubled.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for path in files:
        if path.name.startswith((".", "_")):
            raise WrongResult(f"Flink's sink left {path.name} uncommitted")
    options = pa.csv.ReadOptions(column_names=COLUMNS)
    full = [path for path in files if path.stat().st_size]
    rows = pa.concat_tables([pa.csv.read_csv(path, read_options=options) for path in full])
    columns = {name: rows[name].to_numpy() for name in COLUMNS}
    require_rows(f"Flink, {job['name']}", columns["id"], columns["x"], job["rows"])
    created, measured = (columns[name].astype(np.float64) for name in ("created", "measured"))
    return Passage(created=created, measured=measured, states=[(begun, done) for begun, done in states])
