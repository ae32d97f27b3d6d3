"""`python tests/benchmarks/bench_figure7.py`: how much throughput consistent states cost (figure 7).

V172–V174 are the method, V183–V194 what was found with it.

**What is measured.** The throughput of an application with a consistent state every 2 or 8 seconds, over that of the
same pipeline without states: `loss_<app>_<period>s` is 1 minus the quotient. `bench_lanes.py` says what the two lanes
have in common (reading, plans, staging, two windows in hand) and what only the region does. Regions are made periodic,
a state a window; in `enron_ds` every file is a state, and the period is that at which they are committed. The windows
of both lanes are the same number of the same files, so many that one takes about a period, found out before; how long
they took without states is `window_<app>_<period>s`, in seconds.

Stateless chains: Parquet, dealt to one or four chains of 8 to 64 functors, joined in one sink that drops all rows; a
state every 4 seconds, where the paper has 8. Keys `loss_stateless_<chains>x<length>`.

**What a sample is.** A window. Windows come in turns with states and without, as `TURNS` has them: five each for a case
(10 at 2 s), all of one home a lane, whose state grows as it would. Before, each lane has
one window of their size that does not count: whichever lane has the first one of a size, it takes up to twice as long.
Throughput is relative to the mean of the windows without (V173). The interval, `_low` and `_high`, is that of a
quotient of two means at 95 %, by Student's t; a loss may be negative, and is left so.

Both lanes work in batches as long as the period, and short batches cost by themselves. What that is can be seen in the
`speed_<app>_<period>s_without`, files a second: it grows with the period. `loss_apps_worst` and `loss_stateless_worst`
are the largest of the losses.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from bench_flows import APPLICATIONS, Flow, chains_of_functors
from bench_lanes import Lane, Without, WithStates
from rich.console import Console

from drainmark.resources.spark.session import SparkEngine

if TYPE_CHECKING:
    from bench_lanes import Content

PERIODS = {2: 2, 8: 1}
"""Seconds, and how often `TURNS` is repeated: short windows vary more. At 32 s, which the paper also has, less is lost
than at 8 s, and an equally narrow interval takes four times as long: `--period 32` measures it."""

CHAINS = (1, 4)
LENGTHS = (8, 16, 32, 64)
CHAIN_SECONDS = 4.0
TURNS = "owwoowwoow"
"""The order of windows with states (w) and without (o)."""

PAPERS = ("log_watch", "enron_fs", "enron_ds", "vwap", "lois")
"""The five applications of the figure; `bank_alerts` is measured only if it is named."""

_PATIENCE = 4
_GROWTH = 4
_TRIES = 6
_TOLERANCE = 1.25
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One flow at one period.

    Attributes:
        key: the key of its figures, after `loss_`.
        seconds: the seconds that a window should take.
        turns: the order of windows, as in `TURNS`.
    """

    key: str
    flow: Flow
    seconds: float
    turns: str = TURNS


@dataclass(slots=True)
class Samples:
    """The throughputs of the windows of a case, in files a second."""

    with_states: list[float] = field(default_factory=list)
    without: list[float] = field(default_factory=list)


# --- windows ------------------------------------------------------------------------------------------------------


def stretches(turns: str) -> Iterator[tuple[bool, int]]:
    """Yield (with states?, number of windows) of turns such as "owwo"."""
    for kind, windows in groupby(turns):
        yield kind == "w", len(list(windows))


def measured(engine: SparkEngine, case: Case, content: Content, root: Path, files: int) -> Samples:
    """Process the windows of a case in the order of its turns.

    Raises:
        WrongResult: rows were lost, or came twice.
    """
    lanes: dict[bool, Lane] = {}
    found = Samples()
    for is_with, kind in ((False, Without), (True, WithStates)):
        lanes[is_with] = lane_of(
            kind, engine=engine, flow=case.flow, content=content, folder=root / kind.__name__, seconds=case.seconds
        )
        lanes[is_with].seconds(1, files)
    for is_with, windows in stretches(case.turns):
        seconds = lanes[is_with].seconds(windows, files)
        (found.with_states if is_with else found.without).extend(files / taken for taken in seconds)
    for lane in lanes.values():
        lane.close()
    return found


