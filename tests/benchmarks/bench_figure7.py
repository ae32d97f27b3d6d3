"""`python tests/benchmarks/bench_figure7.py`: how much throughput consistent states cost (figure 7; V174, V183–V194).

Applications, a state every 2, 8 and 32 seconds: a period's input is four files, so large that the application takes
about that long for them, and a run of three periods is processed

- *with* states: a group a period, each drained, checkpointed and published;
- *without*: all of it as one group, until it is drained; the state at its end is not counted.

Code, input and reading are the same, so what is lost is what states cost, the Spark jobs that a group has for itself
among it. Of `enron_ds` every file is a state in both, and the period is that of the groups.

Stateless chains, a state every 8 seconds: Parquet, one or four chains of 8 to 64 functors, a union, a sink that drops
all rows; *without* is the same functors by Spark alone.

Lost is 1 - seconds without / seconds with, the mean of the rounds with a 95 % interval by Student's t as `_low` and
`_high`. A round is both, one after the other, in turns. Keys: `loss_<app>_<period>s`, `loss_stateless_<chains>x<n>`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_input import WrongResult
from rich.console import Console

import drainmark as dm
from drainmark import F
from jobs.runtime.run import GroupReport
from jobs.testing.market import generate_market
from jobs.testing.radio import generate_radio
from jobs.testing.syslog import generate_syslog
from orchestration.assembly import Opened, Workplace, open_application, region_run, scan_region
from resources.settings import Settings
from resources.spark import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PERIODS = (2, 8, 32)
CHAINS = (1, 4)
LENGTHS = (8, 16, 32, 64)
FILES = 4
"""Of a period."""
STATES = 3
"""Periods of a run that are measured; one more warms it up."""
CHAIN_SECONDS = 8.0
LONG_AGO = 1_000_000_000
MAX_BYTES = 4 << 30
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
WORDS = "the of to and in is that for on we you it with be this are not have as at will by from your or if"


Write = Callable[[Path, int, int], None]
"""Writes a file of a number and a size, in records, into a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured: an application, its input, and the size of the files for calibration."""

    application: Callable[[Path], Opened]
    write: Write
    first_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Seconds of the same input, with states and without."""

    with_states: float
    without: float

    @property
    def lost(self) -> float:
        return 1 - self.without / self.with_states


# --- input -----------------------------------------------------------------------------------------------------------


def syslog(folder: Path, number: int, size: int) -> None:
    (file,) = generate_syslog(seed=number, hosts=(f"host{number % FILES}",), files_per_host=1, lines_per_file=size)
    (folder / f"{number:06d}.log").write_text("".join(f"{line}\n" for line in file.lines))


def market(folder: Path, number: int, size: int) -> None:
    (file,) = generate_market(seed=number, files=1, records_per_file=size, symbols=1000)
    (folder / f"{number:06d}.csv").write_text(file.text)


def radio(folder: Path, number: int, size: int) -> None:
    (file,) = generate_radio(seed=number, channels=1, files_per_channel=1, samples_per_file=size)
    channel = folder / f"antenna{number % FILES}"
    channel.mkdir(exist_ok=True)
    (channel / f"{number:06d}.c64").write_bytes(file.content)


