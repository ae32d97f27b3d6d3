"""A rewind of a table of one row a key puts the files back that the table had, or merges, with equal rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from places import ON_A_DISK
from test_large_tables import SCHEMA, Scene, random_rows, rows_of
from test_merge_on_read import files_of, rows_in, seen_by_deltalake

from drainmark.jobs import world
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.keyed import former_files, keyed_merge
from drainmark.resources.delta.log import log_entries
from drainmark.resources.delta.log.commit_log import entry_path
from drainmark.resources.delta.upkeep.garbage import garbage_of
from drainmark.resources.delta.upkeep.log_retention import KEPT_SECONDS
from drainmark.resources.storage.folder import Folder, LocalFolder

MERGES = pytest.mark.parametrize("merge", ["on-write", "on-read"])


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small tables be marked as large ones are."""
    monkeypatch.setattr(keyed_merge, "_MUCH_OF_TABLE", 0)


def scene_of(place: Folder, home: Path, merge: str) -> Scene:
    """Return a table of three states: a hundred keys, and three of them changed twice."""
    scene = Scene(place, home, None, merge=merge)
    scene.store.widen(scene.table)
    scene.undone = 200
    for number, first, last in ((1, 0, 100), (2, 40, 43), (3, 41, 44)):
        scene.merge(number, *rows_in(first, last, number))
    return scene


def data_in(scene: Scene) -> set[str]:
    """Return the names of all data files and vectors in the table's folder."""
    return {name for name in scene.store.table(scene.table.name).folder.modified("") if not name.startswith("_")}


def folder_of(scene: Scene) -> Folder:
    return scene.store.table(scene.table.name).folder


@ON_A_DISK
@MERGES
def test_former_files_come_back_with_their_facts_and_nothing_is_written(
    place: Folder, tmp_path: Path, merge: str
) -> None:
    scene = Scene(place, tmp_path, None, merge=merge)
    scene.store.widen(scene.table)
    scene.undone = 200
    was = {}
    for number, first, last in ((1, 0, 100), (2, 40, 43), (3, 41, 44), (4, 99, 120)):
        scene.merge(number, *rows_in(first, last, number))
        opened = delta_tables.open_table(folder_of(scene))
        was[number] = (files_of(scene), file_lists.files_at(opened, folder_of(scene), int(opened.version())))
    there = data_in(scene)
    for number, to in ((5, 3), (6, 1)):
        scene.rewind(number, to=to)
        opened = delta_tables.open_table(folder_of(scene))
        assert files_of(scene) == was[to][0]
        for back, then in zip(
            file_lists.files_at(opened, folder_of(scene), int(opened.version())), was[to][1], strict=True
        ):
            assert back == then, "also the statistics from which engines answer"
        assert scene.shown() == scene.expected() == seen_by_deltalake(scene)
    assert data_in(scene) == there
    scene.merge(7, *rows_in(0, 50, 7))
    assert scene.shown() == scene.expected() == seen_by_deltalake(scene)


def without_a_file(scene: Scene) -> None:
    live = files_of(scene)
    kept = {file.path for file in live} | {file.vector.path for file in live if file.vector is not None}
    folder_of(scene).remove(sorted(data_in(scene) - kept))


def without_the_log(scene: Scene) -> None:
    opened = delta_tables.open_table(folder_of(scene))
    opened.create_checkpoint()
    folder_of(scene).remove([entry_path(version) for version in range(opened.version())])


def with_a_column(scene: Scene) -> None:
    opened = delta_tables.open_table(folder_of(scene))
    field = {"name": "later", "type": "string", "nullable": True, "metadata": {}}
    changes = log_entries.alter(opened, added=[field])
    log_entries.write_entry(folder_of(scene), opened, scene.store.region, scene.version(3), changes)


def with_files_written_again(scene: Scene) -> None:
    """Write a file again, as an erasure does: its former content must not come back."""
    file, *_ = files_of(scene)
    again = scene.store.staging(scene.table, scene.epoch, "again").rewrite([[file]], SCHEMA)
    region, version = scene.store.region, scene.version(3)
    assert commits.replace(
        folder_of(scene), region, version, replaced=[file], rewritten=again, writer=None, verb="erase"
    )


def with_rows_of_an_earlier_id(scene: Scene) -> None:
    """Bring rows that a stage held in flight while a later id was shown already."""
    late = scene.store.staging(scene.history, scene.epoch, "late").write(rows_of(*rows_in(7, 9, 2)), "rows")
    scene.store.table(scene.history.name).publish(scene.version(4), late)
    scene.groups.insert(1, (2, rows_in(7, 9, 2)))
    scene.publish(4, late)


