"""Unaligned states under stress (M11): a failure every few steps, rewinds, garbage collected all the time; no row is
lost or doubled, whatever retention may delete."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from staged_app import FILES, REGION, staged

from jobs.errors import DrainmarkError
from jobs.failpoints import ChannelPoint, FailPoint, InjectedFailure, arm
from orchestration.garbage import collect_region
from orchestration.operations import resume
from orchestration.testing.comparing import Tables
from orchestration.testing.processing import scan
from orchestration.testing.running import Result

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RunApp = Callable[..., Result]
POINTS = (
    *ChannelPoint,
    *(point for point in FailPoint if point.value.startswith(("process.", "checkpoint", "publish.", "progress."))),
)
MORE = {f"{number:02d}.txt": text for number, text in enumerate([*FILES.values(), *FILES.values()])}


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    arm("")


def sinks(result: Result) -> Tables:
    found = Tables.of(result.workplace, REGION).rows
    return Tables({key: rows for key, rows in found.items() if not key[0].startswith("state/")})


@pytest.mark.seed("F1", "F5", "F28", "K10", "K22", "K23")
@pytest.mark.parametrize("seed", range(4))
def test_failures_rewinds_and_garbage_change_nothing(run_app: RunApp, seed: int) -> None:
    chance = random.Random(seed)
    golden = sinks(run_app(staged(cut=False), MORE, max_group=2))
    kind = chance.choice(["memory", "durable"])
    app = staged(alignment="unaligned", channels=kind, batches=2, max_consecutive_reset_attempts=50, rewind_horizon=4)
    result = run_app(app, max_group=1)
    for name, text in sorted(MORE.items()):
        result.add({name: text})
        one_step(result, chance)
    arm("")
    result.run()
    assert not list(sinks(result).unequal_to(golden, sorted(MORE)))
    assert result.status["inflight_batches"] == 0


def one_step(result: Result, chance: random.Random) -> None:
    arm(f"{chance.choice(POINTS).value}:{chance.choice(['raise', 'raise', 'lost_reply'])}:{chance.randrange(1, 6)}")
    result.max_group = chance.choice([1, 2, 3])
    try:
        result.run()
    except (InjectedFailure, DrainmarkError):
        arm("")
        if result.status["halt_reason"]:
            resume(result.workplace, REGION, reason="stressed")
    arm("")
    if chance.random() < 0.3:
        collect_region(result.workplace, REGION)
    if chance.random() < 0.3:
        history = result.workplace.history(REGION)
        targets = [number for number in history.states if number >= history.oldest_target(4)]
        if targets:
            result.rewind(chance.choice(targets))
            scan(result.workplace, result.opened, result.region)
