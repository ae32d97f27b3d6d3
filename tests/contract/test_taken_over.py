"""An owner that fails after another owner has claimed the region ends fenced: the claim caused its error (H7)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainmark.jobs.errors import AccountingError, DrainmarkError, Fenced, StoreUnavailable
from drainmark.jobs.failpoints import InjectedFailure, arm
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable
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


KILLED_OWNER = """
import os, signal, sys
from pathlib import Path
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

root = Path(sys.argv[1])
region_owner(Workplace(Settings(home=root / "home", project_root=root)), "app/start", run_id="run").claim()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_another_process_goes_on_with_has_died_once(place: Workplace) -> None:
    """Dagster may resume a run whose worker is dead: the id of the run is the same."""
    ended = subprocess.run([sys.executable, "-c", KILLED_OWNER, str(place.settings.project_root)], check=False)
    assert ended.returncode == -signal.SIGKILL
    owner = region_owner(place, REGION, run_id="run")
    owner.claim()
    assert [row.detail["previous"] for row in owner.outside.store.checkpoint.rows()][-1] == Outcome.CRASHED.value
    assert owner.history.attempts == 1
    owner.release(Outcome.CLEAN)


def test_a_run_whose_release_failed_has_not_died(place: Workplace) -> None:
    owner = region_owner(place, REGION, run_id="run")
    owner.claim()
    owner.outside.lease.release(clean=False)  # no row says how it ended, as when the disk fails
    again = region_owner(place, REGION, run_id="run")
    again.claim()
    assert again.history.attempts == 0
    again.release(Outcome.CLEAN)


def test_no_other_region_of_the_run_makes_it_forget_its_claim(place: Workplace) -> None:
    """`drainmark run APP` gives all regions one id."""
    owner, other = (region_owner(place, region, run_id="run") for region in (REGION, "app/other"))
    owner.claim()
    other.claim()
    owner.outside.lease.release(clean=False)
    again = region_owner(place, REGION, run_id="run")
    again.claim()
    assert again.history.attempts == 0
    again.release(Outcome.CLEAN)
    other.release(Outcome.CLEAN)


def test_a_run_whose_second_claim_failed_has_not_died(place: Workplace) -> None:
    owner = region_owner(place, REGION, run_id="run")
    owner.claim()
    owner.outside.lease.release(clean=False)
    arm("claim.before_commit:raise")
    try:
        with pytest.raises(InjectedFailure):
            region_owner(place, REGION, run_id="run").claim()
    finally:
        arm("")
    again = region_owner(place, REGION, run_id="run")
    again.claim()
    assert again.history.attempts == 0
    again.release(Outcome.CLEAN)


def test_a_run_whose_claim_was_committed_without_an_answer_has_not_died(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(table: CheckpointTable, row: CheckpointRow) -> None:
        commit(table, row)
        raise StoreUnavailable("no answer")

    commit = CheckpointTable.claim
    monkeypatch.setattr(CheckpointTable, "claim", unanswered)
    with pytest.raises(StoreUnavailable):
        region_owner(place, REGION, run_id="run").claim()
    monkeypatch.undo()
    assert place.history(REGION).epoch == 1
    again = region_owner(place, REGION, run_id="run")
    again.claim()
    assert again.history.attempts == 0
    again.release(Outcome.CLEAN)
