"""Failures during a recovery, twice and three times: no committed state is ever lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from scene import Scene

from drainmark.jobs.failpoints import FailPoint

Midway = Callable[..., Scene]

PUBLISH_SECOND = "publish.before_commit:kill:2"
CHAINS = {
    "claim": ["checkpoint.after_commit:kill", "claim.before_commit:kill"],
    "claimed": ["checkpoint.after_commit:kill", "claim.after_commit:kill"],
    "roll forward": ["checkpoint.after_commit:kill", "roll_forward.before:kill"],
    "publish": ["checkpoint.after_commit:kill", PUBLISH_SECOND],
    "published": ["publish.after_commit:kill", "publish.after_commit:kill"],
    "three times": ["publish.after_commit:kill", "claim.after_commit:kill", "publish.after_commit:kill:2"],
    "one step each time": ["publish.after_commit:kill"] * 4,
    "group": ["process.staged:kill", "checkpoint.before_commit:kill", "drain.before:kill"],
    "raised": ["checkpoint.after_commit:kill", "roll_forward.before:raise", "claim.before_commit:raise"],
}
"""The failure of each owner, including the first; each next failure cuts the recovery of the one before short."""

TABLES = (FailPoint.REWIND_TABLE_BEFORE, FailPoint.REWIND_TABLE_AFTER)
DEFAULT = ("three times",)


def chains() -> Iterator[Any]:
    for name, chain in CHAINS.items():
        yield pytest.param(chain, id=name, marks=() if name in DEFAULT else (pytest.mark.recovery,))


@pytest.mark.parametrize("chain", chains())
def test_recovery_survives_failures_of_its_own(midway: Midway, chain: Sequence[str]) -> None:
    scene = midway("two_regions")
    with scene.watched():
        for failpoint in chain:
            ended = scene.run(["run", 2], failpoints=failpoint)
            assert ended.code == (1 if "raise" in failpoint else -9), ended
            assert len(scene.history.states) >= 2
        scene.run_well(["run"])
    scene.assert_golden()
    assert scene.attempts_at_claims()[-1] == _unclean(chain)


def _unclean(chain: Sequence[str]) -> int:
    """Return the attempts at the last claim: one for each owner that had claimed and failed since the last state."""
    return sum(1 for failpoint in chain if not failpoint.startswith("claim.before"))


@pytest.mark.recovery
@pytest.mark.parametrize("first", [FailPoint.REWIND_AFTER, *TABLES])
@pytest.mark.parametrize("second", [FailPoint.ROLL_FORWARD, *TABLES])
def test_a_rewind_survives_failures_while_it_is_finished(midway: Midway, first: FailPoint, second: FailPoint) -> None:
    scene = midway("two_regions", 5)
    scene.run_killed(["rewind", 3], failpoints=f"{first.value}:kill")
    scene.run_killed(["own"], failpoints=f"{second.value}:kill")
    scene.run_killed(["own"], failpoints=f"{second.value}:kill")
    scene.run_well(["own"])
    scene.assert_sinks(scene.files[:3])
    scene.run_well(["run"])
    scene.assert_golden()
