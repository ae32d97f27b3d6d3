"""`drainmark retract` that is killed at any of its commits: the same command goes on, and no table is wrong then.

The command is a process of its own, killed by SIGKILL; the region before and after it is fed by hand.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from retracted_by_hand import DATABASES, Keyed, check

from drainmark.jobs.failpoints import ENVIRONMENT, FailPoint
from drainmark.jobs.protocol.history import retracted_by
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

POINTS = {
    FailPoint.CLAIM_BEFORE: 3,
    FailPoint.CLAIM_AFTER: 3,
    FailPoint.CHECKPOINT_BEFORE: 1,
    FailPoint.CHECKPOINT_AFTER: 1,
    FailPoint.PUBLISH_BEFORE: 6,
    FailPoint.PUBLISH_AFTER: 6,
    FailPoint.RESUME_BEFORE: 1,
    FailPoint.RESUME_AFTER: 1,
    FailPoint.NOTE_BEFORE: 1,
    FailPoint.NOTE_AFTER: 1,
    FailPoint.RELEASE_BEFORE: 1,
}
"""How often a retraction passes each: the claim also widens two histories; six tables are published."""

SAMPLE = {(FailPoint.CLAIM_AFTER, 2), (FailPoint.CHECKPOINT_BEFORE, 1), (FailPoint.CHECKPOINT_AFTER, 1),
          (FailPoint.PUBLISH_AFTER, 2), (FailPoint.PUBLISH_BEFORE, 6)}  # fmt: skip

CASES = [
    pytest.param(point, number, id=f"{point}-{number}", marks=() if (point, number) in SAMPLE else pytest.mark.slow)
    for point, times in POINTS.items()
    for number in range(1, times + 1)
]


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Keyed]:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases=DATABASES))
    yield Keyed(place, tmp_path / "inbox", names=("kept", "copied"))
    place.registry.close()


def retract(fed: Keyed, failpoint: str = "") -> int:
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "retract", fed.region, "b", "c", "--yes"]
    environment = {**os.environ, ENVIRONMENT: failpoint, "DRAINMARK_DATABASES__SHOP": DATABASES["shop"]}
    done = subprocess.run(
        [*command, "--home", str(fed.workplace.home)], env=environment, capture_output=True, check=False
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode


@pytest.mark.seed("RC5")
@pytest.mark.parametrize(("point", "number"), CASES)
def test_the_same_command_goes_on_after_a_kill(fed: Keyed, point: FailPoint, number: int) -> None:
    for name, values in {"a": ["a1", "b1"], "b": ["b2", "c2"], "c": ["a3", "d3"], "d": ["d4"]}.items():
        fed.write(name, values)
        fed.add(name)
    fed.drain(2)
    assert retract(fed, f"{point}:kill:{number}") == -signal.SIGKILL
    assert retract(fed) == 0
    check(fed)
    assert {old: retracted_by(fed.history(), old) is not None for old in (1, 2, 3, 4)} == {
        1: False, 2: True, 3: True, 4: False}  # fmt: skip
    history = fed.history()
    assert not history.unpublished
    assert sum(row.trigger_kind == "retraction" for row in history.states.values()) == 2
    fed.write("e", ["c5"])
    fed.add("e")
    fed.drain()
    check(fed)
