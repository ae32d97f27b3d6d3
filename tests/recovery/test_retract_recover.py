"""`drainmark retract` that is killed at any of its commits: the same command goes on, and no table is wrong then.

The command is a process of its own, killed by SIGKILL; the region before and after it is fed by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from killed_commands import KILLED, killed_at
from retracted_by_hand import DATABASES, Keyed, check

from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.protocol.history import retracted_by
from drainmark.orchestration.cli.main import invoke
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

SAMPLE = {(FailPoint.CHECKPOINT_BEFORE, 1), (FailPoint.CHECKPOINT_AFTER, 1), (FailPoint.PUBLISH_AFTER, 2)}

CASES = [
    pytest.param(point, number, id=f"{point}-{number}", marks=() if (point, number) in SAMPLE else pytest.mark.slow)
    for point, times in POINTS.items()
    for number in range(1, times + 1)
]


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keyed]:
    monkeypatch.setenv("DRAINMARK_DATABASES__SHOP", DATABASES["shop"])
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases=DATABASES))
    yield Keyed(place, tmp_path / "inbox", names=("kept", "copied"))
    place.registry.close()


def command(fed: Keyed) -> list[str]:
    return ["retract", fed.region, "b", "c", "--yes", "--home", str(fed.workplace.home)]


@pytest.mark.seed("RC5")
@pytest.mark.parametrize(("point", "number"), CASES)
def test_the_same_command_goes_on_after_a_kill(fed: Keyed, point: FailPoint, number: int) -> None:
    for name, values in {"a": ["a1", "b1"], "b": ["b2", "c2"], "c": ["a3", "d3"], "d": ["d4"]}.items():
        fed.write(name, values)
        fed.add(name)
    fed.drain(2)
    assert killed_at(f"{point}:kill:{number}", *command(fed)) == KILLED
    assert invoke(command(fed)) == 0
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
