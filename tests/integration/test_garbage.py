"""`gc` on real tables: garbage goes, and every state within the horizon stays the same (H8, H30, D5, T1, R-I10)."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hand_runs import NoSpark, engine, without_spark
from harness import At, run_once
from integration.two_regions import BY_HAND, REGION, SINKS, reading, write_orders

from drainmark.jobs.errors import Fenced
from drainmark.jobs.protocol.records.manifest import TableRole
from drainmark.jobs.runtime.maintenance import housekeeping
from drainmark.jobs.runtime.maintenance.garbage_collection import clear, clock_fault, discard, find_garbage
from drainmark.jobs.state import keyed_state
from drainmark.jobs.world import entered
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Opened, Workplace
from drainmark.resources.checkpoints.as_of import RegionReader, read_at
from drainmark.resources.delta.delta_tables import open_table
from drainmark.resources.settings import Settings

__all__ = ["BY_HAND", "engine", "without_spark"]

DAYS = 2 * 86_400.0


@pytest.fixture(autouse=True)
def images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write an image of a state with nearly every group."""
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 1)


@pytest.fixture
def application(tmp_path: Path) -> Opened:
    """Return an application that reads four files of orders."""
    return reading_orders(tmp_path)


@pytest.fixture(scope="module")
def four_groups(engine: NoSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home in which four files of orders were processed, in a group each."""
    folder = tmp_path_factory.mktemp("ran")
    place = Workplace(Settings(home=folder / "home", project_root=folder))
    place.use_engine(engine)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 1)
        run_once(place, reading_orders(folder), region=REGION, max_group=1)
    place.registry.close()
    return place.home


@pytest.fixture
def ran(four_groups: Path, workplace: Workplace) -> Workplace:
    """Return a workplace with a copy of that home for one test."""
    shutil.copytree(four_groups, workplace.home, dirs_exist_ok=True)
    return workplace


def reading_orders(folder: Path) -> Opened:
    for number in range(4):
        write_orders(folder, number)
    return reading(folder)


def at_each_id(place: Workplace) -> dict[int, list[Any]]:
    """Return the rows of every sink at every id in force."""
    ids = [0, *place.history(REGION).states]
    home = str(place.home)
    return {n: [rows(read_at(REGION, sink, at=n, home=home)) for sink in SINKS] for n in ids}


def visible(place: Workplace) -> list[Any]:
    return [rows(RegionReader(place.settings, REGION).visible(sink)) for sink in SINKS]


def rows(table: pa.Table) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in table.to_pylist())


def data_files(place: Workplace) -> dict[str, int]:
    """Return all data files of the home by path, with their bytes."""
    found = (path for path in place.home.rglob("*.parquet") if "_delta_log" not in path.parts)
    return {path.relative_to(place.home).as_posix(): path.stat().st_size for path in found}


def collect_later(place: Workplace, *, horizon: int, later: float = DAYS) -> int:
    """Collect as if the time were later; return the bytes."""
    with owning(region_owner(place, REGION)) as owner:
        found = clear(
            place.store(REGION), owner.history.tables, epoch=owner.epoch, horizon=horizon, now=time.time() + later
        )
    return found.size


def rewind(place: Workplace, to: int) -> None:
    with owning(region_owner(place, REGION)) as owner:
        owner.rewind(to, 1000)


def compact(place: Workplace) -> None:
    """Compact every table of rows, as maintenance does later."""
    with owning(region_owner(place, REGION)) as owner:
        store = place.store(REGION)
        for table in owner.history.tables:
            if table.role is not TableRole.UPSERT:
                target = store.table(table.name)
                staging = store.staging(table.name, owner.epoch, uuid.uuid4().hex)
                target.upkeep.compact(target.txn_version() or 0, staging, files_at_least=2)
        store.checkpoint.compact(files_at_least=2)


def leave_orphans(place: Workplace) -> list[str]:
    """Leave the files that a killed attempt and a killed merge leave; return their paths below home.

    Their names have letters that no uuid has.
    """
    store = place.store(REGION)
    columns = pa.table({"_sequence_id": [99]})
    store.staging("lake/two_item_changes", 1, uuid.uuid4().hex).write(columns, "orphan")
    merged = place.home / "lake" / "two_customers" / "part-00000-orphan.parquet"
    merged.write_bytes(b"x" * 1000)
    os.utime(merged, (time.time() - DAYS,) * 2)
    inbox = store.inbox(1, "orphan")
    (inbox / "all").mkdir(parents=True)
    os.utime(inbox, (time.time() - DAYS,) * 2)
    return [path for path in data_files(place) if "orphan" in path]


@pytest.mark.seed("H8", "D5")
def test_orphans_go_and_what_readers_may_hold_stays(ran: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    compact(ran)
    before, states = data_files(ran), at_each_id(ran)
    orphans = leave_orphans(ran)
    assert len(orphans) == 2
    home = ("--home", str(ran.home), "--json")

    assert invoke(["gc", REGION, "--dry-run", *home]) == 0
    (planned,) = json.loads(capsys.readouterr().out)
    listed = [f"{table['table']}/{path}" for table in planned["tables"] for path in table["paths"]]
    assert sorted(listed) == sorted(orphans)
    assert planned["spools"] == 1
    assert set(data_files(ran)) == {*before, *orphans}, "a dry run deletes nothing"
    epoch = ran.history(REGION).epoch
    assert invoke(["gc", "two_regions", *home]) == 0
    (done,) = json.loads(capsys.readouterr().out)
    assert (done["files"], done["bytes"], done["refused"]) == (planned["files"], planned["bytes"], None)
    assert data_files(ran) | before == data_files(ran), "what compaction replaced is held for a day"
    assert not set(orphans) & set(data_files(ran))
    assert not ran.store(REGION).inbox(1, "orphan").exists()
    assert at_each_id(ran) == states
    assert ran.history(REGION).epoch == epoch + 1

    assert invoke(["gc", *home]) == 0
    assert json.loads(capsys.readouterr().out)[0]["files"] == 0
    assert ran.history(REGION).epoch == epoch + 1, "nothing to delete costs no claim"


@pytest.mark.seed("H30", "H4", "H29")
def test_after_a_day_only_what_is_in_reach_is_left_and_every_rewind_is_right(
    workplace: Workplace, application: Opened
) -> None:
    run_once(workplace, application, region=REGION, max_group=1, max_triggers=3)
    rewind(workplace, 2)
    run_once(workplace, application, region=REGION, max_group=2)
    compact(workplace)
    states, shown = at_each_id(workplace), visible(workplace)
    before = sum(data_files(workplace).values())

    assert collect_later(workplace, horizon=1000) > 0
    after = data_files(workplace)
    assert sum(after.values()) < before
    live = {f"lake/two_customers/{path}" for path in paths_of(workplace, "lake/two_customers")}
    assert {path for path in after if Path(path).parent == Path("lake/two_customers")} == live
    assert (at_each_id(workplace), visible(workplace)) == (states, shown)

    small = collect_later(workplace, horizon=1)
    assert small > 0, "images and staged files below the horizon"
    assert (at_each_id(workplace), visible(workplace)) == (states, shown)
    for to in sorted(states, reverse=True)[1:]:
        rewind(workplace, to)
        assert visible(workplace) == states[to], f"after the rewind to {to}"
    run_once(workplace, application, region=REGION, max_group=1)
    assert [without_ids(sink) for sink in visible(workplace)] == [without_ids(sink) for sink in shown]


def paths_of(place: Workplace, name: str) -> list[str]:
    from drainmark.resources.delta.file_lists import live_paths

    return sorted(live_paths(open_table(place.store(REGION).table(name).folder)))


def without_ids(found: Sequence[str]) -> list[str]:
    loaded = ({**json.loads(row), "_sequence_id": None} for row in found)
    return sorted(json.dumps(row, sort_keys=True) for row in loaded)


@pytest.mark.seed("H8")
def test_files_of_a_group_that_is_committed_and_not_published_stay(
    workplace: Workplace, application: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    from drainmark.jobs import failpoints

    monkeypatch.setattr(failpoints, "_act", fence)
    failpoints.arm("publish.before_commit:raise")
    with pytest.raises(Fenced):
        run_once(workplace, application, region=REGION, max_group=3)
    failpoints.arm("")
    history = workplace.history(REGION)
    assert [row.sequence_id for row in history.unpublished] == [3]
    states = at_each_id(workplace)
    store = workplace.store(REGION)
    found = find_garbage(store, history.tables, below_epoch=99, horizon=0, now=time.time() + DAYS)
    discard(store, found)
    with owning(region_owner(workplace, REGION)):
        pass  # it rolls forward
    assert at_each_id(workplace) == states
    assert visible(workplace) == states[3]


def fence(point: str, action: str) -> None:
    raise Fenced("another owner has claimed the region")


@pytest.mark.seed("FM-T1")
def test_a_doubtful_clock_deletes_nothing(ran: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    orphans = leave_orphans(ran)
    behind = time.time() - 86_400
    with entered(At(behind)):
        assert invoke(["gc", REGION, "--home", str(ran.home), "--json"]) == 1
    captured = capsys.readouterr()
    assert "in the future" in json.loads(captured.out)[0]["refused"]
    assert set(orphans) <= set(data_files(ran))

    history = ran.history(REGION)
    assert clock_fault(history, here=time.time(), registry=time.time()) is None
    assert "differ" in (clock_fault(history, here=behind, registry=time.time()) or "")


@pytest.mark.seed("H25")
def test_a_region_at_work_is_left_to_its_owner(ran: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    leave_orphans(ran)
    with owning(region_owner(ran, REGION)):
        assert invoke(["gc", REGION, "--home", str(ran.home), "--json"]) == 4
    assert invoke(["gc", REGION, "--home", str(ran.home), "--json"]) == 0


def test_a_run_collects_by_itself(workplace: Workplace, application: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "EVERY_GROUPS", 1)
    run_once(workplace, application, region=REGION, max_triggers=1)
    orphans = leave_orphans(workplace)
    run_once(workplace, application, region=REGION)
    assert not set(orphans) & set(data_files(workplace))
    assert visible(workplace) == at_each_id(workplace)[workplace.history(REGION).committed_id]
