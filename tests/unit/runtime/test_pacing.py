"""A throttled run waits between groups, as long as its rows require, and stops waiting when it is interrupted."""

from __future__ import annotations

from drainmark.jobs.runtime.after_publish import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


def test_without_a_throttle_nothing_waits() -> None:
    pace = Pace.of([])
    pace.passed(10**9)
    assert pace.left_seconds == 0


def test_rows_take_their_time_and_time_that_went_by_counts() -> None:
    clock = Clock()
    pace = Pace(rows_per_second=10, clock=clock)
    pace.passed(50)
    assert pace.left_seconds == 5
    clock.now += 2
    pace.passed(10)
    assert pace.left_seconds == 4
    pace.wait(clock.wait)
    assert 106 <= clock.now < 106.001
    clock.now += 1000
    pace.passed(10)
    assert pace.left_seconds == 1, "what was not used is no credit"


def test_an_interrupt_ends_the_waiting() -> None:
    clock = Clock()
    pace = Pace(rows_per_second=1, clock=clock)
    pace.passed(1000)
    asked: list[float] = []
    pace.wait(lambda seconds: bool(asked.append(seconds)) or len(asked) == 3)
    assert len(asked) == 3
    assert max(asked) <= 1
