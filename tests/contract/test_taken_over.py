"""An owner that fails after another owner has claimed the region ends fenced: the claim caused its error (H7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drainmark.jobs.errors import AccountingError, DrainmarkError, Fenced
from drainmark.jobs.failpoints import InjectedFailure, arm
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

REGION = "app/start"
GONE = AccountingError("staged file _staged/1-a/0.parquet of lake/t is gone", remedy="look", path="0.parquet")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    found = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    yield found
    found.registry.close()


def taken_over(place: Workplace, owner: RegionOwner) -> RegionOwner:
    """Claim the region of an owner that lost its lease without noticing; `gc` may then delete its staged files."""
    owner.outside.lease.release(clean=True)
    other = region_owner(place, REGION)
    other.claim()
    return other


@pytest.mark.seed("H7")
def test_a_verb_whose_staged_files_were_collected_by_the_next_owner_is_fenced(place: Workplace) -> None:
    owner = region_owner(place, REGION)
    others: list[RegionOwner] = []

    def fail() -> None:
        others.append(taken_over(place, owner))
        raise GONE

    with pytest.raises(Fenced) as caught, owning(owner):
        fail()
    assert caught.value.__cause__ is GONE
    assert "lake/t is gone" in str(caught.value), "an error of the author's is not lost"
    assert place.history(REGION).epoch == others[0].epoch > owner.epoch
    assert place.history(REGION).attempts == others[0].history.attempts, "its end counts nothing"
    others[0].release(Outcome.CLEAN)


def test_the_same_error_of_an_owner_that_is_one_is_told_as_it_is(place: Workplace) -> None:
    with pytest.raises(DrainmarkError) as caught, owning(region_owner(place, REGION)):
        raise GONE
    assert caught.value is GONE
    assert place.history(REGION).attempts == 0


def test_a_claim_that_fails_is_not_taken_for_a_take_over(place: Workplace) -> None:
    arm("claim.before_commit:raise")
    try:
        with pytest.raises(InjectedFailure), owning(region_owner(place, REGION)):
            pass
    finally:
        arm("")
