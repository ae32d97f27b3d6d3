"""The figures of a run of part `stages`, from the table that each contender leaves: pure, the same for all.

Every row of that table has a number, a value, and the times at which it began and at which the measuring map had it.
For each state, the times of its trigger and its durability are known. All times are taken while the flow is full: from
the moment when a quarter of the rows are through (the channels are full by then) until the last row begins.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bench_input import WrongResult
from bench_results import Figures, spread

WARM_SHARE = 0.25
"""The share of the rows that are through when the measuring begins."""

ALIGNED = "aligned"
WITHOUT = "without"
"""Modes that others are compared with; `WITHOUT` establishes only one state, at the end."""

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One run of the job. Times are seconds of the wall clock.

    Attributes:
        created: by row, the time at which it began.
        measured: by row, the time at which the measuring map had it.
        states: (triggered, durable) of each state that was established.
    """

    created: Any
    measured: Any
    states: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """The speed of a run while the flow was full.

    Attributes:
        rows_per_second: rows a second that reached the measuring map, after the first quarter of all rows.
        latency: median seconds of these rows, from their beginning to the measuring map.
        duration: median seconds from the trigger of a state until it was durable; None if there was no state.
    """

    rows_per_second: float
    latency: float
    duration: float | None


def steady(passage: Passage) -> Steady:
    """Return the speed of a run while the flow was full.

    Only states that were triggered in that time count; if there is none, the last state counts.
    """
    measured = np.sort(passage.measured)
    warm = measured[math.ceil(len(measured) * WARM_SHARE) - 1]
    is_counted = passage.measured > warm
    until = passage.created.max()
    durations = [durable - triggered for triggered, durable in passage.states if warm <= triggered <= until]
    if not durations and passage.states:
        triggered, durable = max(passage.states)
        durations = [durable - triggered]
    return Steady(
        rows_per_second=float(is_counted.sum() / (measured[-1] - warm)),
        latency=float(np.median((passage.measured - passage.created)[is_counted])),
        duration=statistics.median(durations) if durations else None,
    )


def mean_of(runs: Sequence[Steady]) -> Steady:
    """Combine several runs of a case into one: the mean throughput, the medians of the rest."""
    durations = [run.duration for run in runs if run.duration is not None]
    return Steady(
        rows_per_second=statistics.mean(run.rows_per_second for run in runs),
        latency=statistics.median(run.latency for run in runs),
        duration=statistics.median(durations) if durations else None,
    )


def require_rows(who: str, numbers: Any, values: Any, rows: int) -> None:
    """Compare the rows that a contender left with its input: each number n below `rows` once, with the value n / 2 + 1.

    Raises:
        WrongResult: a row is lost or doubled, or has another value.
    """
    found = np.sort(numbers)
    if len(found) != rows or not np.array_equal(found, np.arange(rows)):
        raise WrongResult(f"{who}: {len(found)} rows, {len(np.unique(found))} apart, expected {rows}")
    if not np.allclose(values, numbers / 2 + 1, rtol=_TOLERANCE, atol=0):
        raise WrongResult(f"{who}: the values add up to {values.sum()}, expected {(numbers / 2 + 1).sum()}")


# --- figures ------------------------------------------------------------------------------------------------------

Runs = Mapping[tuple[str, int], Sequence[Steady]]
"""By mode and sleep in µs, the speed of the run of each round."""


def figures_of(runs: Runs, prefix: str = "") -> Figures:
    """Return the figures of a contender; see part `stages` for the keys."""
    figures: Figures = {}
    for (mode, sleep), rounds in runs.items():
        case = f"{mode}_{sleep}us"
        figures |= spread(f"{prefix}stages_rows_per_second_{case}", [each.rows_per_second for each in rounds], digits=0)
        figures |= spread(f"{prefix}stages_latency_{case}", [each.latency for each in rounds])
        if durations := [each.duration for each in rounds if each.duration is not None]:
            figures |= spread(f"{prefix}stages_duration_{case}", durations)
    least, most = min(sleep for _, sleep in runs), max(sleep for _, sleep in runs)
    for mode in dict.fromkeys(mode for mode, _ in runs):
        if mode != WITHOUT:
            slow, fast = ([each.duration for each in runs[mode, sleep]] for sleep in (most, least))
            figures |= _by_round(f"{prefix}{mode}_duration_ratio", slow, fast, _quotient)
        for key, other in ((f"{mode}_loss", ALIGNED), (f"{mode}_loss_without", WITHOUT)):
            if mode not in (other, WITHOUT) and (other, least) in runs:
                pair = ([each.rows_per_second for each in runs[kind, least]] for kind in (mode, other))
                figures |= _by_round(prefix + key, *pair, _lost)
    return figures


def _by_round(
    key: str,
    ours: Iterable[float | None],
    others: Iterable[float | None],
    compared: Callable[[float, float], float],
) -> Figures:
    """Return the spread of a comparison round by round; nothing if no round has both values."""
    both = [(our, other) for our, other in zip(ours, others, strict=True) if our is not None and other is not None]
    return spread(key, [compared(our, other) for our, other in both], digits=4) if both else {}


def _quotient(some: float, other: float) -> float:
    return some / other


def _lost(some: float, other: float) -> float:
    return 1 - some / other
