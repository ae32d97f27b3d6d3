"""Large tables: this process makes them, or tasks if executors are on other machines; all keys at once, or in parts."""

from __future__ import annotations

import itertools
import json
import math
import random
import struct
import sys
import uuid
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import passing
from places import ON_A_DISK
from publishers import given_rows

from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile, TableRole
from drainmark.jobs.runtime.commit.publish.visible_tables import merge_history
from drainmark.jobs.state.keyed_rows import last_per_key
from drainmark.jobs.tasks import keyed_files
from drainmark.resources.checkpoints.region_store import RegionTables
from drainmark.resources.delta import staging
from drainmark.resources.delta.autonomous_tables import AutonomousTable
from drainmark.resources.delta.commits import Published
from drainmark.resources.delta.keyed import former_files, keyed_merge
from drainmark.resources.delta.keyed.keyed_changes import Restored
from drainmark.resources.delta.upkeep.log_retention import removed_since
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.folder import Folder, LocalFolder

pytestmark = [pytest.mark.spark, pytest.mark.seed("DX1")]

REGION = "shop/orders"
SCHEMA = pa.schema(
    [("customer", pa.string()), ("size", pa.float64()), ("total", pa.int64()), ("_sequence_id", pa.int64())]
)
KEYS = ("customer", "size")
SCHEMA_JSON = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in zip(SCHEMA.names, ("string", "double", "long", "long"), strict=True)
        ],
    }
)
LAID_OUT = {"partition_by": ["customer"], "cluster_by": ["total"]}
OTHER_NAN = struct.unpack("d", (0xFFF8000000000000).to_bytes(8, sys.byteorder))[0]
CUSTOMERS, SIZES = ("ann", "bob", "", None), (0.0, -0.0, 1.5, math.nan, OTHER_NAN, None)
Row = tuple[str | None, float | None, int, int]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """An engine that tells the tables that its executors are outside this process."""

    session: Any
    is_local: bool = False


def table_of(role: TableRole, **options: list[str]) -> RegionTable:
    is_merged = role is TableRole.UPSERT
    return RegionTable(
        name="lake/orders" if role is not TableRole.CHANGES else "state/orders",
        role=role,
        operator="orders_sink",
        schema_json=SCHEMA_JSON,
        keys=KEYS if role is not TableRole.APPEND else (),
        history="state/orders" if is_merged else None,
        columns=tuple(SCHEMA.names) if is_merged else (),
        options=options,
    )


class Scene:
    """A visible table and its history, and the expected rows in plain Python.

    Args:
        engine: its tasks rewrite the table; None if this process does.

    Attributes:
        undone: the most commits that a rewind undoes by putting back the former files; 0: each rewind is a merge.
    """

    def __init__(self, place: Folder, home: Path, engine: SparkEngine | None, **options: list[str]) -> None:
        elsewhere = (lambda: Elsewhere(engine.session)) if engine is not None else None
        self.store = RegionTables(home, REGION, place, elsewhere)  # type: ignore[arg-type]
        self.table, self.history = table_of(TableRole.UPSERT, **options), table_of(TableRole.CHANGES)
        self.store.create(self.table)
        self.store.create(self.history)
        self.groups: list[tuple[int, list[Row]]] = []
        self.epoch = 1
        self.undone = 0

    def version(self, number: int) -> int:
        return txn_version(self.epoch, number)

    def add(self, number: int, *rows: Row) -> tuple[StagedFile, ...]:
        """Publish rows to the history alone."""
        staged = self.store.staging(self.history, self.epoch, uuid.uuid4().hex).write(rows_of(*rows), "rows")
        self.store.table(self.history.name).publish(self.version(number), staged)
        self.groups.append((number, list(rows)))
        return staged

    def merge(self, number: int, *rows: Row) -> Published:
        return self.publish(number, self.add(number, *rows))

    def publish(self, number: int, files: tuple[StagedFile, ...]) -> Published:
        return self.store.delta(self.table).merge(self.version(number), self.store.changes(self.table, files))

    def bring_up(self, number: int, above: int) -> None:
        """Merge all files of the history with rows above an id, as for a table that lags."""
        files = [file for file in self.store.table(self.history.name).files.live() if (file.last_id or 0) > above]
        merge_history(self.store, self.table, self.version(number), files, self.epoch, above=above)

    def take_back(self, number: int, to: int, since: int | None = None) -> Published:
        history = self.store.table(self.history.name)
        table = self.store.delta(self.table)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(former_files, "_MOST_COMMITS", self.undone)
            return table.rewind_upsert(self.version(number), Restored(to, history, KEYS, SCHEMA.names, since=since))

    def rewind(self, number: int, to: int, since: int | None = None) -> None:
        self.epoch += 1
        history = self.store.table(self.history.name)
        self.take_back(number, to, since)
        staging = self.store.staging(self.history, self.epoch, uuid.uuid4().hex)
        history.rewind_rows(self.version(number), to, staging)
        kept = [(each, [row for row in rows if row[3] <= to]) for each, rows in self.groups]
        self.groups = [(each, rows) for each, rows in kept if rows]

    def expected(self) -> list[str]:
        last = {key_of(row): row for _, rows in self.groups for row in sorted(rows, key=lambda row: row[3])}
        return sorted(map(told, last.values()))

    def shown(self, name: str = "lake/orders") -> list[str]:
        rows = self.store.table(name).read().select(SCHEMA.names).to_pylist()
        return sorted(told(tuple(row.values())) for row in rows)  # type: ignore[arg-type]


