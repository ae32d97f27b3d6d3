"""What views show while an owner comes or goes between the answers of the checkpoint table and the registry (F2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drainmark.jobs.protocol.history import Outcome, RegionHistory
from drainmark.jobs.protocol.transitions import State
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.orchestration.inspection.metrics import present_of
from drainmark.orchestration.inspection.region_view import moment_of
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.workplace import Workplace, looks
from drainmark.resources.settings import Settings

REGION = "app/start"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    workplace = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    yield workplace
    workplace.registry.close()


def once(act: Callable[[], object], read: Callable[[], RegionHistory], *, before: bool) -> Callable[[], RegionHistory]:
    """Return a reader that acts before or after its first reading."""
    left = [act]

    def reading() -> RegionHistory:
        if before and left:
            left.pop()()
        history = read()
        if left:
            left.pop()()
        return history

    return reading


def states_of(place: Workplace, read: Callable[[], Callable[[], RegionHistory]]) -> set[State]:
    registry = looks(place)
    return {moment_of(place, registry, REGION, read()).state, present_of(place, REGION, read()).moment.state}


def owned(place: Workplace) -> RegionOwner:
    owner = region_owner(place, REGION)
    owner.claim()
    return owner


def test_a_clean_hand_over_between_two_readings_is_no_death(place: Workplace) -> None:
    def leaving() -> Callable[[], RegionHistory]:
        owner = owned(place)
        return once(lambda: owner.release(Outcome.CLEAN), lambda: place.history(REGION), before=False)

    assert states_of(place, leaving) == {State.STARTED}


def test_a_claim_between_two_readings_is_no_death(place: Workplace) -> None:
    owned(place).release(Outcome.CLEAN)

    def coming() -> Callable[[], RegionHistory]:
        return once(lambda: owners.append(owned(place)), lambda: place.history(REGION), before=True)

    owners: list[RegionOwner] = []
    assert moment_of(place, looks(place), REGION, coming()).state is State.STARTED
    owners.pop().release(Outcome.CLEAN)
    assert moment_of(place, looks(place), REGION, coming()).living is not None
    owners.pop().leave()
    assert moment_of(place, looks(place), REGION).state is State.UNHEALTHY, "this one left without a word"
