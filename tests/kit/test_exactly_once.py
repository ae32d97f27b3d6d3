"""`assert_exactly_once`: it passes right applications, reaches every step, and finds errors (V168, V169, T1)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.failpoints import OF_AUTONOMOUS, OF_STAGES, FailPoint
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.orchestration.testing.crash import matrix

TWO_REGIONS = Path(__file__).parents[1] / "recovery" / "apps" / "two_regions.py"
IN_FLIGHT = TWO_REGIONS.with_name("in_flight.py")
REGION = "two_regions/orders"
NOT_PASSED = {*OF_AUTONOMOUS, *OF_STAGES, *(point for point in FailPoint if matrix.is_of_slices(point))}


def orders(files: int = 3) -> dict[str, Any]:
    chance = random.Random(3)
    rows = [
        [
            {"customer": chance.choice("abc"), "item": chance.choice(["tea", "Tea", "oil"]), "amount": n - 2}
            for n in range(5)
        ]
        for _ in range(files)
    ]
    return {"orders": {f"{number}.csv": content for number, content in enumerate(rows)}}


def check(**options: Any) -> Any:
    """Check an application with two sinks and two states; return its proof."""
    (proof,) = dm.testing.assert_exactly_once(TWO_REGIONS, orders(), region=REGION, **options)
    return proof


# --- the matrix ---------------------------------------------------------------------------------------------------


def test_the_matrix_has_every_point_every_action_and_every_grouping_that_matters() -> None:
    found = list(matrix.cells(tuple(FailPoint), matrix.ACTIONS, (1, 2, "all")))
    assert len(found) == len(set(found))
    for point in FailPoint:
        sizes = {cell.grouping for cell in found if cell.point is point}
        assert sizes == ({1, 2, "all"} if matrix.is_of_group(point) else {"all"}), point
        ways = {cell.action for cell in found if cell.point is point}
        assert ways == {"raise", "kill", *(["lost_reply"] if point.value.endswith(".after_commit") else [])}, point


def test_what_cannot_be_tried_is_refused_at_once() -> None:
    with pytest.raises(UnknownName) as caught:
        check(fail_points=["publish.before_comit"])
    assert "publish.before_commit" in (caught.value.remedy or "")
    for wrong in ({"actions": ["explode"]}, {"groupings": [0]}):
        with pytest.raises(UsageError):
            check(**wrong)
    with pytest.raises(UsageError):
        dm.testing.assert_exactly_once("word_count", {"a.txt": "alone"})


# --- right applications -------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.seed("V4")
def test_an_application_of_two_sinks_survives_failures_around_its_commits() -> None:
    proof = check(fail_points=["rewind_table.after_commit"], groupings=("all",))
    actions = [(cell.point.value, cell.action) for cell in proof.failures]
    assert actions == [("rewind_table.after_commit", "raise"), ("rewind_table.after_commit", "lost_reply")]
    assert (proof.states, proof.unreached) == (3, ())


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_step_is_reached_and_survived_in_every_grouping() -> None:
    proof = check()
    assert set(proof.unreached) == NOT_PASSED, "the application has neither slices nor anything outside of its region"
    assert {cell.point for cell in proof.failures} == set(matrix.points("all")) - NOT_PASSED


@pytest.mark.slow
@pytest.mark.spark
def test_a_region_of_several_stages_survives_failures_around_its_commits() -> None:
    points = ["checkpoint.after_commit", "progress.before_commit", "progress.after_commit"]
    (proof,) = dm.testing.assert_exactly_once(IN_FLIGHT, orders(), fail_points=points, groupings=(2,))
    assert {cell.point.value for cell in proof.failures} == set(points)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_step_of_a_region_of_several_stages_is_survived() -> None:
    (proof,) = dm.testing.assert_exactly_once(IN_FLIGHT, orders())
    assert set(proof.unreached) == NOT_PASSED - {*OF_STAGES}


@pytest.mark.recovery
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_step_survives_sigkill() -> None:
    proof = check(actions=["kill"], groupings=(2,))
    assert set(proof.unreached) == NOT_PASSED, "the application has neither slices nor anything outside of its region"
    assert {cell.point for cell in proof.failures} == set(matrix.points("all")) - NOT_PASSED


# --- wrong applications -------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_recovery_that_forgets_to_publish_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """This mutant of the engine takes committed, unpublished groups for published ones."""
    honest = RegionOwner.roll_forward

    def forgetful(owner: RegionOwner) -> None:
        owner.ledger.done_through = owner.history.next_id
        honest(owner)

    monkeypatch.setattr(RegionOwner, "roll_forward", forgetful)
    with pytest.raises(AssertionError) as caught:
        check(fail_points=["publish.before_commit"], groupings=("all",), actions=["raise"])
    told = str(caught.value)
    assert "raise at publish.before_commit in one group of all files" in told
    assert "missing" in told
    assert "fail_points=['publish.before_commit'], groupings=['all'], actions=['raise']" in told
    kept = Path(told.partition("its home is kept: ")[2].partition("\n")[0])
    assert (kept / "checkpoints").is_dir()


def lines_with(column: Any) -> Any:
    def declared() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="in"))
        def lines(scanned: Any) -> Any:
            return dm.select(scanned, "value", column().alias("extra"))

        dm.sink(lines, dm.DeltaAppend("extras"))

    return declared


@pytest.mark.spark
def test_an_application_whose_rows_differ_from_run_to_run_is_found_without_any_failure() -> None:
    with pytest.raises(AssertionError, match=r"extras as readers see it: 2 missing and 2 surplus"):
        dm.testing.assert_grouping_free(lines_with(F.rand), {"a": "x\n", "b": "y\n"}, groupings=("all",))


@pytest.mark.spark
def test_a_point_that_is_named_must_be_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application has one sink: a group has one table, so there is no second passing of a publish."""
    app, files = lines_with(lambda: F.lit(1)), {"a": "x\n", "b": "y\n"}
    options: dict[str, Any] = {"groupings": (1,), "actions": ["raise"]}
    (proof,) = dm.testing.assert_exactly_once(app, files, fail_points=["publish.after_commit"], **options)
    assert len(proof.failures) == 1
    monkeypatch.setattr(matrix, "passings", lambda point: (99,))
    with pytest.raises(AssertionError, match=r"never passes drain\.before"):
        dm.testing.assert_exactly_once(app, files, fail_points=["drain.before"], **options)
