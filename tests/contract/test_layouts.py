"""Visible tables with partitions, or an order: the log of their files, merges, rewinds, compaction."""

from __future__ import annotations

import itertools
import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import ON_A_DISK, text_of
from publishers import given_rows

from drainmark.jobs.errors import LayoutChanged, SchemaMismatch, TooManyPartitions
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import Manifest, RegionTable, StagedFile, TableRole
from drainmark.jobs.state.keyed_rows import last_per_key
from drainmark.jobs.tasks.layout import MOST_PARTITIONS, Layout
from drainmark.jobs.tasks.parquet_files import WriteTask
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.resources.checkpoints.region_store import RegionTables
from drainmark.resources.delta.delta_tables import open_table
from drainmark.resources.delta.file_lists import live_paths
from drainmark.resources.delta.keyed import keyed_merge
from drainmark.resources.delta.keyed.keyed_changes import Restored
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.delta.upkeep.garbage import garbage_of
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.folder import Folder, LocalFolder

REGION = "shop/orders"
SCHEMA = pa.schema(
    [("order", pa.int64()), ("country", pa.string()), ("total", pa.float64()), ("_sequence_id", pa.int64())]
)
SCHEMA_JSON = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("order", "long"), ("country", "string"), ("total", "double"), ("_sequence_id", "long"))
        ],
    }
)
Row = tuple[int | None, str | None, float | None, int]


def table_of(role: TableRole = TableRole.APPEND, **options: list[str]) -> RegionTable:
    is_merged = role is TableRole.UPSERT
    return RegionTable(
        name="lake/orders",
        role=role,
        operator="orders_sink",
        schema_json=SCHEMA_JSON,
        keys=("order",) if is_merged else (),
        history="state/orders" if is_merged else None,
        columns=tuple(SCHEMA.names) if is_merged else (),
        options=options,
    )


