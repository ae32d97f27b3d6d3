"""Regions with states in runs, killed while the runs are written: the tables are as without failures."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import drainmark as dm
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.state import keyed_state, runs

pytestmark = [pytest.mark.spark, pytest.mark.seed("H29")]

APP = Path(__file__).parent / "apps" / "in_runs.py"


@pytest.fixture(autouse=True)
def whole_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back the constants that the application sets, because this process reads it, too."""
    for module, name in ((keyed_state, "MEMORY_STATE_BYTES"), (keyed_state, "_IMAGE_CHANGE_FILES"), (runs, "_LOWEST")):
        monkeypatch.setattr(module, name, getattr(module, name))


def orders(files: int) -> dict[str, str]:
    chance = random.Random(11)
    return {
        f"{number}.csv": "".join(f"{chance.choice('abcdef')},{chance.randrange(10)}\n" for _ in range(5))
        for number in range(files)
    }


@pytest.mark.recovery
def test_runs_that_were_written_and_not_committed_are_written_again() -> None:
    (proof,) = dm.testing.assert_exactly_once(
        APP,
        orders(4),
        fail_points=["checkpoint.before_commit"],
        groupings=(1,),
        actions=["raise"],
    )
    assert (proof.states, len(proof.failures)) == (4, 1)


@pytest.mark.recovery
@pytest.mark.timeout(1800)
def test_runs_survive_sigkill_at_every_step() -> None:
    (proof,) = dm.testing.assert_exactly_once(APP, orders(6), groupings=(1,), actions=["kill"])
    steps = ("assign", "process", "drain", "checkpoint", "publish")
    passed = {point for point in FailPoint if point.value.startswith(steps)}
    assert passed <= {cell.point for cell in proof.failures}