def half_a_day_later(scene: Scene) -> None:
    """Let half of the day go by for which `gc` keeps files that left."""


@MERGES
@pytest.mark.parametrize(
    "since",
    [
        without_a_file,
        without_the_log,
        with_a_column,
        with_files_written_again,
        with_rows_of_an_earlier_id,
        half_a_day_later,
    ],
)
def test_where_they_cannot_come_back_the_rows_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: str, since: Callable[[Scene], None]
) -> None:
    scene = scene_of(LocalFolder(tmp_path), tmp_path, merge)
    since(scene)
    if since is half_a_day_later:
        now = world.now() + KEPT_SECONDS / 2 + 60
        monkeypatch.setattr(former_files.world, "now", lambda: now)
    table, folder = delta_tables.open_table(folder_of(scene)), folder_of(scene)
    assert former_files.put_back(table, folder, scene.store.region, 2) is None
    scene.rewind(5, to=2)
    assert scene.shown() == scene.expected() == seen_by_deltalake(scene)


@MERGES
def test_what_no_version_showed_alone_is_merged(tmp_path: Path, merge: str) -> None:
    scene = scene_of(LocalFolder(tmp_path), tmp_path, merge)
    scene.add(4, *rows_in(10, 12, 4))
    scene.publish(5, scene.add(5, *rows_in(11, 13, 5)))  # a group of two ids, of which only the last is published
    scene.bring_up(5, above=3)
    table, folder = delta_tables.open_table(folder_of(scene)), folder_of(scene)
    for to in (0, 4):
        assert former_files.put_back(table, folder, scene.store.region, to) is None
    scene.rewind(6, to=4, since=3)
    assert scene.shown() == scene.expected() == seen_by_deltalake(scene)


@MERGES
def test_another_program_s_commit_is_not_undone(tmp_path: Path, merge: str) -> None:
    scene = scene_of(LocalFolder(tmp_path), tmp_path, merge)
    opened, folder = delta_tables.open_table(folder_of(scene)), folder_of(scene)
    commits.transact(folder, opened, "others/region", txn_version(1, 1))
    assert former_files.put_back(delta_tables.open_table(folder), folder, scene.store.region, 1) is None


def test_a_table_that_takes_no_vectors_any_more_gets_none_back(tmp_path: Path) -> None:
    scene = scene_of(LocalFolder(tmp_path), tmp_path, "on-read")
    region, folder = scene.store.region, folder_of(scene)
    commits.take_vectors(folder, region, wanted=False, writer=None)
    scene.merge(4, *rows_in(0, 100, 4))
    assert former_files.put_back(delta_tables.open_table(folder), folder, region, 3) is None
    scene.rewind(5, to=3)
    assert scene.shown() == scene.expected() == seen_by_deltalake(scene)


@MERGES
def test_gc_deletes_no_file_that_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: str) -> None:
    scene = scene_of(LocalFolder(tmp_path), tmp_path, merge)
    now = world.now() + KEPT_SECONDS / 2 - 60
    monkeypatch.setattr(former_files.world, "now", lambda: now)
    assert not garbage_of(folder_of(scene), scene.table.name, named=set(), below_epoch=9, now=now).files
    assert former_files.put_back(delta_tables.open_table(folder_of(scene)), folder_of(scene), scene.store.region, 1)


@pytest.mark.parametrize("seed", range(6))
def test_a_rewind_by_former_files_leaves_the_table_that_a_merge_leaves(tmp_path: Path, seed: int) -> None:
    """Random states and rewinds, on write and on read: at every id, rows are those of plain Python."""
    chance = random.Random(seed)
    scene = Scene(LocalFolder(tmp_path), tmp_path, None, merge=chance.choice(["on-write", "on-read"]))
    scene.store.widen(scene.table)
    effective = [0]
    for number in range(1, 25):
        if chance.random() < 0.3:
            scene.undone = chance.choice([0, 2, 200])
            to = chance.choice(effective)
            scene.rewind(number, to=to)
            effective = [each for each in effective if each <= to]
        else:
            last = {(row[0], str(row[1])): row for row in random_rows(chance, number, number)}
            scene.merge(number, *last.values())
            effective.append(number)
        assert scene.shown() == scene.expected(), number
