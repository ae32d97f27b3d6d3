"""`gc` finds the files that autonomous operators left: staged by failed batches, or replaced by merges (H8, V45)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from by_hand import SCHEMA_JSON, HandFed
from harness import At

from drainmark.jobs.failpoints import InjectedFailure, arm
from drainmark.jobs.world import entered
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.verbs.removals.garbage import OUTSIDE, collect_outside_regions
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta.autonomous_tables import AutonomousTable
from drainmark.resources.settings import Settings

DAYS = 2 * 86_400.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    found = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    yield found
    arm("")
    found.registry.close()


@pytest.fixture
def fed(place: Workplace, tmp_path: Path) -> HandFed:
    """Return a region that runs beside the autonomous tables."""
    scene = HandFed(place, tmp_path / "inbox")
    scene.write("a", ["a1"])
    scene.add("a")
    scene.drain()
    return scene


def autonomous(fed: HandFed, name: str) -> AutonomousTable:
    return fed.workplace.store(fed.region).autonomous(f"lake/{name}")


def rows(number: int, *values: str) -> pa.Table:
    return pa.table({"value": list(values), "_sequence_id": pa.array([number] * len(values), pa.int64())})


def values(table: AutonomousTable) -> list[str]:
    return sorted(row["value"] for row in table.read().to_pylist())


def data_files(place: Workplace) -> set[Path]:
    return {path for path in place.home.rglob("*.parquet") if "_delta_log" not in path.parts}


def age(place: Workplace) -> None:
    """Make every file of the home days old; the log entries that removed files are old, too."""
    for path in place.home.rglob("*"):
        if path.is_file() and path.name != "registry.db":
            moment = time.time() - DAYS
            os.utime(path, (moment, moment))


@pytest.mark.seed("H8", "V45")
def test_what_a_batch_staged_that_failed_goes_once_it_is_old(fed: HandFed) -> None:
    table = autonomous(fed, "sent")
    table.append(rows(1, "x", "y"), SCHEMA_JSON)
    arm("send.before_commit:raise")
    with pytest.raises(InjectedFailure):
        table.append(rows(2, "z"), SCHEMA_JSON)
    arm("")
    before = data_files(fed.workplace)
    assert collect_outside_regions(fed.workplace)["files"] == 0, "it may be at work"
    age(fed.workplace)
    looked = collect_outside_regions(fed.workplace, dry_run=True)
    assert (looked["region"], looked["files"], [found["table"] for found in looked["tables"]]) == (
        OUTSIDE, 1, ["lake/sent"]
    )  # fmt: skip
    assert data_files(fed.workplace) == before
    assert collect_outside_regions(fed.workplace)["files"] == 1
    assert len(before - data_files(fed.workplace)) == 1
    assert values(table) == ["x", "y"]
    assert fed.values() == [(1, "a1")]
    table.append(rows(3, "w"), SCHEMA_JSON)
    assert values(table) == ["w", "x", "y"]


def test_what_was_staged_for_a_merge_alone_goes_though_there_is_no_table(fed: HandFed) -> None:
    store = fed.workplace.store(fed.region)
    store.staging("state/by_hand/newest_sink", 0, "batch").write(rows(1, "x"), "rows")
    mine = store.staging("state/by_hand/counted", 7, "attempt").write(rows(1, "x"), "rows")
    age(fed.workplace)
    found = collect_outside_regions(fed.workplace)
    assert [(each["table"], each["files"]) for each in found["tables"]] == [("state/by_hand/newest_sink", 1)]
    assert (fed.workplace.home / "state" / "by_hand" / "counted" / mine[0].path).exists(), "a region's own"


def test_what_merges_replaced_goes_after_a_day(fed: HandFed) -> None:
    table = autonomous(fed, "newest")
    for number in range(1, 4):
        table.upsert(rows(number, "x", "y"), ["value"], SCHEMA_JSON)
    assert collect_outside_regions(fed.workplace)["files"] == 0, "a reader may hold the version before"
    shown = values(table)
    with entered(At(time.time() + DAYS)):
        assert collect_outside_regions(fed.workplace)["files"] == 2
        assert values(table) == shown
        assert collect_outside_regions(fed.workplace)["files"] == 0


def test_the_verb_names_them_apart(fed: HandFed, capsys: Any) -> None:
    table = autonomous(fed, "sent")
    arm("send.before_commit:raise")
    with pytest.raises(InjectedFailure):
        table.append(rows(2, "z"), SCHEMA_JSON)
    arm("")
    age(fed.workplace)
    capsys.readouterr()
    assert invoke(["gc", "--dry-run", "--json", "--home", str(fed.workplace.home)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [entry["region"] for entry in said] == [fed.region, OUTSIDE]
    assert invoke(["gc", fed.region, "--json", "--home", str(fed.workplace.home)]) == 0
    assert [entry["region"] for entry in json.loads(capsys.readouterr().out)] == [fed.region]
