"""Resets in parallel: all start at once, all are awaited, and the first failure is raised (V115, N23)."""

from __future__ import annotations

import threading

import pytest
from waiting import SOON

from drainmark.jobs.runtime.timeout import side_by_side


@pytest.mark.seed("V115", "N23")
def test_what_waits_for_each_other_ends() -> None:
    barrier, done = threading.Barrier(3), []

    def meet() -> None:
        barrier.wait(SOON)
        done.append(threading.current_thread().name)

    side_by_side([meet] * 3)
    assert done == ["side by side"] * 3


@pytest.mark.seed("N23")
def test_the_first_failure_is_raised_when_all_are_over() -> None:
    failed, ended = threading.Event(), []

    def first() -> None:
        failed.set()
        raise KeyError("first")

    def second() -> None:
        assert failed.wait(SOON)
        threading.Event().wait(0.2)
        ended.append("second")
        raise ValueError("second")

    with pytest.raises(KeyError) as raised:
        side_by_side([second, first])
    assert ended == ["second"], "none goes on behind the caller"
    assert "ValueError: second" in raised.value.__notes__[0]


def test_one_alone_has_no_thread_and_none_is_nothing() -> None:
    names = []
    side_by_side([lambda: names.append(threading.current_thread().name)])
    side_by_side([])
    assert names == [threading.current_thread().name]