def rows_of(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


class Scene:
    """A table of a region, and its history."""

    def __init__(self, place: Folder, tmp_path: Path, table: RegionTable) -> None:
        self.store = RegionTables(tmp_path / "home", REGION, place)
        self.table = table
        self.store.create(table)
        self.history = RegionTable(
            name="state/orders",
            role=TableRole.CHANGES,
            operator="orders_sink",
            schema_json=SCHEMA_JSON,
            keys=("order",),
        )
        self.store.create(self.history)

    @property
    def folder(self) -> Folder:
        return self.store.table(self.table.name).folder

    def publish(self, number: int, *rows: Row) -> tuple[StagedFile, ...]:
        files = self.store.staging(self.table, 1, uuid.uuid4().hex).write(rows_of(*rows), "rows")
        self.store.open(self.table).publish(txn_version(1, number), files)
        return files

    def merge(self, number: int, *rows: Row) -> None:
        staged = self.store.staging(self.history, 1, uuid.uuid4().hex).write(rows_of(*rows), "rows")
        self.store.open(self.history).publish(txn_version(1, number), staged)
        self.store.delta(self.table).merge(txn_version(1, number), given_rows(rows_of(*rows), ["order"]))

    def rewind(self, number: int, to: int) -> None:
        history, version = self.store.table(self.history.name), txn_version(1, number)
        self.store.delta(self.table).rewind_upsert(version, Restored(to, history, ["order"], SCHEMA.names))
        history.rewind_rows(version, to, self.store.staging(self.history, 2, uuid.uuid4().hex))

    def rows(self) -> list[Row]:
        """Return the rows as we read them; check that `deltalake` reads the same."""
        ours = self.store.open(self.table).read()
        query = QueryBuilder().register("t", open_table(self.folder))
        theirs = pa.table(query.execute('select "order", country, total, _sequence_id from t'))
        found, others = (
            sorted((tuple(row.values()) for row in each.select(SCHEMA.names).to_pylist()), key=repr)
            for each in (ours, theirs)
        )
        assert repr(found) == repr(others)  # NaN is not equal to NaN
        return found  # type: ignore[return-value]

    def actions(self, version: int | None = None) -> list[dict[str, Any]]:
        """Return the files that a commit added; the default is the last commit."""
        wanted = self.store.table(self.table.name).delta_version() if version is None else version
        lines = text_of(self.folder, f"_delta_log/{wanted:020}.json").splitlines()
        return [found["add"] for found in map(json.loads, lines) if "add" in found]

    def live(self) -> tuple[StagedFile, ...]:
        return self.store.table(self.table.name).files.live()


@pytest.mark.seed("AU8")
def test_files_are_of_one_partition_and_the_log_has_its_value(place: Folder, tmp_path: Path) -> None:
    scene = Scene(place, tmp_path, table_of(partition_by=["country"]))
    rows: list[Row] = [
        (1, "DE", 1.0, 1),
        (2, "a/b=c %é", 2.0, 1),
        (3, None, 3.0, 2),
        (4, "DE", None, 2),
        (5, "x" * 400, 1, 2),
    ]

    files = scene.publish(2, *rows)

    assert [(file.rows, json.loads(file.partition)["country"]) for file in files] == [
        (2, "DE"), (1, "a/b=c %é"), (1, "x" * 400), (1, None)
    ]  # fmt: skip
    assert scene.rows() == sorted(rows, key=repr)
    assert sorted(scene.live(), key=lambda file: file.path) == sorted(files, key=lambda file: file.path)
    assert [action["partitionValues"] for action in scene.actions()] == [json.loads(file.partition) for file in files]


@pytest.mark.seed("AU8")
@ON_A_DISK
@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x1c"])
def test_a_line_end_of_unicode_in_a_partition_or_a_bound_ends_no_line_of_the_log(
    place: Folder, tmp_path: Path, end: str
) -> None:
    scene = Scene(place, tmp_path, table_of(partition_by=["country"]))
    scene.publish(1, (1, f"D{end}E", 1.0, 1))
    table = ManagedTable(scene.folder, region=REGION)  # like another process: it reads the log of the first
    staged = scene.store.staging(scene.table, 1, "b").write(rows_of((2, f"D{end}E", 2.0, 2)), "rows")
    table.publish(txn_version(1, 2), staged)
    assert [row[:2] for row in scene.rows()] == [(1, f"D{end}E"), (2, f"D{end}E")]


PLANES = ["ä", "\u20ac", "\U0001f600", "\U00020bb7", "\U0002f800", "\U00030000", "\U000f1234", "\U00101234"]
"""A letter of each length, and of planes 0 to 3, 15 and 16."""


@pytest.mark.seed("AU8", "H18")
@pytest.mark.parametrize("letter", PLANES, ids=ascii)
def test_a_letter_of_any_plane_is_the_same_for_every_reader_of_a_log(tmp_path: Path, letter: str) -> None:
    """As a key, in a partition, in a bound that is cut, and as a name of a column; before and behind a checkpoint."""
    name = f"{letter}land"
    schema = pa.schema([("k", pa.string()), (name, pa.string()), ("_sequence_id", pa.int64())])
    fields = [{"name": each, "type": "string", "nullable": True, "metadata": {}} for each in ("k", name)]
    fields.append({"name": "_sequence_id", "type": "long", "nullable": True, "metadata": {}})
    table = replace(table_of(TableRole.UPSERT, partition_by=[name]), keys=("k",), columns=tuple(schema.names))
    table = replace(table, schema_json=json.dumps({"type": "struct", "fields": fields}))
    store = RegionTables(tmp_path / "home", REGION, LocalFolder(tmp_path / "tables"))
    store.create(table)
    keys = [f"{letter}k", f"{letter * 40}k"]
    for number in range(1, 5):
        given = pa.table([keys, [f"{letter}{number // 3}"] * 2, [number] * 2], schema=schema)
        store.delta(table).merge(txn_version(1, number), given_rows(given, ["k"]))
        if number == 3:
            store.table(table.name).upkeep.maintain()
    opened = open_table(store.table(table.name).folder)
    expected = sorted((key, f"{letter}1", 4) for key in keys)
    assert sorted(tuple(row.values()) for row in opened.to_pyarrow_table().select(schema.names).to_pylist()) == expected
    for key in keys:
        assert opened.to_pyarrow_dataset().to_table(filter=pc.field("k") == key).num_rows == 1
    assert opened.to_pyarrow_dataset().to_table(filter=pc.field(name) == f"{letter}1").num_rows == 2


@pytest.mark.seed("H18")
@pytest.mark.parametrize("letter", PLANES, ids=ascii)
def test_a_key_of_any_plane_is_found_where_a_former_release_wrote_the_log(tmp_path: Path, letter: str) -> None:
    scene = Scene(LocalFolder(tmp_path / "tables"), tmp_path, replace(table_of(TableRole.UPSERT), keys=("country",)))
    for number in (1, 2, 3):
        given = rows_of((number, f"{letter}land", 1.0, number))
        scene.store.delta(scene.table).merge(txn_version(1, number), given_rows(given, ["country"]))
        (entry,) = Path(scene.folder.uri).glob(f"_delta_log/*{number:03}.json")
        entry.write_text(in_former_letters(entry.read_text()))
        scene.store = RegionTables(tmp_path / "home", REGION, LocalFolder(tmp_path / "tables"))
    assert [row["order"] for row in scene.store.open(scene.table).read().to_pylist()] == [3]


def in_former_letters(entry: str) -> str:
    """Return an entry as earlier releases wrote it: its letters, and those of its statistics, are escapes."""
    actions = [json.loads(line) for line in entry.splitlines()]
    for action in actions:
        if "stats" in action.get("add", {}):
            action["add"]["stats"] = json.dumps(json.loads(action["add"]["stats"]))
    return "".join(f"{json.dumps(action)}\n" for action in actions)


@pytest.mark.seed("H18")
@pytest.mark.parametrize("is_former", [False, True], ids=["new", "of an earlier release"])
def test_readers_find_rows_by_any_of_many_columns(tmp_path: Path, *, is_former: bool) -> None:
    """A file has statistics of its leading columns: where readers expect more, they pass it over."""
    store, table, rows = of_many_columns(tmp_path, is_former=is_former)
    files = open_table(store.table(table.name).folder).to_pyarrow_dataset()
    for name in rows.column_names:
        assert files.to_table(filter=pc.field(name) == rows[name][0]).num_rows == 1, name
    (file,) = store.table(table.name).files.live()
    assert (file.first_id, file.last_id) == (1, 1)


@pytest.mark.spark
@pytest.mark.seed("H18")
def test_spark_finds_rows_by_any_of_many_columns_and_takes_their_names(tmp_path: Path, engine: SparkEngine) -> None:
    store, table, rows = of_many_columns(tmp_path, is_former=False)
    name = f"delta.`{store.table(table.name).folder.uri}`"
    engine.session.sql(f"INSERT INTO {name} SELECT * FROM {name}")  # noqa: S608
    engine.session.sql(f"OPTIMIZE {name}")
    for column in (rows.column_names[0], rows.column_names[44], "_sequence_id"):
        shown = engine.session.sql(f"SELECT * FROM {name}")  # noqa: S608
        found = shown.where(F.col(quoted_name(column)) == rows[column][0].as_py())
        assert found.count() == 2, column


def of_many_columns(tmp_path: Path, *, is_former: bool) -> tuple[RegionTables, RegionTable, pa.Table]:
    """Return a table with one row of 49 columns, perhaps with the property that earlier releases gave it."""
    kinds = {"long": pa.int64(), "string": pa.string(), "boolean": pa.bool_(), "date": pa.date32()}
    names = [f"{name} {number}.`" for number in range(12) for name in kinds]
    fields = [{"name": n, "type": n.partition(" ")[0], "nullable": True, "metadata": {}} for n in names]
    fields.append({"name": "_sequence_id", "type": "long", "nullable": True, "metadata": {}})
    schema = pa.schema([*((n, kinds[n.partition(" ")[0]]) for n in names), ("_sequence_id", pa.int64())])
    table = replace(table_of(), schema_json=json.dumps({"type": "struct", "fields": fields}))
    store = RegionTables(tmp_path / "home", REGION, LocalFolder(tmp_path / "tables"))
    if is_former:
        former = {"delta.dataSkippingNumIndexedCols": "49"}
        store.table(table.name).create(table.schema_json, properties=former)
    store.create(table)
    row = {n: {"long": 7, "string": "x", "boolean": True, "date": 9}[n.partition(" ")[0]] for n in names}
    rows = pa.Table.from_pylist([{**row, "_sequence_id": 1}], schema=schema)
    store.open(table).publish(txn_version(1, 1), store.staging(table, 1, "a").write(rows, "rows"))
    if is_former:
        store.table(table.name).upkeep.maintain()
    return store, table, rows


@pytest.mark.seed("AU8")
@ON_A_DISK
def test_a_row_of_the_checkpoint_table_keeps_partitions_and_statistics(place: Folder, tmp_path: Path) -> None:
    scene = Scene(place, tmp_path, table_of(partition_by=["country"]))
    files = scene.store.staging(scene.table, 1, "a").write(rows_of((1, "DE", 1.0, 1), (2, None, 2.0, 1)), "rows")
    manifest = Manifest(files={scene.table.name: files})
    (back,) = Manifest.from_json(json.loads(json.dumps(manifest.to_json()))).files.values()
    assert [(file, file.statistics) for file in back] == [(file, file.statistics) for file in files]
    assert all(file.statistics for file in back)


@pytest.mark.seed("AU8")
@ON_A_DISK
def test_a_rewind_and_a_compaction_keep_to_partitions(place: Folder, tmp_path: Path) -> None:
    scene = Scene(place, tmp_path, table_of(partition_by=["country"]))
    for number in range(1, 5):
        scene.publish(number, (number, "DE", 1.0, number), (number, "FR", 2.0, number))
    table = scene.store.table(scene.table.name)

    table.rewind_rows(txn_version(2, 5), 3, scene.store.staging(scene.table, 2, "r"))
    assert table.upkeep.compact(txn_version(2, 5), scene.store.staging(scene.table, 2, "c"), files_at_least=2)

    assert [row[0] for row in scene.rows()] == [1, 1, 2, 2, 3, 3]
    assert sorted((file.rows, file.partition) for file in scene.live()) == [
        (3, '{"country": "DE"}'), (3, '{"country": "FR"}')
    ]  # fmt: skip
    assert all(json.loads(action["stats"])["maxValues"]["order"] == 3 for action in scene.actions())


@pytest.mark.seed("AU8")
@ON_A_DISK
def test_rows_are_sorted_in_what_is_written_and_in_what_is_compacted(place: Folder, tmp_path: Path) -> None:
    scene = Scene(place, tmp_path, table_of(cluster_by=["country", "order"]))
    for number in (1, 2):
        scene.publish(
            number, (3, "FR", 1.0, number), (2, None, 1.0, number), (9, "DE", 1.0, number), (1, "FR", 1.0, number)
        )
    table = scene.store.table(scene.table.name)

    def orders() -> list[list[Any]]:
        return [pq.read_table(scene.folder.source(file.path))["order"].to_pylist() for file in scene.live()]

    assert orders() == [[9, 1, 3, 2]] * 2
    table.upkeep.compact(txn_version(1, 2), scene.store.staging(scene.table, 1, "c"), files_at_least=2)
    assert orders() == [[9, 9, 1, 1, 3, 3, 2, 2]]


@pytest.mark.seed("AU8")
@ON_A_DISK
def test_many_sorted_rows_are_several_files_with_narrow_bounds(
    place: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmark.resources.delta.staging._FILE_BYTES", 1000)
    scene = Scene(place, tmp_path, table_of(cluster_by=["order"]))
    scene.publish(1, *((number * 7 % 100, "DE", 1.0, 1) for number in range(100)))
    bounds = [(found["minValues"]["order"], found["maxValues"]["order"]) for found in
              (json.loads(action["stats"]) for action in scene.actions())]  # fmt: skip
    assert len(bounds) > 2
    assert all(before[1] < after[0] for before, after in itertools.pairwise(bounds))


@pytest.mark.seed("AU8")
@ON_A_DISK
def test_a_table_keeps_its_partitions(place: Folder, tmp_path: Path) -> None:
    scene = Scene(place, tmp_path, table_of(partition_by=["country"]))
    for other in (table_of(), table_of(partition_by=["order"]), table_of(partition_by=["country", "order"])):
        with pytest.raises(LayoutChanged) as refused:
            scene.store.create(other)
        assert "--to-initial" in (refused.value.remedy or "")
    scene.store.create(table_of(partition_by=["country"], cluster_by=["order"]))


@pytest.mark.seed("AU8")
@ON_A_DISK
def test_too_many_partitions_are_refused_before_they_are_written(tmp_path: Path, place: Folder) -> None:
    scene = Scene(place, tmp_path, table_of(partition_by=["country"]))
    with pytest.raises(TooManyPartitions) as refused:
        scene.publish(1, *((number, str(number), 1.0, 1) for number in range(MOST_PARTITIONS + 1)))
    assert refused.value.facts["columns"] == ("country",)
    assert str(MOST_PARTITIONS) in refused.value.message
    assert scene.live() == ()

    task = WriteTask(LocalPlace(str(tmp_path)), "new", Layout(partition_by=("country",), most_partitions=3))
    rows = rows_of(*((number, str(number), 1.0, 1) for number in range(9)))
    written = []
    with pytest.raises(TooManyPartitions):
        written.extend(task.work(iter(rows.to_batches())))
    assert [each["rows"] for each in written] == [1, 1, 1]


@pytest.mark.seed("AU8")
def test_what_is_committed_is_merged_and_taken_back_whatever_partitions_it_is_of(tmp_path: Path) -> None:
    """Each of two groups has few partitions; a third group changes a row of each, and a rewind takes that back."""
    scene = Scene(LocalFolder(tmp_path / "tables"), tmp_path, table_of(TableRole.UPSERT, partition_by=["country"]))
    layout = Layout(partition_by=("country",), most_partitions=3)
    table, history = ManagedTable(scene.folder, REGION, layout=layout), scene.store.table(scene.history.name)

    def merge(number: int, *rows: Row) -> None:
        staged = scene.store.staging(scene.history, 1, uuid.uuid4().hex).write(rows_of(*rows), "rows")
        history.publish(txn_version(1, number), staged)
        table.merge(txn_version(1, number), given_rows(rows_of(*rows), ["order"]))

    first: list[Row] = [(number, f"c{number}", 1.0, 1) for number in range(3)]
    second: list[Row] = [(number, f"c{number}", 1.0, 2) for number in range(3, 6)]
    merge(1, *first)
    merge(2, *second)
    merge(3, *((number, "all", 3.0, 3) for number in range(6)))
    assert len({row[1] for row in scene.rows()}) == 1
    table.rewind_upsert(txn_version(2, 4), Restored(2, history, ["order"], SCHEMA.names))
    assert scene.rows() == sorted([*first, *second], key=repr)


@pytest.mark.seed("AU8")
def test_a_date_that_names_no_partition_is_told_by_its_column(tmp_path: Path) -> None:
    far = pa.table({"day": pa.array([6_700_000], pa.int32()).cast(pa.date32()), "_sequence_id": [1]})
    with pytest.raises(SchemaMismatch) as refused:
        Staging(tmp_path, 1, "a", Layout(partition_by=("day",))).write(far, "rows")
    assert "9999" in refused.value.message


@pytest.mark.seed("AU8")
def test_rows_from_before_a_column_are_sorted_by_the_others(tmp_path: Path) -> None:
    layout = Layout(partition_by=("country",), cluster_by=("later", "order"))
    (file,) = Staging(tmp_path, 1, "a", layout).write(rows_of((2, "DE", 1.0, 1), (1, "DE", 1.0, 1)), "rows")
    assert pq.read_table(tmp_path / file.path)["order"].to_pylist() == [1, 2]


@pytest.mark.seed("AU8")
def test_dates_of_other_years_leave_the_files_of_a_table_readable(tmp_path: Path) -> None:
    """`deltalake` gives bounds of dates that Python does not have."""
    columns = [("k", "string"), ("day", "date"), ("_sequence_id", "long")]
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    schema = json.dumps({"type": "struct", "fields": fields})
    table = replace(table_of(TableRole.UPSERT), schema_json=schema, keys=("k",), columns=("k", "day", "_sequence_id"))
    store = RegionTables(tmp_path / "home", REGION, LocalFolder(tmp_path / "tables"))
    store.create(table)
    far = pa.table({"k": ["a"], "day": pa.array([6_700_000], pa.int32()).cast(pa.date32()), "_sequence_id": [1]})
    store.delta(table).merge(txn_version(1, 1), given_rows(far, ["k"]))
    assert (store.open(table).row_count(), store.open(table).newest_id()) == (1, 1)


@pytest.mark.seed("AU8")
@ON_A_DISK
def test_a_task_writes_what_this_process_writes(tmp_path: Path, place: Folder) -> None:
    rows = rows_of((1, "DE", 1.0, 1), (2, None, float("nan"), 2), (3, "DE", 0.0, 2))
    wanted = table_of(partition_by=["country"], cluster_by=["order"])
    here = Scene(place, tmp_path, wanted).store.staging(wanted, 1, "a")
    small = here.write(rows, "rows")
    task = WriteTask(LocalPlace(str(tmp_path)), "new", here.layout)
    told = task.work(iter(here.layout.of_rows(rows).to_batches()))
    assert [(row["partition"], row["statistics"]) for row in told] == [
        (file.partition, file.statistics) for file in small
    ]


# --- one row a key ------------------------------------------------------------------------------------------------


@ON_A_DISK
@pytest.mark.seed("AU8")
def test_a_row_whose_partition_changes_leaves_the_old_one(place: Folder, tmp_path: Path) -> None:
    scene = Scene(place, tmp_path, table_of(TableRole.UPSERT, partition_by=["country"]))
    scene.merge(1, (1, "DE", 1.0, 1), (2, "DE", 2.0, 1), (None, None, 3.0, 1))
    scene.merge(2, (1, "FR", 5.0, 2), (None, "DE", 4.0, 2))
    assert scene.rows() == [(1, "FR", 5.0, 2), (2, "DE", 2.0, 1), (None, "DE", 4.0, 2)]
    scene.merge(3)
    scene.rewind(4, 1)
    assert scene.rows() == [(1, "DE", 1.0, 1), (2, "DE", 2.0, 1), (None, None, 3.0, 1)]
    scene.rewind(5, 0)
    assert scene.rows() == []


@pytest.mark.seed("AU8")
@ON_A_DISK
def test_a_merge_opens_no_file_that_says_it_has_none_of_the_keys(
    place: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(place, tmp_path, table_of(TableRole.UPSERT, cluster_by=["order"]))
    for number in range(1, 4):
        scene.merge(number, (number * 10, "DE", 1.0, number), (number * 10 + 5, "DE", 1.0, number))
    read: list[str] = []
    kind = type(scene.folder.place)
    opened = kind.opened
    monkeypatch.setattr(kind, "opened", lambda self, name: read.append(name) or opened(self, name))
    before = {file.path for file in scene.live()}
    scene.store.delta(scene.table).merge(txn_version(1, 4), given_rows(rows_of((21, "FR", 2.0, 4)), ["order"]))
    assert len(before & set(read)) == 1
    assert len(scene.live()) == 4


@pytest.mark.seed("AU8")
@ON_A_DISK
def test_small_files_of_a_partition_are_folded_and_what_was_replaced_is_garbage(place: Folder, tmp_path: Path) -> None:
    scene = Scene(place, tmp_path, table_of(TableRole.UPSERT, partition_by=["country"]))
    for number in range(1, 12):
        scene.merge(number, (number, "DE", 1.0, number), (-number, "FR", 1.0, number))
    assert len(scene.live()) <= 2 * keyed_merge._FOLDED_FILES
    assert len(scene.rows()) == 22
    kept = live_paths(open_table(scene.folder))
    found = garbage_of(scene.folder, scene.table.name, named=frozenset(), below_epoch=9, now=2e9 + 7200 * 3e5)
    assert found.files
    assert not kept & set(found.files)


@pytest.mark.seed("AU8")
@ON_A_DISK
@pytest.mark.parametrize("reader", ["polars", "duckdb"])
def test_other_readers_find_the_same_rows_and_skip(place: Folder, tmp_path: Path, reader: str) -> None:
    module = pytest.importorskip(reader, reason=f"{reader} is no dependency: it is tried where it is installed")
    scene = Scene(place, tmp_path, table_of(TableRole.UPSERT, partition_by=["country"], cluster_by=["total"]))
    scene.merge(1, (1, "DE", 1.0, 1), (2, "a/b=c %é", 2.0, 1), (3, None, float("nan"), 1))
    scene.merge(2, (1, "FR", 5.0, 2), (4, "x" * 400, None, 2))

    def found(condition: str) -> list[Any]:
        if reader == "polars":
            rows = module.scan_delta(scene.folder.uri).filter(module.sql_expr(condition)).collect().to_arrow()
        else:
            files = open_table(scene.folder).to_pyarrow_dataset()
            rows = module.from_arrow(files).filter(condition).to_arrow_table()
        return sorted(rows.column("order").to_pylist())

    for condition, orders in (
        ("_sequence_id > 0", [1, 2, 3, 4]),
        ("country = 'a/b=c %é'", [2]),
        ("country is null", [3]),
        ("total >= 5.0 and total < 100", [1]),
        ('"order" = 4', [4]),
    ):
        assert found(condition) == orders, condition


@pytest.mark.seed("AU8", "H18")
@ON_A_DISK
def test_a_table_that_loses_its_order_keeps_bounds_that_are_right(place: Folder, tmp_path: Path) -> None:
    scene = Scene(place, tmp_path, table_of(TableRole.UPSERT, cluster_by=["total"]))
    scene.merge(1, (1, "DE", 1.0, 1))
    scene.table = table_of(TableRole.UPSERT)
    scene.store.create(scene.table)
    scene.merge(2, (1, "DE", float("nan"), 2), (2, "DE", 1.0, 2))
    (statistics,) = [json.loads(action["stats"]) for action in scene.actions()]
    assert "total" not in statistics["maxValues"]
    assert statistics["maxValues"]["order"] == 2


@pytest.mark.seed("AU8", "H18")
@ON_A_DISK
def test_a_merge_without_a_layout_tells_the_bounds_that_are_right(place: Folder, tmp_path: Path) -> None:
    scene = Scene(place, tmp_path, table_of(TableRole.UPSERT))
    scene.merge(1, (1, "DE", float("nan"), 1), (2, "z" * 100, 1.0, 1))
    (statistics,) = [json.loads(action["stats"]) for action in scene.actions()]
    assert set(statistics["maxValues"]) == {"order", "country", "_sequence_id"}
    assert statistics["maxValues"]["country"] >= "z" * 64


STEPS = st.lists(
    st.lists(
        st.tuples(st.none() | st.integers(0, 4), st.none() | st.sampled_from("ABC"), st.none() | st.floats(width=32)),
        unique_by=lambda row: row[0],
        max_size=5,
    )
    | st.integers(0, 3),
    max_size=6,
)


@pytest.mark.seed("AU8")
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options=st.sampled_from([{}, {"partition_by": ["country"]}, {"cluster_by": ["country", "total"]}]), steps=STEPS)
def test_merges_and_rewinds_leave_the_last_row_of_each_key(
    tmp_path: Path, options: dict[str, list[str]], steps: list[Any]
) -> None:
    folder = tmp_path / uuid.uuid4().hex
    scene = Scene(LocalFolder(folder), folder, table_of(TableRole.UPSERT, **options))
    seen = rows_of()
    for number, step in enumerate(steps, 1):
        if isinstance(step, int):
            target = max(0, number - step)
            scene.rewind(number, target)
            seen = seen.filter(pc.less_equal(seen["_sequence_id"], target))
        else:
            rows = [(*row, number) for row in step]
            scene.merge(number, *rows)
            seen = pa.concat_tables([seen, rows_of(*rows)])
    wanted = [tuple(row.values()) for row in last_per_key(seen, ["order"]).to_pylist()]
    assert repr(scene.rows()) == repr(sorted(wanted, key=repr))


@pytest.mark.seed("H18")
@ON_A_DISK
def test_a_merge_takes_keys_for_one_as_spark_does(place: Folder, tmp_path: Path) -> None:
    """Keys have several columns, null or not. Both zeros are one number, and so are all NaNs. A row that mixes the
    values of two changed keys is not changed."""
    scene, nan = Scene(place, tmp_path, table_of(TableRole.UPSERT)), float("nan")
    rows = [
        (1, "A", 0.0),
        (1, "A", nan),
        (None, None, None),
        (1, None, 1.0),
        (2, "A", 1.0),
        (1, "B", 1.0),
        (2, "B", 1.0),
    ]
    changed = [(1, "A", -0.0), (1, "A", -nan), (None, None, None), (1, None, 1.0), (2, "A", 1.0), (1, "B", 1.0)]
    for number, each in enumerate((rows, changed), 1):
        keyed = rows_of(*((*row, number) for row in each))
        scene.store.delta(scene.table).merge(txn_version(1, number), given_rows(keyed, ["order", "country", "total"]))
    assert [row for row in scene.rows() if row[-1] == 1] == [(2, "B", 1.0, 1)]
    assert len(scene.rows()) == len(rows)
