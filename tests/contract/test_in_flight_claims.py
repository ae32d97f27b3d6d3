"""Batches in flight must have a place in the code that claims their region; otherwise the claim fails (F28, H2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from channel_parts import commit_in_flight
from followed import follow

from drainmark.jobs.errors import InFlightLost
from drainmark.jobs.protocol.claimed_code import Code
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.triggers import NewTrigger
from drainmark.jobs.protocol.stage_flow import ChannelLink
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

REGION = "app/start"
CHANNEL = "start->behind"
STAGES = {"start": ("early",), "behind": ("count",)}
CUT = Code(
    operators={"count": "x"}, stages=STAGES, channels={CHANNEL: ChannelLink(stage_from="start", stage_to="behind")}
)
UNCUT = Code(operators={"count": "x"})


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    """Yield a home with three pending files."""
    found = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    files = [NewTrigger(uri=f"file:///in/{n}", identity={}, identity_key=str(n), size_bytes=1) for n in range(3)]
    found.registry.triggers.add(REGION, files)
    yield found
    found.registry.close()


def claimed(place: Workplace, code: Code) -> RegionOwner:
    owner = region_owner(place, REGION)
    owner.claim(code=code)
    return owner


def put_in_flight(place: Workplace, owner: RegionOwner) -> int:
    return commit_in_flight(owner, place.registry.triggers.pending(REGION, 1)[0], CHANNEL, behind=0)


@pytest.mark.seed("F28")
def test_a_state_is_not_dropped_while_what_belongs_to_it_is_in_flight(place: Workplace) -> None:
    owner = claimed(place, CUT)
    put_in_flight(place, owner)
    owner.release(Outcome.CLEAN)
    epoch = place.history(REGION).epoch
    drop = Code(operators=CUT.operators, stages=STAGES, channels=CUT.channels, dropped=frozenset({"count"}),
                states={"count": "g1"})  # fmt: skip
    with pytest.raises(InFlightLost, match="count") as refused:
        claimed(place, drop)
    assert "without --drop-state" in refused.value.remedy
    history = place.history(REGION)
    assert (history.epoch, history.generations) == (epoch, {}), "nothing was changed"
    early = Code(operators=CUT.operators, stages=STAGES, channels=CUT.channels, dropped=frozenset({"early"}),
                 states={"early": "g1"})  # fmt: skip
    claimed(place, early).release(Outcome.CLEAN)
    assert set(place.history(REGION).generations) == {"early"}, "its stage has done all that is committed"
    follow(refused.value.remedy, "reset", place.home)
    claimed(place, drop).release(Outcome.CLEAN)
    assert not place.history(REGION).flow.batches


@pytest.mark.seed("F28", "H2", "H3")
def test_what_a_woken_owner_puts_in_flight_under_the_claim_of_other_code_is_kept(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old owner is stopped while the new one looks; it wakes and commits before the claim of the new one lands."""
    zombie = claimed(place, CUT)
    zombie.outside.lease.release(clean=True)
    other = region_owner(place, REGION)
    checkpoint = other.outside.store.checkpoint
    claim = checkpoint.claim

    def late(row: CheckpointRow) -> None:
        put_in_flight(place, zombie)
        claim(row)

    monkeypatch.setattr(checkpoint, "claim", late)
    with pytest.raises(InFlightLost):
        other.claim(code=UNCUT)

    assert place.history(REGION).epoch == other.epoch > zombie.epoch
    assert place.history(REGION).flow == zombie.history.flow
    with pytest.raises(InFlightLost):
        claimed(place, UNCUT)
    owner = claimed(place, CUT)
    assert [(batch.first_id, batch.last_id) for batch in owner.history.flow.channels[CHANNEL]] == [(1, 1)]
    assert owner.history.flow.through == {"start": 1, "behind": 0}
    owner.release(Outcome.CLEAN)
