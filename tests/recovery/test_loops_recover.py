"""A region with a cycle under failures: rows in the cycle are in the state, or are made again (V94, V166, V168)."""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import drainmark as dm
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.failpoints import FailPoint, arm
from drainmark.orchestration.testing.running import Result

pytestmark = [pytest.mark.spark, pytest.mark.seed("V92", "V94", "V166")]

APP = Path(__file__).parent / "apps" / "looped.py"
MANY = 4


def orders(files: int) -> dict[str, str]:
    chance = random.Random(5)
    return {
        f"{number}.csv": "".join(f"{chance.choice('abc')},tea,{chance.randrange(9)}\n" for _ in range(4))
        for number in range(files)
    }


def let_through(files: dict[str, str]) -> list[str]:
    """Return the customers of the orders that pass, in plain Python: a file sees the bans of the files before it."""
    counts: Counter[str] = Counter()
    passed = []
    for text in files.values():
        mine = [customer for customer, *_ in csv.reader(text.splitlines()) if counts[customer] < MANY]
        counts.update(mine)
        passed += mine
    return sorted(passed)


@pytest.mark.recovery
def test_a_loop_survives_failures_before_and_after_its_commit(run_app: Callable[..., Result]) -> None:
    files = orders(4)
    result = run_app(APP, files)
    assert sorted(row["customer"] for row in result.sink("looped_orders")) == let_through(files)
    assert len(let_through(files)) < 16, "nobody was ever banned"
    (proof,) = dm.testing.assert_exactly_once(
        APP, files, fail_points=["process.staged", "publish.before_commit"], groupings=("all",), actions=["raise"]
    )
    assert (proof.states, len(proof.failures)) == (4, 2)


def test_a_loop_that_fails_once_lets_the_same_orders_through(run_app: Callable[..., Result]) -> None:
    files = orders(3)
    result = run_app(APP).add(files)
    arm(f"{FailPoint.PROCESS_STAGED.value}:raise:2")
    with pytest.raises(OperatorFailed):
        result.run()
    arm("")
    result.run()
    assert sorted(row["customer"] for row in result.sink("looped_orders")) == let_through(files)
    assert len(let_through(files)) < 12, "nobody was ever banned"


@pytest.mark.recovery
@pytest.mark.timeout(1800)
def test_a_loop_survives_sigkill_at_every_step() -> None:
    (proof,) = dm.testing.assert_exactly_once(APP, orders(4), groupings=("all",), actions=["kill"])
    steps = ("assign", "process", "drain", "checkpoint", "publish")
    passed = {point for point in FailPoint if point.value.startswith(steps)}
    assert passed <= {cell.point for cell in proof.failures}
