"""Turns of several regions in one command: those that did something are told, however long the command runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from drainmark.orchestration.runs import run_loop
from drainmark.orchestration.runs.run_loop import RegionLoop, RunOptions, Watch, run_application, summary_of


@dataclass
class Turns:
    """A clock that each pause moves, and a region loop that finds work at some turns only."""

    now: float = 0.0
    made: list[Any] = field(default_factory=list)

    def loop(self, *, region: Any, **others: Any) -> Any:
        found = SimpleNamespace(region=region, reports=[], has_claimed=False, run=lambda: self.run(found))
        self.made.append(found)
        return found

    def run(self, loop: Any) -> None:
        loop.has_claimed = self.now in {3.0, 7.0} and loop.region.name == "a/busy"

    def pause(self, seconds: float) -> None:
        self.now += seconds


def test_turns_without_work_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    monkeypatch.setattr(run_loop, "RegionLoop", turns.loop)
    monkeypatch.setattr(run_loop.world, "monotonic", lambda: turns.now)
    regions: Any = [SimpleNamespace(name="a/busy"), SimpleNamespace(name="a/idle")]
    done = run_application(
        SimpleNamespace(), SimpleNamespace(), regions, options=RunOptions(seconds=1000.0), watch=Watch(), run_id="r",
        interruption=SimpleNamespace(pause=turns.pause),
    )  # type: ignore[arg-type]  # fmt: skip
    assert len(turns.made) > 1000
    assert [(loop.region.name, loop.has_claimed) for loop in done] == [
        ("a/busy", True),
        ("a/busy", True),
        ("a/busy", False),
        ("a/idle", False),
    ]


def test_turns_of_a_region_have_one_summary() -> None:
    history = SimpleNamespace(committed_id=5, epoch=2)
    place: Any = SimpleNamespace(history=lambda name: history)

    def loop(*ids: tuple[int, int], claimed: bool = True) -> RegionLoop:
        found = RegionLoop.__new__(RegionLoop)
        found.workplace, found.region, found.run_id = place, SimpleNamespace(name="a/b"), "r"  # type: ignore[assignment]
        found.reports = [
            SimpleNamespace(first_id=first, last_id=last, triggers=1, rows_in=2, rows_quarantined=0, bytes_in=3)
            for first, last in ids
        ]  # type: ignore[misc]
        found.has_claimed, found.unsettled, found.refused, found.started = claimed, 0, (), 0.0
        return found

    found = summary_of([loop((1, 2), (3, 3)), loop(), loop((4, 5)), loop(claimed=False)])
    assert (found["outcome"], found["groups"], found["rows_in"]) == ("processed", 3, 6)
    assert (found["first_sequence_id"], found["last_sequence_id"], found["committed_sequence_id"]) == (1, 5, 5)
    assert summary_of([loop(), loop(claimed=False)])["outcome"] == "recovered"
    assert summary_of([loop(claimed=False)])["outcome"] == "nothing to do"