def mail(folder: Path, number: int, size: int) -> None:
    chance = np.random.default_rng(number)
    words = chance.choice(WORDS.split(), size)
    rare = np.char.add("w", chance.integers(0, 20_000, size // 10).astype(str))
    (folder / f"{number:06d}.txt").write_text(" ".join([*words, *rare]))


def events(folder: Path, number: int, size: int) -> None:
    chance = np.random.default_rng(number)
    table = pa.table({"key": chance.integers(0, 1000, size), "x": chance.random(size)})
    pq.write_table(table, folder / f"{number:06d}.parquet")


def shipped(name: str) -> Callable[[Path], Opened]:
    return lambda inbox: open_application(name, inputs=[str(inbox)])


APPLICATIONS: Mapping[str, Case] = {
    "log_watch": Case(application=shipped("log_watch"), write=syslog, first_size=2_000),
    "enron_ds": Case(application=shipped("enron_ds"), write=mail, first_size=20_000),
    "vwap": Case(application=shipped("vwap"), write=market, first_size=2_000),
    "lois": Case(application=shipped("lois"), write=radio, first_size=100_000),
}


def written(inbox: Path, write: Write, files: int, size: int, first: int = 0) -> None:
    """Write files of one size, so that no scan waits for them to settle."""
    inbox.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + files):
        write(inbox, number, size)
    for path in inbox.rglob("*"):
        if path.is_file():
            os.utime(path, (LONG_AGO, LONG_AGO))


# --- with a region ---------------------------------------------------------------------------------------------------


def run_groups(
    engine: SparkEngine, case: Case, inbox: Path, home: Path, runs: Sequence[tuple[int, int | None]]
) -> list[list[tuple[GroupReport, float]]]:
    """Process what is in the inbox in several runs of one process.

    Args:
        runs: of each, how many files a group has at most, and how many files it takes, all that are left for None.

    Returns:
        of each run the reports of its groups, with the seconds from the claim at which they came.

    Raises:
        WrongResult: not every file was committed.
    """
    place = Workplace(Settings(home=home, project_root=home.parent, max_group_bytes=MAX_BYTES))
    place.use_engine(engine)
    application = case.application(inbox)
    region = application.region()
    scan_region(place, region)
    found = []
    for group, files in runs:
        run = region_run(place, application, region, max_group=group, max_triggers=files)
        run.claim()
        began = time.monotonic()
        found.append([(report, time.monotonic() - began) for report in run.groups()])
        run.hand_over()
    pending = place.registry.pending_count(region.name)
    place.registry.close()
    shutil.rmtree(home)
    if pending:
        raise WrongResult(f"{pending} files of {inbox} were not processed")
    return found


def seconds_with(engine: SparkEngine, case: Case, inbox: Path, home: Path) -> float:
    """Return the seconds of the periods behind the first, a group each: from the first group's end to the last's."""
    (reports,) = run_groups(engine, case, inbox, home, [(FILES, None)])
    if len(reports) != STATES + 1:
        raise WrongResult(f"{len(reports)} groups, {STATES + 1} were to be")
    return float(reports[-1][1] - reports[0][1])


def seconds_without(engine: SparkEngine, case: Case, inbox: Path, home: Path) -> float:
    """Return the seconds of the same files as one group, behind a run of the first period; its end is not counted."""
    runs = [(FILES, FILES), (FILES * STATES, None)]
    _, ((report, _),) = run_groups(engine, case, inbox, home, runs)
    return float(report.process_seconds + report.drain_seconds)


def calibrated(engine: SparkEngine, case: Case, root: Path, seconds: float) -> int:
    """Return the size of a file, so that a group of four takes so many seconds: a straight line through two sizes."""
    took = {}
    for factor in (1, 1, 8):  # the first warms up
        inbox = root / f"calibration{factor}"
        written(inbox, case.write, FILES * 2, case.first_size * factor)
        (reports,) = run_groups(engine, case, inbox, root / "home", [(FILES, None)])
        took[factor] = reports[-1][1] - reports[0][1]
        shutil.rmtree(inbox)
    each = max((took[8] - took[1]) / 7, 1e-4)
    return int(case.first_size * max(1.0, 1 + (seconds - took[1]) / each))


def measured(engine: SparkEngine, case: Case, root: Path, seconds: float, rounds: int) -> Iterator[Round]:
    """Yield the rounds of an application with groups of so many seconds."""
    size = calibrated(engine, case, root, seconds)
    inbox = root / "inbox"
    written(inbox, case.write, FILES * (STATES + 1), size)
    takes = {"with_states": seconds_with, "without": seconds_without}
    for number in range(rounds):
        names = sorted(takes, reverse=bool(number % 2))
        yield Round(**{name: takes[name](engine, case, inbox, root / "home") for name in names})
    shutil.rmtree(inbox)


# --- stateless chains ------------------------------------------------------------------------------------------------


def functor(rows: DataFrame) -> DataFrame:
    """Some arithmetic on a row, which Spark cannot fold away."""
    return rows.withColumn("x", F.sin(F.col("x")) + F.col("key"))


def chained(inbox: Path, chains: int, length: int) -> Opened:
    """Return the application: rows go round robin to the chains, and from all of them to one sink that drops them."""
    with dm.application("stateless") as declared:

        @dm.consistent(trigger="operator-driven", drain_timeout=600.0)
        @dm.source(
            dm.DirectoryScan(path=str(inbox), pattern="*.parquet", format="parquet", schema="key bigint, x double")
        )
        def read(scanned: Any) -> Any:
            return scanned

        ends = []
        for chain in range(chains):
            stream = dm.filter(_turn(chain, chains), name=f"turn{chain}", inputs=[read])
            for place in range(length):
                stream = dm.functor(functor, name=f"f{chain}_{place:02d}", inputs=[stream])
            ends.append(dm.filter(lambda rows: F.col("x").isNull(), name=f"end{chain}", inputs=[stream]))
        for chain, end in enumerate(ends[1:], 1):
            ends[0] = dm.functor(
                lambda some, others: some.unionByName(others), name=f"joined{chain}", inputs=[ends[0], end]
            )
        dm.sink(ends[0], dm.DeltaAppend("dropped"))
    return open_application(dm.build_application(declared))


def _turn(chain: int, chains: int) -> Any:
    return lambda rows: F.col("key") % chains == chain


def chain_alone(engine: SparkEngine, inbox: Path, chains: int, length: int) -> float:
    """Return the seconds of the same files, a period's at a time, by Spark alone; the first period is not counted."""
    files = sorted(map(str, inbox.iterdir()))
    began = 0.0
    for first in range(0, len(files), FILES):
        if first == FILES:
            began = time.monotonic()
        read = engine.session.read.schema("key bigint, x double").parquet(*files[first : first + FILES])
        ends = []
        for chain in range(chains):
            rows = read.where(_turn(chain, chains)(read))
            for _ in range(length):
                rows = functor(rows)
            ends.append(rows.where(F.col("x").isNull()))
        joined = ends[0]
        for end in ends[1:]:
            joined = joined.unionByName(end)
        joined.toArrow()
    return time.monotonic() - began


def measured_chains(
    engine: SparkEngine, root: Path, *, chains: int, length: int, seconds: float, rounds: int
) -> Iterator[Round]:
    """Yield the rounds of chains of functors with groups of so many seconds."""
    case = Case(application=lambda inbox: chained(inbox, chains, length), write=events, first_size=100_000)
    inbox = root / "inbox"
    written(inbox, events, FILES * (STATES + 1), calibrated(engine, case, root, seconds))
    for number in range(rounds):
        found = {}
        for name in sorted(("with_states", "without"), reverse=bool(number % 2)):
            found[name] = (
                chain_alone(engine, inbox, chains, length)
                if name == "without"
                else seconds_with(engine, case, inbox, root / "home")
            )
        yield Round(**found)
    shutil.rmtree(inbox)


# --- figures ---------------------------------------------------------------------------------------------------------


def lost(key: str, rounds: Sequence[Round]) -> dict[str, float]:
    """Return the share of the throughput that is lost, with its interval."""
    shares = [one.lost for one in rounds]
    mean = statistics.mean(shares)
    half = 0.0
    if len(shares) > 1:
        degrees = len(shares) - 1
        factor = T_975[degrees - 1] if degrees <= len(T_975) else 2.2
        half = factor * statistics.stdev(shares) / math.sqrt(len(shares))
    return {key: mean, f"{key}_low": mean - half, f"{key}_high": mean + half}


def measure(
    console: Console, *, quick: bool, root: Path, rounds: int = 5, engine: SparkEngine | None = None,
    only: Sequence[str] = (),
) -> dict[str, float]:  # fmt: skip
    """Measure all cases.

    Args:
        quick: periods of two seconds and the shortest chains.
        root: an empty folder on a disk that holds a few gigabytes.
        rounds: of each case; at least five for an interval worth something.
        only: names of applications, or `stateless`; all by default.
    """
    engine = engine or SparkEngine(f"local[{os.cpu_count()}]", {}, root / "spark")
    cases: dict[str, Iterator[Round]] = {}
    for name, case in APPLICATIONS.items():
        for period in PERIODS[:1] if quick else PERIODS:
            key = f"{name}_{period}s"
            cases[key] = measured(engine, case, root / key, period, rounds)
    for chains in CHAINS:
        for length in LENGTHS[:1] if quick else LENGTHS:
            key = f"stateless_{chains}x{length}"
            cases[key] = measured_chains(
                engine, root / key, chains=chains, length=length, seconds=2.0 if quick else CHAIN_SECONDS, rounds=rounds
            )
    found: dict[str, float] = {}
    for key, case_rounds in cases.items():
        if only and not key.startswith(tuple(only)):
            continue
        taken = list(case_rounds)
        found.update(lost(f"loss_{key}", taken))
        shown = [(round(one.with_states, 2), round(one.without, 2)) for one in taken]
        console.print(f"{key}: {found[f'loss_{key}']:.1%} lost; seconds with and without {shown}", highlight=False)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="periods of two seconds, the shortest chains")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="an application, or stateless")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="drainmark-bench-") as folder:
        console.print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", highlight=False)
        found = measure(console, quick=options.quick, root=Path(folder), rounds=options.rounds, only=options.only)
        console.print_json(json.dumps(found))


if __name__ == "__main__":
    main()
