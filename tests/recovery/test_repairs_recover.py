"""A repair of tables that others changed, with a failure at each commit: it is repeated, and no row is doubled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from by_hand import Counting, HandFed, Shown
from deltalake import DeltaTable
from scene import assert_none

from drainmark.jobs.failpoints import FailPoint
from drainmark.orchestration.testing.crash.children import Nursery
from drainmark.orchestration.testing.crash.invariants import reused_ids
from drainmark.orchestration.testing.crash.matrix import actions, is_of_repair
from drainmark.orchestration.verbs import interventions, table_repair
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

OF_REPAIRS = tuple(point for point in FailPoint if is_of_repair(point))
TABLES = ("lake/kept", "state/by_hand/last", "lake/last")


@pytest.fixture
def harmed(tmp_path: Path) -> Iterator[Counting]:
    """Yield a region after others have changed every table of it."""
    scene = Counting(Workplace(Settings(home=tmp_path / "home", project_root=tmp_path)), tmp_path / "inbox")
    for name, values in (("one", "a b"), ("two", "a c")):
        scene.write(name, values.split())
        scene.add(name)
    scene.drain()
    for name in TABLES:
        DeltaTable(scene.workplace.home / name).delete("value = 'a'")
    yield scene
    scene.workplace.registry.close()


def request(harmed: HandFed, failpoints: str) -> dict[str, Any]:
    home = harmed.workplace.home
    return {
        "home": str(home), "root": str(home.parent), "master": "local[1]", "app": "none", "inputs": [],
        "region": harmed.region, "steps": [["repair"]], "failpoints": failpoints,
        "settings": {"databases": dict(harmed.workplace.settings.databases)},
    }  # fmt: skip


@pytest.mark.seed("RT1")
@pytest.mark.parametrize(("point", "landed"), [(FailPoint.REPAIR_BEFORE, 1), (FailPoint.REPAIR_AFTER, 2)])
def test_a_repair_that_was_killed_at_its_second_table_is_done_again(
    harmed: Counting, nursery: Nursery, point: FailPoint, landed: int
) -> None:
    ended = nursery.start(request(harmed, f"{point.value}:kill:2"), harmed.workplace.home.parent).wait()
    assert ended.code == -9, ended
    left = [step.table for region in table_repair.plan(harmed.workplace) for step in region.tables]
    assert left == list(TABLES[landed:])
    table_repair.mend(harmed.workplace, harmed.region)
    assert table_repair.plan(harmed.workplace) == []
    interventions.resume(harmed.workplace, harmed.region, "put right")
    harmed.write("three", ["a"])
    harmed.add("three")
    harmed.drain()
    store = harmed.workplace.store(harmed.region)
    assert_none(reused_ids(store.checkpoint.rows()))
    third = harmed.history().committed_id
    assert harmed.values() == [(1, "a"), (1, "b"), (2, "a"), (2, "c"), (third, "a")]
    assert harmed.values("last") == [(1, "b"), (2, "c"), (third, "a")]


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Shown]:
    """Yield a region of three ids whose database and folder were deleted after them."""
    settings = Settings(
        home=tmp_path / "home", project_root=tmp_path, databases={"shop": f"sqlite:///{tmp_path}/shop.db"}
    )
    scene = Shown(Workplace(settings), tmp_path / "inbox", sinks=("rows", "files"))
    for name in "abc":
        scene.write(name, [name])
        scene.add(name)
    scene.drain()
    (tmp_path / "shop.db").unlink()
    shutil.rmtree(scene.workplace.home / "out")
    yield scene
    scene.workplace.registry.close()


@pytest.mark.parametrize(
    ("point", "action", "passing"),
    [
        pytest.param(point, action, passing, marks=() if (action, passing) == ("kill", 2) else pytest.mark.recovery)
        for point in OF_REPAIRS for action in actions(point) for passing in (1, 2)
    ],
)  # fmt: skip
def test_a_repair_of_sinks_outside_that_failed_is_done_again(
    behind: Shown, nursery: Nursery, point: FailPoint, action: str, passing: int
) -> None:
    ended = nursery.start(request(behind, f"{point.value}:{action}:{passing}"), behind.workplace.home.parent).wait()
    assert ended.code in ((-9,) if action == "kill" else (0, 1)), ended
    table_repair.mend(behind.workplace, behind.region)
    assert table_repair.plan(behind.workplace) == []
    behind.write("d", ["d"])
    behind.add("d")
    behind.drain()
    assert behind.shown("rows") == behind.shown("files") == behind.values()
    assert [value for _, value in behind.values()] == list("abcd")