def lane_of(
    kind: type[Lane], *, engine: SparkEngine, flow: Flow, content: Content, folder: Path, seconds: float
) -> Lane:
    """Return a lane: a flow on a home of its own, whose regions take a state for each window.

    Each window is one tick. The declared period is longer than a window may take: if a state takes longer than the
    period, the region halves its next slice, and a slow machine would cut the windows in two.
    """
    opened = flow.at_period(_PATIENCE * seconds)
    return kind(engine=engine, folder=folder, content=content, opened=opened, warming=flow.starts)


@dataclass(slots=True)
class Calibration:
    """A search for the number of files that take a given time, in a separate lane without states.

    Attributes:
        files, seconds: size and time of the last window that was tried.
    """

    lane: Lane
    files: int
    seconds: float = 0.0

    def fitting(self, seconds: float) -> int:
        """Return how many files take `seconds`; if no window fits, the number that the last try suggests.

        Raises:
            WrongResult: a window was not processed in one go.
        """
        wanted = 1 if self.seconds else 2  # the first window runs cold, so its fit does not count alone
        if self.seconds:
            self._aim_at(seconds)
        fits = 0
        for _ in range(_TRIES):
            self.seconds = self.lane.seconds(2, self.files)[-1]  # the first window of a size is slow
            fits = fits + 1 if seconds / _TOLERANCE <= self.seconds <= seconds * _TOLERANCE else 0
            if fits == wanted:
                break
            if not fits:
                self._aim_at(seconds)
        return self.files

    def _aim_at(self, seconds: float) -> None:
        """Scale the number of files by the time of the last window; fixed costs in it make the result too small."""
        factor = min(_GROWTH, seconds / self.seconds)
        self.files = max(self.lane.warming, round(self.files * factor))


# --- figures ------------------------------------------------------------------------------------------------------


def lost(key: str, samples: Samples) -> dict[str, float]:
    """Return the lost share of the throughput with its interval, and both mean throughputs."""
    ours, theirs = statistics.mean(samples.with_states), statistics.mean(samples.without)
    kept = ours / theirs
    parts = [(spread_of(each) / statistics.mean(each)) ** 2 for each in (samples.with_states, samples.without)]
    degrees = _degrees(parts, [len(samples.with_states), len(samples.without)])
    half = kept * math.sqrt(sum(parts)) * _T_975[min(degrees, len(_T_975)) - 1]
    return {
        f"loss_{key}": 1 - kept,
        f"loss_{key}_low": 1 - kept - half,
        f"loss_{key}_high": 1 - kept + half,
        f"speed_{key}_with": ours,
        f"speed_{key}_without": theirs,
    }


def spread_of(values: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 for a single value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _degrees(parts: Sequence[float], counts: Sequence[int]) -> int:
    """Return Welch's degrees of freedom, rounded down, at least 1."""
    below = sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True) if count > 1)
    return max(1, math.floor(sum(parts) ** 2 / below)) if below else 1


