"""Tables that are merged on read: rows leave files by deletion vectors, and every reader sees the same rows."""

from __future__ import annotations

import io
import random
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import test_deleted_keys as deleted
from delta.tables import DeltaTable as SparkTable
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction
from harness import passing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import ON_A_DISK
from test_large_tables import KEYS, REGION, SCHEMA, SCHEMA_JSON, Row, Scene, told
from test_large_tables import rows_of as table_rows

from drainmark.jobs.errors import SplitBrain
from drainmark.jobs.errors.environment import FileDamaged
from drainmark.jobs.protocol.records.deletion_vectors import DeletionVector, decoded, encoded, in_one_file
from drainmark.jobs.protocol.records.ids import app_id, txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.tasks.parquet_shares import dead_rows
from drainmark.resources.checkpoints.region_store import RegionTables
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.autonomous_tables import AutonomousTable
from drainmark.resources.delta.health.damaged_tables import damage_of
from drainmark.resources.delta.keyed import former_files, keyed_merge
from drainmark.resources.delta.keyed.keyed_changes import Restored
from drainmark.resources.delta.log import log_entries, marked_files
from drainmark.resources.delta.merge import arrow_schema
from drainmark.resources.delta.upkeep.garbage import garbage_of, outside_regions
from drainmark.resources.delta.upkeep.log_retention import FORMER, KEPT_SECONDS
from drainmark.resources.erasure import purge
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.folder import Folder, LocalFolder

INLINE = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
"""A vector of six rows, as Delta's protocol shows it."""