def rows_of(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def key_of(row: Row) -> tuple[str | None, str]:
    """Return a key for comparison: nulls are equal, NaNs are equal, and so are both zeros."""
    return row[0], str(row[1] + 0.0 if row[1] is not None else None)


def told(row: Row) -> str:
    return repr((*key_of(row), *row[2:]))


def random_rows(chance: random.Random, first: int, last: int) -> list[Row]:
    return [
        (chance.choice(CUSTOMERS), chance.choice(SIZES), chance.randrange(100), number)
        for number in range(first, last + 1)
        for _ in range(chance.randrange(1, 4))
    ]


def one_a_key_and_id(rows: list[Row]) -> list[Row]:
    return list({(*key_of(row), row[3]): row for row in rows}.values())


class Way(Enum):
    """Who merges, and how many of the keys at once."""

    HERE_IN_PARTS = "here in parts"
    TASKS_AT_ONCE = "tasks at once"
    TASKS_IN_PARTS = "tasks in parts"

    @property
    def has_tasks(self) -> bool:
        return self is not Way.HERE_IN_PARTS

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let merges be in several parts, and write several files."""
        if self is not Way.TASKS_AT_ONCE:
            for limit in ("_FEW_BYTES", "_SENT_BYTES", "_PART_BYTES", "_FILE_BYTES"):
                monkeypatch.setattr(keyed_merge, limit, 500)


SLOW = pytest.mark.slow
WAYS = [
    pytest.param((Way.HERE_IN_PARTS, {}), id="here in parts-plain"),
    pytest.param((Way.HERE_IN_PARTS, LAID_OUT), id="here in parts-laid out"),
    pytest.param((Way.TASKS_AT_ONCE, {}), id="tasks at once-plain"),
    pytest.param((Way.TASKS_IN_PARTS, LAID_OUT), id="tasks in parts-laid out"),
    pytest.param((Way.TASKS_AT_ONCE, LAID_OUT), id="tasks at once-laid out", marks=SLOW),
    pytest.param((Way.TASKS_IN_PARTS, {}), id="tasks in parts-plain", marks=SLOW),
]


@ON_A_DISK
@pytest.mark.seed("H5", "H37")
@pytest.mark.parametrize("case", WAYS)
def test_merges_and_rewinds_in_any_order_leave_the_last_row_of_each_key(
    place: Folder,
    tmp_path: Path,
    engine: SparkEngine,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[Way, dict[str, list[str]]],
) -> None:
    """Nulls, NaNs and both zeros are keys; a rewind goes into the middle of a group; a publish brings up two groups."""
    chance, (way, options) = random.Random(7), case
    way.enter(monkeypatch)
    scene = Scene(place, tmp_path, engine if way.has_tasks else None, **options)
    scene.merge(2, *one_a_key_and_id(random_rows(chance, 1, 2)))
    assert scene.shown() == scene.expected()
    scene.add(5, *one_a_key_and_id(random_rows(chance, 3, 5)))
    scene.add(6, *one_a_key_and_id(random_rows(chance, 6, 6)))
    scene.bring_up(6, above=2)
    assert scene.shown() == scene.expected()
    scene.rewind(7, to=4)
    assert scene.shown() == scene.expected()
    scene.merge(8, *one_a_key_and_id(random_rows(chance, 8, 8)))
    assert scene.shown() == scene.expected()
    scene.rewind(9, to=0)
    assert scene.shown() == scene.expected() == []
    live = {
        file.path for name in (scene.table.name, scene.history.name) for file in scene.store.table(name).files.live()
    }
    beside = {name for name in scene.store.table(scene.table.name).folder.modified("") if name.endswith(".parquet")}
    removed = removed_since(scene.store.table(scene.table.name).folder, 0.0)
    assert beside <= live | set(removed), "what was only needed for a merge is gone"


@pytest.mark.parametrize("keys", [["s"], ["n"], ["d"], ["x"], ["n", "s"], ["t", "b"]], ids="-".join)
def test_keys_of_any_type_are_merged_in_parts_as_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: list[str]
) -> None:
    schema = pa.schema(
        [
            ("s", pa.string()),
            ("n", pa.int32()),
            ("d", pa.date32()),
            ("x", pa.float64()),
            ("t", pa.timestamp("us", "UTC")),
            ("b", pa.bool_()),
            ("_sequence_id", pa.int64()),
        ]
    )
    kinds = ("string", "integer", "date", "double", "timestamp", "boolean", "long")
    fields = [
        {"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in zip(schema.names, kinds, strict=True)
    ]
    values = (
        ("a\u2028", "b", "", None),
        (-1, 0, 7, None),
        (0, 20_000, None),
        (0.0, -0.0, math.nan),
        (0, 9),
        (True, None),
    )
    described = replace(table_of(TableRole.UPSERT), keys=tuple(keys), columns=tuple(schema.names))
    described = replace(described, schema_json=json.dumps({"type": "struct", "fields": fields}))
    kept = replace(table_of(TableRole.CHANGES), schema_json=described.schema_json, keys=tuple(keys))
    shown: list[list[str]] = []
    for way in ("at once", "in parts"):
        if way == "in parts":
            Way.HERE_IN_PARTS.enter(monkeypatch)
        chance = random.Random(3)
        store = RegionTables(tmp_path, REGION, LocalFolder(tmp_path / way))
        store.create(described)
        store.create(kept)
        for number in range(1, 5):
            rows = [(*map(chance.choice, values), number) for _ in range(6)]
            columns = [
                pa.array([row[at] for row in rows], pa.int64() if at in (2, 4) else kind.type)
                for at, kind in enumerate(schema)
            ]
            columns = [each.cast(pa.int32()) if at == 2 else each for at, each in enumerate(columns)]
            given = pa.table([each.cast(kind.type) for each, kind in zip(columns, schema, strict=True)], schema=schema)
            files = store.staging(kept, 1, uuid.uuid4().hex).write(last_per_key(given, keys), "rows")
            store.table(kept.name).publish(txn_version(1, number), files)
            store.delta(described).merge(txn_version(1, number), store.changes(described, files))
        store.delta(described).rewind_upsert(txn_version(2, 5), Restored(2, store.table(kept.name), keys, schema.names))
        shown.append(sorted(map(str, store.table(described.name).read().to_pylist())))
    assert shown[0] == shown[1]
    assert shown[0]


@pytest.mark.parametrize(
    "many",
    [pytest.param(True, marks=pytest.mark.slow, id="much has changed"), pytest.param(False, id="little has changed")],
)
def test_files_without_a_changed_key_stay(
    tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    scene = Scene(LocalFolder(tmp_path / "tables"), tmp_path, engine)
    with monkeypatch.context() as small:
        Way.TASKS_IN_PARTS.enter(small)
        scene.merge(1, *((f"c{number}", 1.0, number, 1) for number in range(40)))
    monkeypatch.setattr(keyed_merge, "_MUCH_OF_TABLE", 1_000_000 if many else 0)
    monkeypatch.setattr(keyed_merge, "_SMALL_BYTES", 0)
    before = {file.path for file in scene.store.table(scene.table.name).files.live()}
    scene.merge(2, ("c7", 1.0, 70, 2), (None, math.nan, 0, 2))
    assert scene.shown() == scene.expected()
    left = before - {file.path for file in scene.store.table(scene.table.name).files.live()}
    assert len(before) > 1
    assert len(left) == (len(before) if many else 1)


def test_files_that_cannot_have_a_changed_key_stay_if_many_keys_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Way.HERE_IN_PARTS.enter(monkeypatch)
    monkeypatch.setattr(keyed_merge, "_FILE_BYTES", 2**20)
    scene = Scene(LocalFolder(tmp_path / "tables"), tmp_path, None)
    for number, first in enumerate((10, 20, 30), 1):
        scene.merge(number, *((f"c{first + each}", 1.0, each, number) for each in range(10)))
    before = {file.path for file in scene.store.table(scene.table.name).files.live()}
    scene.merge(4, *((f"c2{each}", 1.0, 70, 4) for each in range(10)))
    assert scene.shown() == scene.expected()
    assert len(before) == 3
    assert len(before - {file.path for file in scene.store.table(scene.table.name).files.live()}) == 1


def test_files_of_a_merge_in_parts_have_ranges_of_keys_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the next merge reads the files of the range that it changes, and no others, as any reader does."""
    Way.HERE_IN_PARTS.enter(monkeypatch)
    scene = Scene(LocalFolder(tmp_path / "tables"), tmp_path, None)
    chance = random.Random(11)
    for number in (1, 2):
        rows = [(f"c{key:04}", 1.0, number, number) for key in range(number, 2000, 2)]
        scene.merge(number, *chance.sample(rows, len(rows)))
    live = {file.path: file for file in scene.store.table(scene.table.name).files.live()}
    folder = scene.store.table(scene.table.name).folder
    of_files = [sorted(rows["customer"].to_pylist()) for rows in folder.read_each(list(live), ["customer"])]
    spans = sorted((keys[0], keys[-1]) for keys in of_files)
    assert len(spans) > 5
    assert all(last <= first for (_, last), (first, _) in itertools.pairwise(spans))
    assert max(map(len, of_files)) < 4 * 2000 / len(spans)
    scene.merge(3, *((f"c{key:04}", 1.0, 7, 3) for key in range(1000, 1040)))
    assert scene.shown() == scene.expected()
    left = live.keys() - {file.path for file in scene.store.table(scene.table.name).files.live()}
    assert len(left) <= 2


@pytest.mark.parametrize(
    ("options", "size"),
    [
        pytest.param({}, math.nan, id="plain-nan"),
        pytest.param(LAID_OUT, 0.0, id="laid out-0.0", marks=pytest.mark.slow),
        pytest.param({}, 0.0, id="plain-0.0", marks=pytest.mark.slow),
        pytest.param(LAID_OUT, math.nan, id="laid out-nan", marks=pytest.mark.slow),
    ],
)
def test_keys_that_are_equal_for_tasks_are_equal_for_this_process(
    tmp_path: Path, engine: SparkEngine, options: dict[str, list[str]], size: float
) -> None:
    """Tasks may merge into a table today, and this process tomorrow, and either may rewind it."""
    scene = Scene(LocalFolder(tmp_path / "tables"), tmp_path, engine, **options)
    other = OTHER_NAN if math.isnan(size) else -size
    here = Scene(LocalFolder(tmp_path / "tables"), tmp_path, None, **options).store.delta(scene.table)
    history = scene.store.table(scene.history.name)
    for number, each in enumerate((size, other, size, other), 1):
        row = ("ann", each, number, number)
        if number == 3:
            scene.merge(number, row, ("bob", 1.0, 1, number))
        else:
            scene.add(number, row)
            here.merge(scene.version(number), given_rows(rows_of(row), KEYS))
        assert scene.shown() == scene.expected()
    here.rewind_upsert(txn_version(2, 5), Restored(2, history, KEYS, SCHEMA.names))
    assert scene.shown() == [told(("ann", other, 2, 2))]


def test_rows_that_do_not_count_change_nothing_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table lags, and files of its history also have rows that it shows already."""
    Way.HERE_IN_PARTS.enter(monkeypatch)
    scene = Scene(LocalFolder(tmp_path / "tables"), tmp_path, None)
    scene.merge(2, *((f"c{number}", 1.0, number, 1 + number % 2) for number in range(40)))
    before = [file.path for file in scene.store.table(scene.table.name).files.live()]
    changes = scene.store.changes(scene.table, scene.store.table(scene.history.name).files.live(), above=2)
    assert not scene.store.delta(scene.table).merge(scene.version(3), changes).done_before
    assert [file.path for file in scene.store.table(scene.table.name).files.live()] == before


def test_texts_that_nobody_can_read_have_no_bounds() -> None:
    odd = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"\xfe"], pa.binary()).buffers())
    rows = pa.table({"odd": odd, "text": ["b", "a"], "null": pa.array([1, None]), "day": pa.array([3, 4], pa.date32())})
    assert keyed_files.bounds_of(rows, rows.column_names) == {"text": ["a", "b"], "day": [3, 4]}
    assert keyed_files.joined([{"k": [1, 2], "n": [0, 0]}, {"k": [-1, 1]}]) == {"k": [-1, 2]}


def test_a_publish_or_rewind_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    scene = Scene(LocalFolder(tmp_path / "tables"), tmp_path, None)
    scene.merge(1, ("ann", 1.0, 1, 1))
    files = scene.add(2, ("ann", 1.0, 2, 2), ("bob", 1.0, 2, 2))
    assert not scene.publish(2, files).done_before
    assert scene.publish(2, files).done_before
    scene.rewind(3, to=1)
    assert scene.take_back(3, 1).done_before
    assert scene.shown() == scene.expected()


def test_a_table_that_lags_is_taken_back_from_the_id_that_it_shows(tmp_path: Path) -> None:
    scene = Scene(LocalFolder(tmp_path / "tables"), tmp_path, None)
    scene.merge(1, ("ann", 1.0, 1, 1))
    scene.add(2, ("ann", 1.0, 2, 2), ("bob", 1.0, 2, 2))
    scene.add(3, ("ann", 1.0, 3, 3))
    scene.rewind(4, to=2, since=1)
    assert scene.shown() == scene.expected()


@ON_A_DISK
def test_rows_leave_come_back_and_move_together_by_tasks(place: Folder, tmp_path: Path, engine: SparkEngine) -> None:
    """There is a replacement, a rewind that takes it back, and a compaction of the rows that are left."""
    store = RegionTables(tmp_path, REGION, place, lambda: Elsewhere(engine.session))  # type: ignore[arg-type,return-value]
    table = table_of(TableRole.APPEND, partition_by=["customer"])
    store.create(table)
    target = store.table(table.name)

    def staged(*rows: Row) -> tuple[StagedFile, ...]:
        return store.staging(table, 1, uuid.uuid4().hex).write(rows_of(*rows), "rows")

    def shown() -> list[str]:
        return sorted(told(tuple(row.values())) for row in target.read().to_pylist())  # type: ignore[arg-type]

    first: list[Row] = [("ann", 1.0, 1, 1), ("bob", 2.0, 2, 2), ("ann", 3.0, 3, 3)]
    second: list[Row] = [("ann", 4.0, 4, 4), ("bob", math.nan, 5, 5), (None, None, 6, 6)]
    target.publish(txn_version(1, 3), staged(*first))
    target.publish(txn_version(1, 6), staged(*second))
    again: Row = ("bob", 20.0, 20, 7)
    withdrawn = target.files.copied([2], store.staging(table, 1, uuid.uuid4().hex))
    assert [(file.rows, file.first_id, file.last_id, bool(file.partition)) for file in withdrawn] == [(1, 2, 2, True)]
    target.replace(txn_version(1, 7), staged(again), [2], store.staging(table, 1, uuid.uuid4().hex))
    assert shown() == sorted(map(told, [first[0], first[2], *second, again]))

    staging = store.staging(table, 2, uuid.uuid4().hex)
    target.rewind_rows(txn_version(2, 8), 5, staging, restored=[([2], withdrawn)])
    wanted = sorted(map(told, [*first, *second[:2]]))
    assert shown() == wanted

    many = len(target.files.live())
    staging = store.staging(table, 2, uuid.uuid4().hex)
    assert target.upkeep.compact(txn_version(2, 8), staging, files_at_least=2)
    assert (shown(), len({file.partition for file in target.files.live()})) == (wanted, 2)
    assert len(target.files.live()) < many


def test_on_one_machine_this_process_merges_and_needs_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A committed group must be published on any machine, also without Java, and also by a process that only reads."""
    Way.HERE_IN_PARTS.enter(monkeypatch)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    here = SparkEngine("local[1]", {}, tmp_path / "spark")
    for number, engine in enumerate((lambda: here, None), 1):
        scene = Scene(LocalFolder(tmp_path / f"tables {number}"), tmp_path, None)
        scene.store = RegionTables(tmp_path, REGION, scene.store.tables, engine)
        scene.add(1, *((f"c{each}", 1.0, each, 1) for each in range(40)))
        scene.bring_up(1, above=0)
        assert scene.shown() == scene.expected()


@pytest.mark.parametrize(
    ("options", "is_local"),
    [
        pytest.param({}, True, id="plain-streamed"),
        pytest.param(LAID_OUT, False, id="laid out-tasks"),
        pytest.param(LAID_OUT, True, id="laid out-streamed", marks=pytest.mark.slow),
        pytest.param({}, False, id="plain-tasks", marks=pytest.mark.slow),
    ],
)
def test_the_rows_of_the_newest_id_take_the_place_of_others_and_go_back(
    tmp_path: Path,
    engine: SparkEngine,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, list[str]],
    is_local: bool,
) -> None:
    """Many rows never come into this process: neither those of the history, nor the written ones."""
    monkeypatch.setattr(staging, "_FEW_BYTES", -1)
    monkeypatch.setattr(LocalFolder, "read", None)
    found = Elsewhere(engine.session, is_local=is_local)
    store = RegionTables(tmp_path, REGION, LocalFolder(tmp_path / "tables"), lambda: found)  # type: ignore[arg-type,return-value]
    table = replace(table_of(TableRole.UPSERT, **options), role=TableRole.OVERWRITE, keys=())
    history = replace(table_of(TableRole.CHANGES), keys=())
    store.create(table)
    store.create(history)
    rows: dict[int, list[Row]] = {
        number: [("ann", float(each), number, number) for each in range(number)] + [("bob", None, number, number)]
        for number in (1, 2, 4)
    }
    kept, target = store.table(history.name), store.overwritten(table.name)
    area = store.staging(table, 1, uuid.uuid4().hex)

    def shown() -> list[str]:
        tables = [pq.read_table(tmp_path / "tables" / table.name / file.path) for file in target.files.live()]
        return sorted(told(tuple(row.values())) for each in tables for row in each.to_pylist())  # type: ignore[arg-type]

    for ids in ((1, 2), (4,)):
        given = rows_of(*(row for number in ids for row in rows[number]))
        files = store.staging(history, 1, uuid.uuid4().hex).write(given, "rows")
        target.overwrite(txn_version(1, ids[-1]), kept, kept.files.newest(files), area)
        kept.publish(txn_version(1, ids[-1]), files)
        assert shown() == sorted(map(told, rows[ids[-1]]))
    for number, to in ((5, 3), (6, 1), (7, 0)):
        newest = partial(kept.files.newest, kept.files.live(), to)
        target.rewind_overwrite(txn_version(2, number), to, kept, newest, area)
        assert shown() == sorted(map(told, rows.get(min(to, 2), [])))