def worst(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the largest loss among applications and among chains, each with its interval."""
    found: dict[str, float] = {}
    for name, is_one in (("stateless", _is_chain), ("apps", lambda key: not _is_chain(key))):
        keys = [key for key in figures if key.startswith("loss_") and not key.endswith(("_low", "_high"))]
        keys = [key for key in keys if is_one(key)]
        if keys:
            largest = max(keys, key=figures.__getitem__)
            found |= {f"loss_{name}_worst{end}": figures[largest + end] for end in ("", "_low", "_high")}
    return found


def _is_chain(key: str) -> bool:
    return key.startswith("loss_stateless_")


# --- all of it ----------------------------------------------------------------------------------------------------


def cases(*, quick: bool, chain_seconds: float, periods: Sequence[int] = tuple(PERIODS)) -> Iterator[Case]:
    """Yield the cases, grouped by flow."""
    for name, flow in APPLICATIONS.items():
        for period in [min(PERIODS)] if quick else periods:
            turns = "owwo" if quick else TURNS * PERIODS.get(period, 1)
            yield Case(key=f"{name}_{period}s", flow=flow, seconds=0.5 if quick else period, turns=turns)
    for chains in CHAINS:
        for length in LENGTHS[:1] if quick else LENGTHS:
            flow = chains_of_functors(chains, length)
            turns = "owwo" if quick else TURNS
            yield Case(key=flow.name, flow=flow, seconds=0.5 if quick else chain_seconds, turns=turns)


def is_wanted(key: str, only: Sequence[str]) -> bool:
    """Say whether a case is measured; by default only the paper's cases are."""
    return key.startswith(tuple(f"{name}_" for name in only or (*PAPERS, "stateless")))


def measure(
    console: Console, *, quick: bool, root: Path, only: Sequence[str] = (), engine: SparkEngine | None = None,
    chain_seconds: float = CHAIN_SECONDS, periods: Sequence[int] = tuple(PERIODS),
) -> dict[str, float]:  # fmt: skip
    """Measure the cases; about half an hour on two cores.

    Args:
        quick: windows of half a second, the shortest period and the shortest chains: shows that it runs.
        root: an empty folder on a disk that holds a gigabyte.
        only: names of applications, or `stateless`; by default the paper's five applications and `stateless`.
    """
    engine = engine or SparkEngine(f"local[{os.cpu_count()}]", {}, root / "spark")
    figures: dict[str, float] = {}
    found = cases(quick=quick, chain_seconds=chain_seconds, periods=periods)
    wanted = [case for case in found if is_wanted(case.key, only)]
    for flow, of_flow in groupby(wanted, key=lambda case: case.flow):
        folder = root / flow.name
        content = flow.content(folder / "content")
        trial = folder / "calibration"
        lane = lane_of(Without, engine=engine, flow=flow, content=content, folder=trial, seconds=min(PERIODS))
        calibration = Calibration(lane, files=2 * flow.starts)
        for case in of_flow:
            files = calibration.fitting(case.seconds)
            samples = measured(engine, case, content, folder / case.key, files)
            figures |= lost(case.key, samples)
            figures[f"window_{case.key}"] = files / figures[f"speed_{case.key}_without"]
            shutil.rmtree(folder / case.key)
            console.print(_line(case, files, samples, figures), highlight=False)
        lane.close()
        shutil.rmtree(folder)
    return figures | worst(figures)


def _line(case: Case, files: int, samples: Samples, figures: Mapping[str, float]) -> str:
    loss, low, high = (figures[f"loss_{case.key}{end}"] for end in ("", "_low", "_high"))
    seconds = [[round(files / speed, 2) for speed in each] for each in (samples.with_states, samples.without)]
    return (
        f"{case.key}: {loss:.1%} lost ({low:.1%} to {high:.1%}); windows of {files} files took {seconds[0]} s with "
        f"states, {seconds[1]} s without"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="windows of half a second, the shortest chains")
    parser.add_argument("--only", action="append", default=[], help=f"of {', '.join(APPLICATIONS)}, stateless")
    parser.add_argument("--chain-seconds", type=float, default=CHAIN_SECONDS, help="period of the chains (4)")
    parser.add_argument("--period", action="append", type=int, help=f"seconds ({', '.join(map(str, PERIODS))})")
    options = parser.parse_args()
    console = Console(width=200)
    with tempfile.TemporaryDirectory(prefix="drainmark-bench-", ignore_cleanup_errors=True) as folder:
        console.print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", highlight=False)
        found = measure(
            console, quick=options.quick, root=Path(folder), only=options.only, chain_seconds=options.chain_seconds,
            periods=options.period or tuple(PERIODS),
        )  # fmt: skip
        console.print_json(json.dumps(found))
        console.file.flush()
        os._exit(0)  # do not wait for daemon threads or the JVM (H34)


if __name__ == "__main__":
    main()
