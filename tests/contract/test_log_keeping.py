"""Logs stay short at any rate of commits, and gc still knows the files that left a table within a day (H8, H30)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from harness import At, passing
from places import ON_A_DISK

from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.world import Seam, World, entered
from drainmark.resources.delta import delta_tables
from drainmark.resources.delta.delta_tables import open_table
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.delta.upkeep import log_retention
from drainmark.resources.delta.upkeep.garbage import garbage_of
from drainmark.resources.delta.upkeep.log_retention import FORMER, KEPT_SECONDS, REMOVED, removed_since
from drainmark.resources.storage.folder import Folder

REGION = "shop/orders"
RETENTION = "delta.deletedFileRetentionDuration"
SCHEMA = '{"type":"struct","fields":[{"name":"_sequence_id","type":"long","nullable":true,"metadata":{}}]}'


@pytest.fixture
def table(place: Folder) -> ManagedTable:
    table = ManagedTable(place / "lake" / "rows", REGION)
    table.create(SCHEMA)
    return table


def publish(table: ManagedTable, numbers: range) -> None:
    for number in numbers:
        rows = pa.table({"_sequence_id": pa.array([number], pa.int64())})
        files = Staging(table.folder, 1, uuid4().hex).write(rows, "rows")
        table.publish(txn_version(1, number), files)


def compact(table: ManagedTable) -> None:
    assert table.upkeep.compact(table.txn_version() or 0, Staging(table.folder, 1, uuid4().hex), files_at_least=2)


def tombstones(table: ManagedTable) -> int:
    """Return the number of removed files in the log checkpoint, which every commit reads."""
    (newest, *_) = sorted((name for name in table.folder.names("_delta_log") if "checkpoint.p" in name), reverse=True)
    (rows,) = table.folder.read_each([f"_delta_log/{newest}"], ["remove.path"])
    return sum(bool(value and value["path"]) for value in rows.column("remove").to_pylist())


@pytest.mark.seed("H30")
@ON_A_DISK
def test_the_log_reaches_back_so_many_versions_and_the_table_is_whole(
    table: ManagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_retention, "LOG_VERSIONS", 4)
    for first in range(1, 19, 6):
        publish(table, range(first, first + 6))
        table.upkeep.maintain()
    names = list(table.folder.names("_delta_log"))
    assert sum(name.endswith(".json") for name in names) == 5
    assert sum(".checkpoint." in name for name in names) == 1
    assert table.row_count() == 18
    assert table.txn_version() == txn_version(1, 18)
    assert table.publish(txn_version(1, 18), ()).done_before


@pytest.mark.seed("H8", "H30")
@ON_A_DISK
def test_what_left_a_table_is_kept_for_a_day_although_its_log_has_forgotten(
    table: ManagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_retention, "LOG_VERSIONS", 1)
    publish(table, range(1, 5))
    table.upkeep.maintain()
    open_table(table.folder).alter.set_table_properties({RETENTION: "interval 0 seconds"})
    left = {file.path for file in table.files.live()}
    compact(table)
    table.upkeep.maintain()
    publish(table, range(5, 9))
    table.upkeep.maintain()
    assert tombstones(table) == 0
    now = time.time()
    assert removed_since(table.folder, now - KEPT_SECONDS) == left
    assert garbage_of(table.folder, "lake/rows", named=set(), below_epoch=9, now=now).files == ()
    later = now + 2 * KEPT_SECONDS
    assert set(garbage_of(table.folder, "lake/rows", named=set(), below_epoch=9, now=later).files) == left
    with entered(At(later)):
        table.upkeep.maintain()
    assert list(table.folder.names(REMOVED)) == []


@ON_A_DISK
@pytest.mark.seed("H8")
def test_a_maintenance_that_is_cut_off_forgets_nothing(table: ManagedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(table, range(1, 5))
    left = {file.path for file in table.files.live()}
    compact(table)
    with monkeypatch.context() as cut:
        cut.setattr(log_retention, "LOG_ENTRY", None)  # it fails between the log checkpoint and the clean-up
        cut.setattr(log_retention, "LOG_VERSIONS", 1)
        with pytest.raises(AttributeError):
            table.upkeep.maintain()
    table.upkeep.maintain()
    assert removed_since(table.folder, time.time() - KEPT_SECONDS) == left


class Lagging(World):
    """The world in which a folder of logs or records has the names that it had at the first look."""

    def __init__(self, *folders: str) -> None:
        self.folders = folders
        self.seen: dict[str, Any] = {}

    def across(self, seam: Seam, deed: Callable[[], Any], on: object = None) -> Any:
        place = str(on)
        if seam is not Seam.STORE_LIST or not place.endswith(self.folders):
            return deed()
        return self.seen.setdefault(str(deed), deed())


@pytest.mark.parametrize("folders", [("_delta_log",), (REMOVED,), ("_delta_log", REMOVED)], ids="-".join)
@ON_A_DISK
@pytest.mark.seed("H8")
def test_a_listing_that_lags_forgets_nothing(
    table: ManagedTable, monkeypatch: pytest.MonkeyPatch, folders: tuple[str, ...]
) -> None:
    monkeypatch.setattr(log_retention, "LOG_VERSIONS", 1)
    publish(table, range(1, 5))
    open_table(table.folder).alter.set_table_properties({RETENTION: "interval 0 seconds"})
    since, left = time.time() - KEPT_SECONDS, set()
    with entered(Lagging(*folders)):
        for number in (5, 7, 9):
            assert removed_since(table.folder, since) == left
            before = {file.path for file in table.files.live()}
            compact(table)
            left |= before - {file.path for file in table.files.live()}
            table.upkeep.maintain()
            publish(table, range(number, number + 2))
            table.upkeep.maintain()
        assert removed_since(table.folder, since) == left
        assert garbage_of(table.folder, "lake/rows", named=set(), below_epoch=9, now=time.time()).files == ()


@ON_A_DISK
@pytest.mark.seed("H8")
def test_a_table_that_came_back_older_records_what_leaves_under_the_same_version(
    table: ManagedTable, tmp_path: Path
) -> None:
    log = Path(table.folder.source("_delta_log"))
    publish(table, range(1, 5))
    open_table(table.folder).alter.set_table_properties({RETENTION: "interval 0 seconds"})
    shutil.copytree(log, tmp_path / "log")
    publish(table, range(5, 6))
    compact(table)
    table.upkeep.maintain()
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "log", log)
    publish(table, range(5, 6))
    left = {file.path for file in table.files.live()}
    compact(table)
    table.upkeep.maintain()
    publish(table, range(6, 7))
    table.upkeep.maintain()
    assert tombstones(table) == 0
    assert left <= removed_since(table.folder, time.time() - KEPT_SECONDS)


@ON_A_DISK
@pytest.mark.seed("H8")
def test_a_log_checkpoint_of_another_engine_forgets_nothing(table: ManagedTable) -> None:
    """Spark's OPTIMIZE writes such a checkpoint: no commit after it names the files that left the table before it."""
    publish(table, range(1, 5))
    left = {file.path for file in table.files.live()}
    compact(table)
    open_table(table.folder).create_checkpoint()
    table.upkeep.maintain()
    open_table(table.folder).alter.set_table_properties({RETENTION: "interval 0 seconds"})
    time.sleep(1.1)  # Delta counts whole seconds
    open_table(table.folder).create_checkpoint()
    assert tombstones(table) == 0
    assert removed_since(table.folder, time.time() - KEPT_SECONDS) == left


@ON_A_DISK
def test_a_table_of_an_earlier_version_gets_todays_retention_once_under_its_own_version(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(delta_tables.CONFIGURATION, RETENTION, FORMER[RETENTION])
    passed: list[str] = []
    table = ManagedTable(place / "lake" / "old", REGION)
    table.create(SCHEMA)
    publish(table, range(1, 3))
    monkeypatch.undo()
    with passing(passed.append):
        table.upkeep.maintain()
    assert open_table(table.folder).metadata().configuration[RETENTION] == delta_tables.CONFIGURATION[RETENTION]
    assert [point for point in passed if point.endswith("_commit")] == ["compact.before_commit", "compact.after_commit"]
    assert table.txn_version() == txn_version(1, 2)
    version = table.delta_version()
    table.upkeep.maintain()
    assert table.delta_version() == version
    assert table.row_count() == 2
