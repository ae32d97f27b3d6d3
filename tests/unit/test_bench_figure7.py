"""The arithmetic of figure 7's benchmark: its windows, and their figures (V173)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import bench_figure7
from bench_figure7 import PAPERS, PERIODS, Calibration, Samples


def test_the_paper_s_cases_are_measured_and_no_others() -> None:
    found = [case.key for case in bench_figure7.cases(quick=False, chain_seconds=4.0)]
    wanted = [key for key in found if bench_figure7.is_wanted(key, ())]
    applications = [f"{name}_{period}s" for name in PAPERS for period in PERIODS]
    chains = [f"stateless_{chains}x{length}" for chains in (1, 4) for length in (8, 16, 32, 64)]
    assert wanted == applications + chains
    assert [key for key in found if bench_figure7.is_wanted(key, ["vwap"])] == ["vwap_2s", "vwap_8s"]
    assert [key for key in found if bench_figure7.is_wanted(key, ["bank_alerts"])]


def test_every_case_has_five_windows_with_states_or_more() -> None:
    for case in bench_figure7.cases(quick=False, chain_seconds=4.0):
        counts = {True: 0, False: 0}
        for is_with, windows in bench_figure7.stretches(case.turns):
            counts[is_with] += windows
        assert counts[True] >= 5, case.key
        assert counts[False] >= 3, case.key


def test_stretches_are_what_comes_between_two_turns() -> None:
    assert list(bench_figure7.stretches("owwoo")) == [(False, 1), (True, 2), (False, 2)]


@dataclass
class Machine:
    """A lane with fixed times of windows; the first window of a size takes twice as long."""

    fixed: float
    each: float
    warming: int = 5

    def seconds(self, windows: int, files: int) -> list[float]:
        taken = self.fixed + self.each * files
        return [2 * taken, *[taken] * (windows - 1)]


@pytest.mark.parametrize("machine", [Machine(0.5, 0.05), Machine(1.0, 0.005), Machine(0.1, 0.4)])
def test_windows_are_fitted_to_each_period(machine: Machine) -> None:
    calibration = Calibration(machine, files=10)  # type: ignore[arg-type]
    for period in PERIODS:
        files = calibration.fitting(period)
        assert period / 1.25 <= machine.seconds(2, files)[-1] <= period * 1.25


def test_what_fits_while_all_is_cold_does_not_count() -> None:
    class Warming(Machine):
        def seconds(self, windows: int, files: int) -> list[float]:
            found = Machine.seconds(self, windows, files)
            self.fixed = 0.5
            return found

    calibration = Calibration(Warming(1.9, 0.01), files=10)  # type: ignore[arg-type]
    assert 90 <= calibration.fitting(2) <= 210, "half a second, and the rest for files"


def test_what_takes_longer_than_the_period_is_taken_as_small_as_it_may_be() -> None:
    assert Calibration(Machine(3.0, 0.1), files=10).fitting(2) == Machine.warming  # type: ignore[arg-type]


def test_what_is_lost_is_relative_to_the_mean_without_and_may_be_negative() -> None:
    figures = bench_figure7.lost("x", Samples([9.0, 9.0], [10.0, 10.0]))
    assert figures["loss_x"] == pytest.approx(0.1)
    assert (figures["loss_x_low"], figures["loss_x_high"]) == pytest.approx((0.1, 0.1))
    assert bench_figure7.lost("x", Samples([11.0], [10.0]))["loss_x"] == pytest.approx(-0.1)


def test_the_interval_is_welch_s_of_a_quotient() -> None:
    """Computed by hand: standard errors 0.5 of 9 and 0.5 of 10; two windows each give one to two degrees of freedom."""
    figures = bench_figure7.lost("x", Samples([8.5, 9.5], [9.5, 10.5]))
    relative = ((0.5 / 9) ** 2 + (0.5 / 10) ** 2) ** 0.5
    half = (figures["loss_x_high"] - figures["loss_x_low"]) / 2
    assert half == pytest.approx(0.9 * relative * 12.706)
    wide = bench_figure7.lost("x", Samples([8.5, 9.5] * 4, [9.5, 10.5] * 4))
    assert wide["loss_x_high"] - wide["loss_x_low"] < half


def test_the_worst_is_the_largest_loss_with_its_own_interval() -> None:
    figures = {}
    for key, speed in (("vwap_2s", 9.0), ("lois_2s", 8.0), ("stateless_1x8", 9.9)):
        figures |= bench_figure7.lost(key, Samples([speed - 0.1, speed + 0.1], [10.0, 10.0]))
    found = bench_figure7.worst(figures)
    assert found["loss_apps_worst"] == figures["loss_lois_2s"]
    assert found["loss_apps_worst_high"] == figures["loss_lois_2s_high"]
    assert found["loss_stateless_worst"] == figures["loss_stateless_1x8"]
    assert "loss_stateless_worst" not in bench_figure7.worst(bench_figure7.lost("vwap_2s", Samples([1.0], [1.0])))
