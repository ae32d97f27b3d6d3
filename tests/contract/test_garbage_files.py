"""The files that left a table lately, by its log, and the files that may be deleted (H8, H30)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import RemoveAction
from places import folders

from drainmark.resources.delta.file_lists import live_paths
from drainmark.resources.delta.upkeep.garbage import garbage_of
from drainmark.resources.delta.upkeep.log_retention import KEPT_SECONDS, removed_since
from drainmark.resources.storage.folder import Folder, LocalFolder

HOUR = 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    """Return a table of four files. Two have left it: one an hour ago, one two days ago."""
    root = tmp_path / "a table"
    for number in range(4):
        write_deltalake(root, pa.table({"n": [number]}), mode="append")
    folder = LocalFolder(root)
    remove(folder, KEPT_SECONDS * 2)
    remove(folder, HOUR)
    return folder


def remove(folder: LocalFolder, seconds_ago: float) -> None:
    """Remove the first file from the table, and date the removal so long ago."""
    table = DeltaTable(folder.path)
    path = min(live_paths(table))
    at = int((time.time() - seconds_ago) * 1000)
    table.create_write_transaction([RemoveAction(path, True, at, 1, {})], "append", table.schema())


def paths(folder: LocalFolder) -> set[str]:
    return {path.name for path in folder.path.glob("*.parquet")}


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_the_log_tells_what_left_the_table_since_a_time(folder: LocalFolder, is_checkpointed: bool) -> None:
    gone = paths(folder) - live_paths(DeltaTable(folder.path))
    assert len(gone) == 2
    if is_checkpointed:
        DeltaTable(folder.path).create_checkpoint()
        for log in sorted((folder.path / "_delta_log").glob("*.json"))[:-1]:
            log.unlink()  # as after a clean-up
    now = time.time()
    assert removed_since(folder, now - 3 * KEPT_SECONDS) == gone
    lately = removed_since(folder, now - KEPT_SECONDS)
    assert len(lately) == 1
    assert removed_since(folder, now - HOUR / 2) == set()
    remove(folder, 0)  # a commit after the checkpoint
    assert len(removed_since(folder, now - HOUR / 2)) == 1


def test_data_files_beside_the_log_go_a_day_after_they_left(folder: LocalFolder) -> None:
    before, live = paths(folder), live_paths(DeltaTable(folder.path))
    lately = removed_since(folder, time.time() - KEPT_SECONDS)
    fresh = folder.path / "part-of-a-merge-at-work.parquet"
    fresh.write_bytes(b"1")
    for name in before:
        os.utime(folder.path / name, (time.time() - KEPT_SECONDS - HOUR,) * 2)
    found = garbage_of(folder, "lake/t", named=set(), below_epoch=9, now=time.time())
    assert set(found.files) == before - live - lately
    assert found.size == sum((folder.path / name).stat().st_size for name in found.files)
    folder.remove(found.files)
    assert paths(folder) == live | lately | {fresh.name}
    assert DeltaTable(folder.path).count() == len(live)


def test_a_clock_that_is_hours_ahead_takes_no_file_from_a_merge_at_work(folder: LocalFolder) -> None:
    fresh = folder.path / "part-of-a-merge-at-work.parquet"
    fresh.write_bytes(b"1")
    found = garbage_of(folder, "lake/t", named=set(), below_epoch=9, now=time.time() + 3 * HOUR)
    assert fresh.name not in found.files


def test_parts_of_log_entries_that_a_crash_left_go_after_a_day(folder: LocalFolder) -> None:
    """Entries and checkpoints of the log stay, however old they are."""
    old, fresh = (folder.path / f"_delta_log/.{name}.part" for name in ("old", "fresh"))
    for path in (old, fresh):
        path.write_bytes(b"12345")
    DeltaTable(folder.path).create_checkpoint()
    for path in (folder.path / "_delta_log").iterdir():
        if path != fresh:
            os.utime(path, (time.time() - KEPT_SECONDS - HOUR,) * 2)
    found = garbage_of(folder, "lake/t", named=set(), below_epoch=9, now=time.time())
    assert (found.files, found.size) == (("_delta_log/.old.part",), 5)


@pytest.fixture
def table(place: Folder) -> Folder:
    """Return a table of one row, on a disk and in a bucket."""
    folder = place / "lake" / "t"
    write_deltalake(folder.uri, pa.table({"n": [1]}), storage_options=folder.storage_options())
    return folder


def stage(folder: Folder, attempt: str, *names: str) -> None:
    for name in names:
        folder.write(f"_staged/{attempt}/{name}", pa.py_buffer(b"12345"))


def collected(folder: Folder, **more: Any) -> set[str]:
    arguments = {"named": set(), "below_epoch": 3, "now": time.time(), **more}
    return {path.removeprefix("_staged/") for path in garbage_of(folder, "lake/t", **arguments).files}


def test_staged_files_of_dead_epochs_go_unless_they_are_named(table: Folder) -> None:
    stage(table, "1-dead", "a.parquet", "out/_SUCCESS", "out/.b.parquet.crc", "out/b.parquet")
    stage(table, "2-used", "kept.parquet", ".kept.parquet.crc", "other.parquet", ".hidden.parquet")
    stage(table, "3-mine", "a.parquet")
    stage(table, "notes", "a.parquet")
    dead = {"1-dead/a.parquet", "1-dead/out/_SUCCESS", "1-dead/out/.b.parquet.crc", "1-dead/out/b.parquet"}
    named = {"_staged/2-used/kept.parquet"}
    assert collected(table, named=named) == dead | {"2-used/other.parquet"}
    assert collected(table, named=named, below_epoch=2) == dead
    table.remove([f"_staged/{path}" for path in dead])
    left = list(table.names("_staged")) if isinstance(table, LocalFolder) else folders(table, "_staged")
    assert sorted(left) == ["2-used", "3-mine", "notes"], "no empty folder is left on a disk"


def test_a_folder_that_is_no_table_is_left_alone(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    stage(folder, "1-dead", "a.parquet")
    assert collected(folder) == set()
