"""Figures of part `stages`: the counts while the flow is full, and the comparisons between runs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # the benchmarks are programs in one folder, not a package

import bench_stages  # noqa: E402
from bench_input import WrongResult  # noqa: E402
from bench_passages import Passage, Steady, figures_of, mean_of, require_rows, steady  # noqa: E402


def passage(*states: tuple[float, float]) -> Passage:
    """Return eight rows that begin at 0, 1, … 7; each of the first four takes one second, each of the others two."""
    created = np.arange(8.0)
    return Passage(created=created, measured=created + np.array([1.0] * 4 + [2.0] * 4), states=states)


def test_rows_count_once_a_quarter_of_them_are_through() -> None:
    found = steady(passage())
    assert found.rows_per_second == 6 / 7  # from 2, when the second row was through, to 9
    assert found.latency == 2.0
    assert found.duration is None


def test_states_count_that_are_triggered_while_the_flow_is_full() -> None:
    found = steady(passage((1.0, 91.0), (2.5, 3.0), (4.0, 5.0), (6.0, 9.0), (7.5, 97.5)))
    assert found.duration == 1.0


def test_where_no_state_was_triggered_in_that_time_the_last_one_counts() -> None:
    assert steady(passage((0.5, 1.0), (1.0, 1.25))).duration == 0.25


def test_every_row_is_to_be_there_once_with_its_value() -> None:
    numbers = np.array([2, 0, 1])
    require_rows("it", numbers, numbers / 2 + 1, 3)
    for wrong, values in ((np.array([0, 1, 1]), None), (np.array([0, 1]), None), (numbers, numbers / 2)):
        with pytest.raises(WrongResult):
            require_rows("it", wrong, wrong / 2 + 1 if values is None else values, 3)


def of(rate: float, duration: float | None = None) -> Steady:
    return Steady(rows_per_second=rate, latency=1.0, duration=duration)


RUNS = {
    ("aligned", 0): [of(100.0, 1.0), of(50.0, 2.0)],
    ("aligned", 100): [of(10.0, 20.0), of(10.0, 20.0)],
    ("unaligned", 0): [of(90.0, 0.5), of(60.0, 0.5)],
    ("unaligned", 100): [of(10.0, 0.5), of(10.0, 0.25)],
    ("without", 0): [of(200.0), of(100.0)],
}


def test_runs_are_compared_round_by_round() -> None:
    found = figures_of(RUNS)
    assert (found["aligned_duration_ratio"], found["aligned_duration_ratio_high"]) == (15.0, 20.0)
    assert (found["unaligned_duration_ratio_low"], found["unaligned_duration_ratio_high"]) == (0.5, 1.0)
    assert (found["unaligned_loss_low"], found["unaligned_loss_high"]) == (-0.2, 0.1)
    assert (found["aligned_loss_without"], found["unaligned_loss_without_high"]) == (0.5, 0.55)
    assert found["stages_duration_unaligned_100us"] == 0.375
    assert not [key for key in found if key.startswith(("without_", "aligned_loss_low")) or "duration_without" in key]


def test_flinks_figures_have_the_same_keys_behind_its_name() -> None:
    assert {f"flink_{key}": value for key, value in figures_of(RUNS).items()} == figures_of(RUNS, "flink_")


def test_every_second_round_takes_the_cases_in_the_other_order() -> None:
    first = bench_stages.cases(("aligned", "without"), (0, 100), 0)
    assert first == [("aligned", 0), ("without", 0), ("aligned", 100)]
    assert bench_stages.cases(("aligned", "without"), (0, 100), 1) == first[::-1]


def test_the_rows_of_flink_are_those_that_its_sink_committed(tmp_path: Path) -> None:
    job = {"name": "aligned-0", "rows": 3}
    (tmp_path / "part-0-0").write_text("0,1.0,10.5,11.5\n2,2.0,10.5,12.0\n")
    (tmp_path / "part-1-0").write_text("1,1.5,10.0,11.0\n")
    (tmp_path / "part-1-1").write_text("")
    found = bench_stages.flink_passage(tmp_path, job, [(10.0, 10.25)])
    assert sorted(found.measured - found.created) == [1.0, 1.0, 1.5]
    assert found.states == [(10.0, 10.25)]
    (tmp_path / ".part-0-1.inprogress").write_text("3,2.5,10.0,11.0\n")
    with pytest.raises(WrongResult, match="uncommitted"):
        bench_stages.flink_passage(tmp_path, job, [])


def test_cases_without_sleep_come_in_turns() -> None:
    found = bench_stages.cases(("aligned", "unaligned"), (0, 100), 0, awake=2)
    assert [mode for mode, sleep in found if not sleep] == ["aligned", "unaligned", "unaligned", "aligned"]
    assert [mode for mode, sleep in found if sleep] == ["aligned", "unaligned"]


def test_the_runs_of_a_round_are_one() -> None:
    assert mean_of([of(100.0, 1.0), of(50.0, 2.0), of(60.0, 9.0)]) == of(70.0, 2.0)
    assert mean_of([of(100.0), of(50.0)]) == of(75.0)
