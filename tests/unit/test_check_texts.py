"""The messages of Dagster's checks of a region: a failed check names the file and the remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pytest
from by_hand import HandFed

import drainmark as dm
from drainmark.jobs.regions.plan import RegionPlan, compile_application
from drainmark.orchestration.dagster_assets.checks import (
    AT_COMMITTED_ID,
    QUARANTINE_RATIO,
    REWIND_HORIZON,
    Judgement,
    judgements,
)
from drainmark.orchestration.verbs.inputs.backfill import Wanted, plan_queue
from drainmark.orchestration.verbs.rewinds.retract import carry_out, plan_retract
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

HORIZON = 2
KEPT = dg.AssetKey(["by_hand", "kept"])


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[HandFed]:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = HandFed(place, tmp_path / "inbox")
    yield scene
    place.registry.close()


def plan() -> RegionPlan:
    with dm.application("by_hand") as declared:

        @dm.consistent(trigger="operator-driven", rewind_horizon=HORIZON)
        @dm.source(dm.DirectoryScan(path="inbox", format="text"))
        def files(scanned: Any) -> Any:
            return scanned

        dm.sink(dm.expect(files, "value <> ''", on_fail="warn", name="named"), dm.DeltaAppend("kept"))
    return compile_application(dm.build_application(declared)).regions[0]


def judged(fed: HandFed) -> Mapping[str, Judgement]:
    """Return the judgements by name, and of the check that each table has the sink's."""
    found = judgements(fed.workplace, plan())
    return {each.name: each for each in found if each.name != AT_COMMITTED_ID or each.assets == [KEPT]}


def test_a_quarantine_names_the_newest_file_and_a_short_horizon_what_lengthens_it(fed: HandFed) -> None:
    names = [str(number) for number in range(HORIZON + 3)]
    for name in names:
        fed.write(name, ["x"])
    fed.add(*names)
    with fed.owning() as owner:
        for bad in (0, 1, 1, 0, 0):
            staged = fed.group(1)
            spoilt = {staged.group.last_id: bad} if bad else {}
            owner.groups.publish(owner.groups.commit(dataclasses.replace(staged, rows_quarantined=spoilt)))
    found = judged(fed)
    said = found[QUARANTINE_RATIO].description
    assert f"the newest in {fed.inbox / '2'}: drainmark quarantine list by_hand/files" in said
    assert not found[REWIND_HORIZON].passed
    assert "rewind_horizon" in found[REWIND_HORIZON].description
    assert found[AT_COMMITTED_ID].passed


@pytest.mark.parametrize("by", ["a better file", "a retraction"])
def test_an_expectation_is_met_again_once_the_rows_are_replaced(fed: HandFed, by: str) -> None:
    for name in "ab":
        fed.write(name, ["x"])
    fed.add("a", "b")
    with fed.owning() as owner:
        staged = dataclasses.replace(fed.group(2), unmet={1: {"named": 1}})
        owner.groups.publish(owner.groups.commit(staged))
    assert judged(fed)["expectation_named"].metadata["drainmark/rows_unmet"] == 1
    if by == "a retraction":
        carry_out(fed.workplace, plan_retract(fed.workplace, fed.region, ["a"]), "")
    else:
        plan_queue(fed.workplace, fed.region, Wanted(pattern=str(fed.inbox / "a"), again=True)).carry_out(fed.workplace)
        fed.drain()
    assert fed.history().committed_id == 3
    assert judged(fed)["expectation_named"].passed


def test_rows_above_the_committed_id_name_the_repair(fed: HandFed) -> None:
    fed.write("a", ["x"])
    fed.add("a")
    fed.drain()
    table = fed.workplace.home / "lake" / "kept"
    rows = pa.table({"value": ["by others"], "_sequence_id": pa.array([9], pa.int64())})
    deltalake.write_deltalake(str(table), rows, mode="append")
    found = judged(fed)[AT_COMMITTED_ID]
    assert not found.passed
    assert found.description.endswith("lake/kept: drainmark doctor --repair")
