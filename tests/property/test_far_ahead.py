"""One event time far ahead moves the watermark by no more than `max_ahead`, in any grouping."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest
from join_bench import JoinBench
from join_oracle import Join, told_by
from test_interval_joins import assert_told as assert_joined
from test_windowed_aggregates import assert_told
from window_bench import Bench
from window_cases import NOON, Case, Row
from window_oracles import by_session, by_time

import drainmark as dm
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.seed("H20")]

MINUTE = dt.timedelta(minutes=1)
YEARS = 50 * 365 * 24 * 60
FILES: list[list[int | None]] = [[0], [5], [6, YEARS], [None], [], [20], [3], [40]]
"""The rows of each file, in minutes after noon."""
LATE = {None: [3, 5, 6, 7], 10: [3, 6], 30: [3, 5, 6]}
"""By bound, in minutes, the files that have a late row; the row of the fourth file has no event time. From 12:05, the
third file moves the watermark to 12:15 or to 12:35; the fourth and the fifth leave it there."""
PARTS = [[3, 5], *(pytest.param(parts, marks=pytest.mark.slow) for parts in ([1] * 8, [8], [2, 2, 4]))]


def events(minutes: list[int | None]) -> list[Row]:
    return [
        {"user": "ann", "n": minute, "x": 1.0, "at": None if minute is None else NOON + minute * MINUTE,
         "ends": None, "km": None, "level": None}
        for minute in minutes
    ]  # fmt: skip


def bounded(window: str, minutes: int | None) -> Case:
    """Return the case of windows of two minutes, or of sessions with gaps of two minutes, without lateness."""
    gap, ahead = 2 * MINUTE, None if minutes is None else minutes * MINUTE
    more: dict[str, Any] = {"emit": "closed", "lateness": 0, "max_ahead": ahead}
    pace: dict[str, Any] = {"lateness": dt.timedelta(0), "max_ahead": ahead}
    if window == "session":
        return Case(name=window, more=more, window_keys=("window_start", "window_end"),
                    window=lambda: dm.session("at", gap=gap),
                    oracle=lambda files: by_session(files, ["user"], gap=gap, **pace))  # fmt: skip
    return Case(name=window, more=more, window_keys=("window_start",), window=lambda: dm.tumbling("at", minutes=2),
                oracle=lambda files: by_time(files, ["user"], "closed", size=gap, every=gap, **pace))  # fmt: skip


@pytest.mark.parametrize("window", ["tumbling", "session"])
@pytest.mark.parametrize("bound", LATE)
def test_the_oracle_has_rows_late_by_the_bound(window: str, bound: int | None) -> None:
    told = bounded(window, bound).oracle([*map(events, FILES)])
    assert [number for number, rows in enumerate(told.late) if rows] == LATE[bound]


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize(
    ("window", "bound"),
    [("tumbling", 10), *(pytest.param(window, bound, marks=pytest.mark.slow)
                         for window, bound in (("session", 10), ("tumbling", 30), ("tumbling", None)))],
)  # fmt: skip
def test_a_row_far_ahead_makes_rows_late_by_no_more_than_the_bound(
    engine: SparkEngine, window: str, bound: int | None, parts: list[int]
) -> None:
    """All else stays the same: the row far ahead waits in its window, and a row without event time moves nothing."""
    case, files = bounded(window, bound), [*map(events, FILES)]
    bench = Bench(engine.session, case)
    assert_told(bench, case, files, parts)
    (mark,) = bench.states["watermark"].to_pylist()
    reached = {10: NOON + 30 * MINUTE, 30: NOON + 40 * MINUTE, None: NOON + YEARS * MINUTE}[bound]
    assert mark["watermark"] == reached
    assert mark["newest"] == NOON + YEARS * MINUTE


@pytest.mark.slow
def test_a_bound_holds_from_the_state_that_is_there(engine: SparkEngine) -> None:
    """Other code goes on from the present watermark, first with one bound, then with another."""
    bench = Bench(engine.session, bounded("tumbling", None))
    bench.run([events([0]), events([5])], [2])
    for first, files, ahead, reached in ((3, [[YEARS]], 10, 15), (4, [[YEARS], [YEARS]], 1, 17)):
        emission = dataclasses.replace(bench.operator.emission, max_ahead=ahead * MINUTE)
        bench.operator = dataclasses.replace(bench.operator, emission=emission)
        (mark,) = bench.go_on([*map(events, files)], first).watermark
        assert mark["watermark"] == NOON + reached * MINUTE


def sided(*rows: tuple[str, int]) -> list[Row]:
    return [{"side": side, "user": "ann", "x": 1.0, "n": n, "at": NOON + minute * MINUTE}
            for n, (side, minute) in enumerate(rows)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("parts", [[2, 3], [1] * 5, [5]], ids=str)
def test_each_side_of_a_join_has_the_bound(engine: SparkEngine, parts: list[int]) -> None:
    """The row far ahead is on the left; later left rows still meet right ones, and no row is emitted too soon."""
    join = Join(how="full", low=dt.timedelta(0), high=5 * MINUTE, lateness=dt.timedelta(0), max_ahead=10 * MINUTE)
    files = [sided(("l", 0), ("r", 1)), sided(("l", YEARS), ("r", 2)), sided(("l", 12), ("r", 16)), sided(("l", 9)),
             sided(("l", 30), ("r", 30))]  # fmt: skip
    told = told_by(join, files)
    assert [number for number, rows in told.late["l"].items() if rows] == [3]
    assert_joined(JoinBench(engine.session, join).join(files, parts), told, len(files))
    lost = told_by(dataclasses.replace(join, max_ahead=None), files).late["l"]
    assert [number for number, rows in lost.items() if rows] == [2, 3, 4]
