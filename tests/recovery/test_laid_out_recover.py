"""Partitioned and sorted sinks under failures: the tables are as without failures, and as in plain Python (AU8)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import drainmark as dm
from drainmark.jobs.failpoints import FailPoint
from drainmark.orchestration.testing.running import Result

pytestmark = [pytest.mark.spark, pytest.mark.seed("AU8")]

APP = Path(__file__).parent / "apps" / "laid_out.py"
CITIES = ("Ulm", "a/b=c %", "")
"""An empty city is null in a partition."""


def orders(files: int) -> dict[str, str]:
    chance = random.Random(3)
    lines = [f"{chance.choice('abcd')},{chance.choice(CITIES)},{number}\n" for number in range(files * 4)]
    return {f"{number}.csv": "".join(lines[number * 4 : number * 4 + 4]) for number in range(files)}


@pytest.mark.recovery
def test_rows_are_in_their_partition_once_and_who_moves_leaves_the_old_one(run_app: Callable[..., Result]) -> None:
    files = orders(4)
    rows = [line.split(",") for text in files.values() for line in text.splitlines()]
    newest = {customer: (city or None, int(n)) for customer, city, n in rows}
    result = run_app(APP, files, max_group=2)
    for _ in range(2):
        found = [(row["customer"], row["city"], row["n"]) for row in result.sink("orders_by_city")]
        assert sorted(found, key=repr) == sorted(((c, city or None, int(n)) for c, city, n in rows), key=repr)
        assert {row["customer"]: (row["city"], row["n"]) for row in result.sink("newest_orders")} == newest
        assert len(result.sink("newest_orders")) == len(newest)
        result.rewind(1).run()


@pytest.mark.recovery
def test_a_group_that_is_killed_before_its_publishing_is_there_once() -> None:
    (proof,) = dm.testing.assert_exactly_once(
        APP, orders(4), fail_points=["publish.before_commit"], groupings=(2,), actions=["kill"]
    )
    assert (proof.states, len(proof.failures)) == (4, 1)


@pytest.mark.recovery
@pytest.mark.timeout(1800)
def test_sinks_survive_sigkill_at_every_step() -> None:
    (proof,) = dm.testing.assert_exactly_once(APP, orders(4), groupings=(2,), actions=["kill"])
    steps = ("assign", "process", "drain", "checkpoint", "publish")
    passed = {point for point in FailPoint if point.value.startswith(steps)}
    assert passed <= {cell.point for cell in proof.failures}