PARTITIONED = {"partition_by": ["customer"], "cluster_by": ["total"]}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small tables be marked as large ones are: until all rows of a file have left."""
    monkeypatch.setattr(keyed_merge, "_MUCH_OF_TABLE", 0)
    monkeypatch.setattr(keyed_merge, "_MOST_MARKED", 1)


def scene_of(place: Folder, home: Path, engine: SparkEngine | None = None, **options: Any) -> Scene:
    scene = Scene(place, home, engine, **{"merge": "on-read", **options})
    scene.store.widen(scene.table)
    return scene


def files_of(scene: Scene) -> Sequence[Any]:
    return scene.store.table(scene.table.name).files.live()


def rows_in(first: int, last: int, number: int) -> list[Row]:
    return [(f"c{key}", 0.0, number * 1000 + key, number) for key in range(first, last)]


def seen_by_deltalake(scene: Scene) -> list[str]:
    table = delta_tables.open_table(scene.store.table(scene.table.name).folder)
    rows = pa.table(QueryBuilder().register("t", table).execute("select * from t").read_all()).select(SCHEMA.names)
    return sorted(told(tuple(row.values())) for row in rows.to_pylist())


def duckdb() -> Any:
    """Return a connection to DuckDB that reads Delta, None if it is not installed: its extension is a package, too."""
    try:
        import duckdb as found

        files = metadata.files("duckdb-ext-delta") or []
    except (ImportError, metadata.PackageNotFoundError):
        return None
    connection = found.connect()
    connection.load_extension(str(next(file.locate() for file in files if file.name.endswith(".duckdb_extension"))))
    return connection


def seen_by_duckdb(scene: Scene, connection: Any) -> list[str]:
    uri = scene.store.table(scene.table.name).folder.uri
    rows = connection.execute("select customer, size, total, _sequence_id from delta_scan(?)", [uri])
    return sorted(map(told, rows.fetchall()))


def seen_by_spark(scene: Scene, engine: SparkEngine) -> list[str]:
    frame = engine.session.read.format("delta").load(scene.store.table(scene.table.name).folder.uri)
    return sorted(told(tuple(row)) for row in frame.select(*SCHEMA.names).collect())


@ON_A_DISK
@pytest.mark.usefixtures("eager")
def test_a_change_marks_rows_and_writes_no_other_row_again(place: Folder, tmp_path: Path) -> None:
    scene = scene_of(place, tmp_path)
    scene.merge(1, *rows_in(0, 100, 1))
    (first,) = files_of(scene)
    scene.merge(2, *rows_in(40, 43, 2))
    old, new = files_of(scene)
    assert (old.path, old.rows, new.rows) == (first.path, 97, 3)
    assert old.vector is not None
    assert scene.shown() == scene.expected() == seen_by_deltalake(scene)
    assert scene.store.table(scene.table.name).row_count() == 100
    scene.rewind(3, to=1)
    assert first.path in {file.path for file in files_of(scene)}, "rows come back beside the file that they left"
    assert scene.shown() == scene.expected() == seen_by_deltalake(scene)


# --- the same rows as a table that is merged on write ----------------------------------------------------------------

KEY = st.sampled_from([(f"c{number}", number % 3) for number in range(12)])
CHANGES = st.lists(st.tuples(KEY, st.none() | st.integers(0, 9)), min_size=1, max_size=8, unique_by=lambda row: row[0])
STEPS = st.lists(
    st.one_of(
        CHANGES.map(lambda rows: ("merge", [(*key, value) for key, value in rows])),
        st.integers(0, 12).map(lambda to: ("rewind", to)),
        st.sampled_from([("maintain", None), ("on-write", None), ("on-read", None)]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    limits=st.tuples(st.sampled_from([1, 3]), st.sampled_from([2, 8]), st.sampled_from([0, 1, 200])),
    parted=st.booleans(),
)
def test_it_has_the_rows_of_a_table_that_is_merged_on_write_at_every_id(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[Any], limits: tuple[int, int, int], parted: bool
) -> None:
    """Upserts, deletes and rewinds, by merges or by former files, log checkpoints, and the option turned off and on."""
    options = {"partition_by": ["day"]} if parted else {}
    most_marked, folded, undone = limits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_merge, "_MUCH_OF_TABLE", 0)
        patch.setattr(keyed_merge, "_MOST_MARKED", most_marked)
        patch.setattr(keyed_merge, "_FOLDED_FILES", folded)
        patch.setattr(former_files, "_MOST_COMMITS", undone)
        tables = [deleted.scene(tmp_path_factory.mktemp("t"), None, **options, **more) for more in ({}, ON_READ)]
        for store, table in tables:
            store.widen(table)
        groups: list[deleted.Group] = []
        withdrawn: set[int] = set()
        for number, (kind, wanted) in enumerate(steps, start=1):
            what = wanted
            if kind == "rewind":
                what = max({*range(wanted + 1)} - withdrawn)
                withdrawn |= {*range(what + 1, number)}
            for store, table in tables:
                carried_out(store, table, number, kind, what)
            if kind == "merge":
                groups.append((number, what))
            groups = [group for group in groups if kind != "rewind" or group[0] <= what]
            shown = [rows_of(store, table) for store, table in tables]
            assert shown[0] == shown[1] == deleted.expected(groups, number), (number, kind)
            assert queried(tables[1][0], tables[1][1]) == shown[1]
            assert tables[1][0].table(tables[1][1].name).row_count() == len(shown[1])


ON_READ = {"merge": "on-read"}


def carried_out(store: RegionTables, table: RegionTable, number: int, kind: str, what: Any) -> None:
    history, version = store.table(table.history or ""), txn_version(number, number)
    if not history.exists():
        history.create(deleted.schema_json(deleted._KINDS))
    if kind == "merge":
        given_rows = deleted.changes(number, *what)
        files = store.staging("state/totals", number, uuid.uuid4().hex).write(given_rows, "rows")
        history.publish(version, files)
        store.delta(table).merge(version, store.changes(table, files))  # type: ignore[union-attr]
    elif kind == "rewind":
        keyed = store.delta(table)
        keyed.rewind_upsert(version, Restored(what, history, table.keys, table.columns))  # type: ignore[union-attr, arg-type]
        history.rewind_rows(version, what, store.staging("state/totals", number, uuid.uuid4().hex))
    elif kind == "maintain":
        store.table(table.name).upkeep.maintain()
    elif table.is_merged_on_read:
        commits.take_vectors(store.table(table.name).folder, store.region, wanted=kind == "on-read", writer=None)


def rows_of(store: RegionTables, table: RegionTable) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in store.table(table.name).read().to_pylist()), key=repr)


def queried(store: RegionTables, table: RegionTable) -> list[tuple[Any, ...]]:
    opened = DeltaTable(store.table(table.name).folder.uri)
    rows = pa.table(QueryBuilder().register("t", opened).execute("select * from t").read_all())
    return sorted((tuple(row.values()) for row in rows.select(deleted.COLUMNS).to_pylist()), key=repr)


# --- other readers --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager")
def test_duckdb_sees_the_same_rows_at_every_id(tmp_path: Path) -> None:
    connection = duckdb()
    if connection is None:
        pytest.skip("DuckDB and its extension are not installed: pip install duckdb-ext-delta")
    scene, chance = scene_of(LocalFolder(tmp_path), tmp_path), random.Random(5)
    scene.merge(1, *rows_in(0, 3000, 1))
    for number in range(2, 6):
        keys = {*range(number * 100, number * 100 + 50), *chance.sample(range(3000), 30)}
        scene.merge(number, *(row for key in sorted(keys) for row in rows_in(key, key + 1, number)))
        assert seen_by_duckdb(scene, connection) == scene.expected() == seen_by_deltalake(scene)
    scene.rewind(6, to=3)
    assert seen_by_duckdb(scene, connection) == scene.expected() == seen_by_deltalake(scene)
    assert any(file.vector for file in files_of(scene))


@pytest.mark.spark
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("options", [{}, PARTITIONED], ids=["whole", "partitioned"])
def test_every_reader_sees_the_same_rows_at_every_id(
    tmp_path: Path, engine: SparkEngine, options: dict[str, Any]
) -> None:
    scene, chance = scene_of(LocalFolder(tmp_path), tmp_path, **options), random.Random(5)
    for number in range(1, 6):
        keys = sorted(chance.sample(range(40), 12 if number > 1 else 40))
        scene.merge(number, *((f"c{key % 2}", float(key), number * 1000 + key, number) for key in keys))
        assert scene.shown() == scene.expected() == seen_by_deltalake(scene) == seen_by_spark(scene, engine)
    assert any(file.vector for file in files_of(scene))
    uri = scene.store.table(scene.table.name).folder.uri
    scene.rewind(6, to=3)
    asked = ["count(*)", "min(total)", "max(total)", "max(_sequence_id)"]
    told_by_bounds = engine.session.read.format("delta").load(uri).selectExpr(*asked)
    totals = [int(row.rsplit(", ", 2)[1]) for row in scene.expected()]
    assert tuple(told_by_bounds.collect()[0]) == (40, min(totals), max(totals), 3)
    assert scene.shown() == scene.expected() == seen_by_deltalake(scene) == seen_by_spark(scene, engine)


@pytest.mark.spark
@pytest.mark.usefixtures("eager")
def test_vectors_that_spark_wrote_are_read_and_named_as_damage(tmp_path: Path, engine: SparkEngine) -> None:
    scene = scene_of(LocalFolder(tmp_path), tmp_path)
    scene.merge(1, *rows_in(0, 100, 1))
    scene.merge(2, *rows_in(40, 43, 2))
    managed = scene.store.table(scene.table.name)
    SparkTable.forPath(engine.session, managed.folder.uri).delete("total % 7 = 0")
    opened = delta_tables.open_table(managed.folder)
    files = file_lists.live_files(opened, managed.folder)
    found = marked_files.read(managed.folder, files, arrow_schema(opened)).select(SCHEMA.names)
    rows = sorted(told(tuple(row.values())) for row in found.to_pylist())
    assert rows == seen_by_spark(scene, engine)
    assert len(rows) < 100
    with pytest.raises(SplitBrain):
        scene.merge(3, *rows_in(0, 1, 3))
    damage = damage_of(managed.folder, scene.store.region)
    assert damage is not None
    assert not damage.is_traced, "so it is built again from its history"


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("upkeep", ["erase", "maintain"])
def test_upkeep_demands_no_other_feature_of_readers(tmp_path: Path, upkeep: str) -> None:
    scene = scene_of(LocalFolder(tmp_path), tmp_path)
    managed = scene.store.table(scene.table.name)
    scene.merge(1, *rows_in(0, 100, 1))
    scene.merge(2, *rows_in(40, 43, 2))
    if upkeep == "erase":
        purge.forget_log(managed.folder, REGION, writer=managed.writer)
    else:
        opened = delta_tables.open_table(managed.folder)
        commits.set_properties(managed.folder, opened, REGION, scene.version(2), FORMER)
        managed.upkeep.maintain()
    opened = delta_tables.open_table(managed.folder)
    assert opened.protocol().reader_features == ["deletionVectors"]
    assert opened.metadata().configuration.items() >= delta_tables.CONFIGURATION.items()
    assert scene.shown() == scene.expected() == seen_by_deltalake(scene)
    scene.merge(3, *rows_in(50, 53, 3))
    assert scene.shown() == scene.expected() == seen_by_deltalake(scene)


@pytest.mark.usefixtures("eager")
def test_the_rows_of_a_marked_file_are_counted_where_others_left_out_its_statistics(tmp_path: Path) -> None:
    scene = scene_of(LocalFolder(tmp_path), tmp_path)
    scene.merge(1, *rows_in(0, 100, 1))
    managed = scene.store.table(scene.table.name)
    (file,) = files_of(scene)
    shutil.copy(tmp_path / scene.table.name / file.path, tmp_path / scene.table.name / "optimized.parquet")
    opened = delta_tables.open_table(managed.folder)
    added = log_entries.add(replace(file, path="optimized.parquet"), data_change=False)
    del added["add"]["stats"]  # type: ignore[attr-defined]
    changes = [log_entries.remove(file, None, data_change=False), added]
    log_entries.write_entry(managed.folder, opened, REGION, scene.version(1), changes)
    scene.merge(2, *rows_in(40, 43, 2))
    scene.merge(3, *rows_in(50, 52, 3))
    assert scene.shown() == scene.expected() == seen_by_deltalake(scene)
    assert scene.store.table(scene.table.name).row_count() == len(scene.expected())
    counts = file_lists.adds(delta_tables.open_table(managed.folder)).column("num_records").to_pylist()
    assert max(counts) == 100, "a file's records are all that it has, marked or not"


@pytest.mark.usefixtures("eager")
def test_its_newest_id_is_that_of_a_row_that_is_there(tmp_path: Path) -> None:
    scene = scene_of(LocalFolder(tmp_path), tmp_path)
    scene.merge(1, *rows_in(0, 100, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_merge, "_MOST_MARKED", 1000)
        scene.merge(2, *rows_in(40, 43, 2))
    (file,) = files_of(scene)
    assert (file.first_id, file.last_id) == (1, 2)
    scene.rewind(3, to=1)  # by a merge
    assert any(file.last_id == 2 for file in files_of(scene)), "else bounds are exact anyway"
    managed = scene.store.table(scene.table.name)
    assert managed.newest_id() == 1


def test_a_table_keeps_the_features_that_it_had_by_its_version(tmp_path: Path) -> None:
    scene = Scene(LocalFolder(tmp_path), tmp_path, None)
    scene.merge(1, *rows_in(0, 3, 1))
    folder = scene.store.table(scene.table.name).folder
    feed = {"delta.enableChangeDataFeed": "true"}
    made = CommitProperties(app_transactions=[Transaction(app_id(REGION), scene.version(1))])
    delta_tables.open_table(folder).alter.set_table_properties(feed, commit_properties=made)
    assert delta_tables.open_table(folder).protocol().min_writer_version == 4
    commits.take_vectors(folder, REGION, wanted=True, writer=None)
    features = set(delta_tables.open_table(folder).protocol().writer_features or ())
    assert features == {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "generatedColumns",
        "invariants",
    }


@pytest.mark.usefixtures("eager")
def test_a_table_to_which_others_gave_a_feature_gets_no_commit_that_breaks_it(tmp_path: Path) -> None:
    """Row tracking demands ids of rows in each `add`; `deltalake` would refuse such a table, too."""
    scene = scene_of(LocalFolder(tmp_path), tmp_path)
    scene.merge(1, *rows_in(0, 100, 1))
    folder = scene.store.table(scene.table.name).folder
    names = ["appendOnly", "deletionVectors", "domainMetadata", "invariants", "rowTracking"]
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": names}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    log_entries.write_entry(folder, delta_tables.open_table(folder), scene.store.region, scene.version(1), [protocol])
    before = scene.shown()
    with pytest.raises(SplitBrain, match="rowTracking"):
        scene.merge(2, *rows_in(40, 43, 2))
    assert scene.shown() == before


# --- tables of autonomous operators whose owner lets them take vectors -----------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> AutonomousTable:
    table = AutonomousTable(LocalFolder(tmp_path / "lake/newest"), "app")
    table.append(table_rows(*rows_in(0, 100, 1)), SCHEMA_JSON)
    commits.take_vectors(table.folder, "app", wanted=True, writer=None)
    return table


@pytest.mark.usefixtures("eager")
def test_rows_that_others_mark_meanwhile_in_a_file_that_is_rewritten_do_not_come_back(
    tmp_path: Path, outside: AutonomousTable
) -> None:
    other = AutonomousTable(outside.folder, "app")
    groups = [rows_in(0, 100, 1), rows_in(3, 5, 2), rows_in(40, 43, 3)]
    passed = list[str]()

    def pass_point(point: str) -> None:
        if point != "send.before_commit":
            return
        passed.append(point)
        if len(passed) == 1:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(keyed_merge, "_MOST_MARKED", 1)
                other.upsert(table_rows(*groups[1]), KEYS, SCHEMA_JSON)

    with passing(pass_point), pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_merge, "_MOST_MARKED", 1000)  # this one rewrites
        outside.upsert(table_rows(*groups[2]), KEYS, SCHEMA_JSON)
    expected = {row[0]: row for group in groups for row in group}
    shown = (told(tuple(row.values())) for row in outside.read().to_pylist())
    assert sorted(shown) == sorted(map(told, expected.values()))


@pytest.mark.usefixtures("eager")
def test_gc_keeps_the_vectors_of_a_table_that_autonomous_operators_write(
    tmp_path: Path, outside: AutonomousTable
) -> None:
    outside.upsert(table_rows(*rows_in(40, 43, 2)), KEYS, SCHEMA_JSON)
    outside.upsert(table_rows(*rows_in(50, 53, 3)), KEYS, SCHEMA_JSON)
    now = max(outside.folder.modified("").values()) + KEPT_SECONDS + 60
    (found,) = outside_regions(LocalFolder(tmp_path), now=now)
    outside.folder.remove(found.files)
    assert [name for name in found.files if name.endswith(".bin")], "the vector of an earlier version goes"
    assert outside.read().num_rows == 100


# --- what is left on disk -------------------------------------------------------------------------------------------


@ON_A_DISK
@pytest.mark.usefixtures("eager")
def test_gc_deletes_vectors_that_no_version_of_the_last_day_has(place: Folder, tmp_path: Path) -> None:
    scene = scene_of(place, tmp_path)
    scene.merge(1, *rows_in(0, 100, 1))

    def refused(point: str) -> None:
        if point == "publish.before_commit":
            raise RuntimeError("killed with a vector on disk")

    files = scene.add(2, *rows_in(40, 43, 2))
    with passing(refused), pytest.raises(RuntimeError):
        scene.publish(2, files)
    scene.publish(2, files)
    scene.merge(3, *rows_in(50, 53, 3))
    folder = scene.store.table(scene.table.name).folder
    scene.store.table(scene.table.name).upkeep.maintain()
    vectors = {name for name in folder.modified("") if name.endswith(".bin")}
    live = marked_files.vector_files(marked_files.adds_of(folder, delta_tables.open_table(folder)))
    assert (len(vectors), len(live)) == (3, 1)

    def dead(later: float) -> set[str]:
        now = max(folder.modified("").values()) + later
        found = garbage_of(folder, scene.table.name, named=set(), below_epoch=1, now=now)
        return {name for name in found.files if name.endswith(".bin")}

    assert dead(KEPT_SECONDS / 2) == set()
    assert dead(KEPT_SECONDS + 60) == vectors - live


@pytest.mark.usefixtures("eager")
def test_upkeep_and_gc_pass_over_vectors_that_others_kept_in_the_log(tmp_path: Path) -> None:
    """Also after the repair: its commit removes the file with that vector."""
    scene = scene_of(LocalFolder(tmp_path), tmp_path)
    scene.merge(1, *rows_in(0, 100, 1))
    managed = scene.store.table(scene.table.name)
    folder, (file,) = managed.folder, files_of(scene)
    given = {"storageType": "i", "pathOrInlineDv": INLINE, "sizeInBytes": 40, "cardinality": 6}

    def commit(removed: dict[str, Any], added: dict[str, Any]) -> None:
        opened = delta_tables.open_table(folder)
        action = marked_files.adds_of(folder, opened)[file.path]
        plain = {name: action[name] for name in ("path", "partitionValues", "size", "modificationTime", "stats")}
        remove = {"path": file.path, "deletionTimestamp": 1, "dataChange": True, **removed}
        changes = [{"remove": remove}, {"add": {**plain, "dataChange": True, **added}}]
        log_entries.write_entry(folder, opened, REGION, scene.version(1), changes)

    commit({}, {"deletionVector": given})
    with pytest.raises(SplitBrain, match="'i'"):
        scene.shown()
    assert garbage_of(folder, scene.table.name, named=set(), below_epoch=1, now=0.0).files == ()
    commit({"deletionVector": given}, {})
    managed.upkeep.maintain()
    assert garbage_of(folder, scene.table.name, named=set(), below_epoch=1, now=0.0).files == ()
    assert scene.shown() == scene.expected() == seen_by_deltalake(scene)


@pytest.mark.usefixtures("eager")
def test_a_vector_whose_write_lost_its_answer_is_written_again(tmp_path: Path) -> None:
    """A store then says that the file exists; a commit that raised this would say that the entry exists."""

    class Losing(LocalFolder):
        lost = 0

        def write(self, path: str, data: pa.Buffer) -> str:
            mark = super().write(path, data)
            if path.endswith(".bin") and not Losing.lost:
                Losing.lost += 1
                raise FileExistsError(path)
            return mark

    assert marked_files.written(Losing(tmp_path), [encoded([3, 5])], [2])[0].rows == 2
    assert Losing.lost == 1


@pytest.mark.usefixtures("eager")
def test_a_vector_that_is_damaged_or_gone_is_an_error(tmp_path: Path) -> None:
    scene = scene_of(LocalFolder(tmp_path), tmp_path)
    scene.merge(1, *rows_in(0, 100, 1))
    scene.merge(2, *rows_in(40, 43, 2))
    folder = scene.store.table(scene.table.name).folder
    (name,) = (name for name in folder.modified("") if name.endswith(".bin"))
    assert isinstance(folder, LocalFolder)
    path = folder.path / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(FileDamaged, match="checksum"):
        scene.shown()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        scene.shown()


# --- the format -----------------------------------------------------------------------------------------------------

ROWS = st.sets(st.integers(0, 200_000) | st.integers(2**32 - 1000, 2**32 - 1), max_size=200)


@given(vectors=st.lists(ROWS | st.just(set(range(70_000))), min_size=1, max_size=4))
def test_vectors_of_one_file_come_back(vectors: list[set[int]]) -> None:
    data = [encoded(rows) for rows in vectors]
    assert [set(decoded(each)) for each in data] == vectors
    content, places = in_one_file(data, [len(rows) for rows in vectors], uuid.uuid4().hex)
    assert [set(place.of_part(content[slice(*place.span)])) for place in places] == vectors
    assert [DeletionVector.of_log(place.to_log()) for place in places] == places


def test_of_a_file_of_many_vectors_one_is_read() -> None:
    """Each file of a merge has its vector there: to read all of them for each would take the square of their number."""
    data = [encoded([number, 70_000 + number]) for number in range(500)]
    content, places = in_one_file(data, [2] * 500, uuid.uuid4().hex)
    taken = list[int]()

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            found = super().read(size)
            taken.append(len(found))
            return found

    found = [dead_rows(place, lambda path: Counted(content)).tolist() for place in places]
    assert found == [[number, 70_000 + number] for number in range(500)]
    assert sum(taken) < len(content)


def test_the_example_of_the_protocol_is_read() -> None:
    told_there = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40}
    found = DeletionVector.of_log({**told_there, "cardinality": 6})
    assert found.path == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert found.to_log() == {**told_there, "cardinality": 6}


@pytest.mark.parametrize("data", [b"", b"x" * 12, encoded([1])[:4] + b"\x02" + b"\0" * 11])
def test_what_is_no_vector_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="deletion vector"):
        decoded(data)