@pytest.mark.parametrize(
    ("mine", "theirs", "written"),
    [
        pytest.param(["ann"], ["cy"], [1, 2], id="rows of other keys"),
        pytest.param(["ann", "cy"], ["cy", "dee"], [1, 3], id="a new file with a key of ours"),
        pytest.param(["ann"], ["bob"], [1, 3], id="a file that was to leave", marks=pytest.mark.slow),
    ],
)
def test_who_is_overtaken_reads_only_what_is_new(
    tmp_path: Path, engine: SparkEngine, mine: list[str], theirs: list[str], written: list[int]
) -> None:
    """Outside of regions, other runs may commit while tasks write.

    Args:
        written: the number of files before the first commit, and before the second; the other run wrote one of these.
    """
    folder, keys, found = LocalFolder(tmp_path / "t"), ["customer", "size"], list[int]()
    outside, other = AutonomousTable(folder, "app"), AutonomousTable(folder, "app")
    groups: list[list[Row]] = [
        [("ann", 1.0, 1, 1), ("bob", 1.0, 1, 1)],
        [(name, 1.0, 2, 2) for name in theirs],
        [(name, 1.0, 3, 3) for name in mine],
    ]

    def pass_point(point: str) -> None:
        if point == "send.before_commit":
            found.append(len(list((tmp_path / "t").glob("*.parquet"))))
            if len(found) == 1:
                other.upsert(rows_of(*groups[1]), keys, SCHEMA_JSON)

    outside.append(rows_of(*groups[0]), SCHEMA_JSON)
    files = outside.staged(engine.session.createDataFrame(rows_of(*groups[2])).coalesce(1))
    with passing(pass_point):
        outside.upsert_files(files, keys, SCHEMA_JSON)
    assert found == written
    expected = {row[0]: row for group in groups for row in group}
    assert sorted(map(told, expected.values())) == sorted(
        told(tuple(row.values()))  # type: ignore[arg-type]
        for row in outside.read().to_pylist()
    )
