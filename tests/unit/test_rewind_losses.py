"""Which inputs a rewind says are lost: only those of which rows cannot come back (N5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from by_hand import HandFed

from drainmark.jobs.errors import RewindRefused
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.inputs import quarantine
from drainmark.orchestration.verbs.inputs.backfill import Wanted, plan_queue
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings


@dataclass
class Refusing(HandFed):
    """A hand-fed region that quarantines a file whole if it is empty."""

    def group(self, count: int) -> StagedGroup:
        staged = super().group(count)
        refused = {number: "is no file of values" for number, rows in staged.rows_in.items() if not rows}
        return replace(staged, refused=refused, rows_quarantined=dict.fromkeys(refused, 1))


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Refusing]:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    region = Refusing(place, tmp_path / "in")
    for name, values in (("a", ["a1"]), ("b", [])):
        region.write(name, values)
        region.add(name)
    region.drain()
    yield region
    place.registry.close()


def lost(fed: Refusing, to: int) -> tuple[list[str], list[str]]:
    plan = plan_reset(fed.workplace, fed.region, RewindTarget(to=to))
    return [Path(uri).name for uri in plan.gone], [Path(uri).name for uri in plan.changed]


@pytest.mark.parametrize("is_redriven", [True, False])
def test_a_file_that_was_quarantined_whole_and_fixed_is_not_lost(fed: Refusing, is_redriven: bool) -> None:
    fed.write("b", ["b1"])
    if is_redriven:
        assert (
            quarantine.carry_out(fed.workplace, quarantine.plan_redrive(fed.workplace, fed.region, "b"))["queued"] == 1
        )
        fed.drain()
    assert lost(fed, 1) == ([], [])
    plan = plan_reset(fed.workplace, fed.region, RewindTarget(to=1))
    assert len(plan.pending) == len({*plan.pending}), "a file is told once"
    interventions.reset(fed.workplace, plan)
    (fed.inbox / "a").write_text("other\n")
    assert lost(fed, 0) == ([], ["a"]), "the rows of this file cannot come back"
    with pytest.raises(RewindRefused, match="accept-loss"):
        interventions.reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=0)))


def test_a_file_that_was_processed_again_in_its_place_is_not_lost(fed: Refusing) -> None:
    fed.write("a", ["a1", "a2"])
    assert plan_queue(fed.workplace, fed.region, Wanted(pattern=str(fed.inbox / "a"), again=True)).carry_out(
        fed.workplace
    )["queued"]
    fed.drain()
    assert lost(fed, 0) == ([], [])
    fed.write("a", ["a9"])
    assert lost(fed, 0) == ([], ["a"])
    (fed.inbox / "a").unlink()
    assert lost(fed, 0) == (["a"], [])


@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize("accept_loss", [True, False])
def test_a_loss_that_came_after_the_plan_is_not_accepted(fed: Refusing, *, is_gone: bool, accept_loss: bool) -> None:
    for name in "cde":
        fed.write(name, [f"{name}1"])
        fed.add(name)
    fed.drain()
    if accept_loss:
        (fed.inbox / "d").unlink()
    plan, before = plan_reset(fed.workplace, fed.region, RewindTarget(to=1)), fed.values()
    if is_gone:
        (fed.inbox / "c").unlink()
    else:
        fed.write("c", ["another"])
    with pytest.raises(RewindRefused, match="since the plan was made") as refused:
        interventions.reset(fed.workplace, plan, accept_loss=accept_loss)
    assert "repeat the command" in (refused.value.remedy or "")
    assert (fed.values(), fed.history().rewinds) == (before, ()), "nothing was changed"
    again = plan_reset(fed.workplace, fed.region, RewindTarget(to=1))
    assert (again.gone if is_gone else again.changed)[0].endswith("/c")
    with pytest.raises(RewindRefused, match="gone or changed"):
        interventions.reset(fed.workplace, again)
    interventions.reset(fed.workplace, again, accept_loss=True)
    assert fed.values() == before[:1]
