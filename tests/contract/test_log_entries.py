"""The entries of Delta's log that we write: what other readers of the table find in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction
from deltalake.transaction import AddAction, RemoveAction

from drainmark.jobs.errors import SplitBrain
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.operators.sources.table_rows import TableRows
from drainmark.jobs.protocol.chains import IDS
from drainmark.jobs.protocol.records.deletion_vectors import DeletionVector
from drainmark.jobs.protocol.records.ids import app_id, txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.protocol.repairs import TableRepair
from drainmark.jobs.tasks.layout import Layout
from drainmark.jobs.tasks.parquet_shares import FileShare, RowFile
from drainmark.jobs.world import Seam, World, entered
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.health.damaged_tables import damage_of, put_right
from drainmark.resources.delta.log import commit_log, log_entries
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.delta.upkeep import log_retention
from drainmark.resources.erasure.files import search
from drainmark.resources.inputs.source_access import RegionAccess
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.folder import PART, LocalFolder

REGION = "shop/orders"
ODD = "a b\"'é=%41{}"
COLUMNS: list[tuple[str, Any]] = [
    (ODD, "string"),
    ("at", "timestamp"),
    ("local", {"type": "array", "elementType": "timestamp_ntz", "containsNull": True}),
    ("_sequence_id", "long"),
]
BY_VALUE = Layout(partition_by=(ODD,))
VALUES = ["plain", None, 'é \u2028\U0001f600"\\', "a=b/c%20"]


def schema_json(columns: Sequence[tuple[str, Any]]) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    return json.dumps({"type": "struct", "fields": fields})


def made(root: Path) -> ManagedTable:
    table = ManagedTable(root, REGION)
    table.create(schema_json(COLUMNS), partition_by=[ODD])
    return table


def staged(table: ManagedTable, sequence_id: int, value: str | None, *, name: str = "") -> StagedFile:
    """Write a file of one row, of which the log has the partition and the statistics."""
    path = f"_staged/1-a/{name or sequence_id}.parquet"
    file = Path(table.folder.uri) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    kinds = [pa.string(), pa.timestamp("us", "UTC"), pa.list_(pa.timestamp("us")), pa.int64()]
    schema = pa.schema(list(zip([name for name, _ in COLUMNS], kinds, strict=True)))
    pq.write_table(pa.table([[value], [sequence_id], [[sequence_id]], [sequence_id]], schema=schema), file)
    size, partition = file.stat().st_size, json.dumps({ODD: value})
    return StagedFile(path=path, size=size, rows=1, first_id=sequence_id, last_id=sequence_id, partition=partition)


def seen_by_deltalake(table: ManagedTable) -> list[tuple[Any, ...]]:
    found = QueryBuilder().register("t", DeltaTable(table.folder.uri)).execute("SELECT * FROM t")
    return _ordered(pa.table(found.read_all()).select([ODD, "_sequence_id"]).to_pylist())


def seen_by_spark(table: ManagedTable, engine: SparkEngine) -> list[tuple[Any, ...]]:
    frame = engine.session.read.format("delta").load(table.folder.uri)
    return _ordered([row.asDict() for row in frame.collect()])


def _ordered(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(((row[ODD], row["_sequence_id"]) for row in rows), key=lambda row: row[1])


@pytest.mark.spark
def test_all_readers_see_the_same_before_and_behind_a_checkpoint(tmp_path: Path, engine: SparkEngine) -> None:
    table = made(tmp_path / "t")
    for number, value in enumerate(VALUES, 1):
        table.publish(txn_version(1, number), [staged(table, number, value)])
    expected = [(value, number) for number, value in enumerate(VALUES, 1)]
    assert seen_by_deltalake(table) == seen_by_spark(table, engine) == expected
    table.upkeep.maintain()
    table.publish(txn_version(2, 5), [staged(table, 5, "later")])
    assert seen_by_deltalake(table) == seen_by_spark(table, engine) == [*expected, ("later", 5)]
    detail = engine.session.sql(f"DESCRIBE DETAIL delta.`{table.folder.uri}`").collect()[0]
    assert (detail["numFiles"], detail["minReaderVersion"], detail["partitionColumns"]) == (5, 3, [ODD])
    opened = DeltaTable(table.folder.uri)
    assert opened.transaction_version(app_id(REGION)) == txn_version(2, 5)
    assert opened.metadata().description == app_id(REGION)
    assert opened.protocol().reader_features == ["timestampNtz"]
    assert [file.partition for file in table.files.live()] == [json.dumps({ODD: value}) for value in (*VALUES, "later")]


@pytest.mark.spark
def test_files_that_spark_rewrote_leave_for_all_readers(tmp_path: Path, engine: SparkEngine) -> None:
    """It names folders by columns and values, and leaves letters of other alphabets as they are."""
    table = made(tmp_path / "t")
    for number in (1, 2):
        table.publish(txn_version(1, number), [staged(table, number, "Zürich: 1*1")])
    (tmp_path / "t" / commit_log.LOG / f".left{PART}").write_text('{"add":')
    engine.session.sql(f"OPTIMIZE delta.`{table.folder.uri}`").collect()
    (live,) = table.files.live()
    assert "Zürich%3A 1%2A1" in live.path
    assert seen_by_deltalake(table) == seen_by_spark(table, engine) == [("Zürich: 1*1", 1), ("Zürich: 1*1", 2)]
    schema = engine.session.read.format("delta").load(table.folder.uri).schema
    assert [row[0] for row in table.files.frame(engine.session, [live], schema).collect()] == ["Zürich: 1*1"] * 2
    table.rewind_rows(txn_version(2, 3), 1, Staging(table.folder, 2, "r", layout=BY_VALUE))
    assert seen_by_deltalake(table) == seen_by_spark(table, engine) == [("Zürich: 1*1", 1)]


def test_files_of_others_come_back_with_the_values_of_their_partition(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    for number in (1, 2):
        table.publish(txn_version(1, number), [staged(table, number, "a")])
    delta_tables.open_table(table.folder).optimize.compact()
    live = table.files.live()
    delta_tables.open_table(table.folder).delete()
    damage = damage_of(table.folder, REGION)
    assert damage is not None
    assert damage.is_traced
    assert damage.sound == live


@pytest.mark.parametrize("has_vectors", [False, True])
def test_a_file_of_others_without_statistics_is_known_by_the_log_and_its_footer(
    tmp_path: Path, has_vectors: bool
) -> None:
    table = made(tmp_path / "t")
    commits.take_vectors(table.folder, REGION, wanted=has_vectors, writer=None)
    file = replace(staged(table, 1, "a"), path="of=a/1.parquet")
    (tmp_path / "t/of=a").mkdir()
    path = tmp_path / "t/_staged/1-a/1.parquet"
    pq.write_table(pq.read_table(path).drop_columns([ODD]), tmp_path / "t" / file.path)
    add = {"add": {**log_entries.add(file, data_change=True)["add"], "stats": "{}"}}
    log_entries.write_entry(table.folder, delta_tables.open_table(table.folder), REGION, 1, [add])
    (live,) = table.files.live()
    assert replace(live, statistics="") == file
    assert _ordered(table.read().to_pylist()) == [("a", 1)]


def test_rows_keep_the_values_of_their_partition_which_others_put_into_the_log_alone(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    for number, value in enumerate(["a", "a", None, None], 1):
        table.publish(txn_version(1, number), [staged(table, number, value)])
    delta_tables.open_table(table.folder).optimize.compact()
    expected = [("a", 1), ("a", 2), (None, 3), (None, 4)]
    live = table.files.live()
    assert len(live) == 2
    assert _ordered(table.files.read(live).to_pylist()) == _ordered(table.read().to_pylist()) == expected
    shares = FileShare(files=tuple(map(RowFile.of, live)), place=table.folder.place, schema=table.read().schema)
    assert _ordered([row for rows in shares.rows() for row in rows.to_pylist()]) == expected
    found = search(table.folder, live, pa.compute.field(ODD) == "a", pa.schema({ODD: pa.string()}))
    assert dict(found.ids) == {1: 1, 2: 1}
    table.rewind_rows(txn_version(2, 4), 3, Staging(table.folder, 2, "r", layout=BY_VALUE))
    table.rewind_rows(txn_version(3, 4), 1, Staging(table.folder, 3, "r", layout=BY_VALUE))
    assert seen_by_deltalake(table) == expected[:1]


@pytest.mark.parametrize("by", ["deltalake", "us"])
def test_a_file_of_an_odd_name_leaves_whoever_added_it(tmp_path: Path, by: str) -> None:
    """Add and remove name a file by the same text, or the file stays."""
    table = made(tmp_path / "t")
    odd = "".join(chr(code) for code in range(32, 127) if chr(code) != "/") + "é\u2028"
    file = staged(table, 1, "x", name=odd)
    opened = delta_tables.open_table(table.folder)
    if by == "us":
        commits.transact(table.folder, opened, REGION, 1, adds=[file])
    else:
        bounds = {"minValues": {"_sequence_id": 1}, "maxValues": {"_sequence_id": 1}}
        stats = json.dumps({"numRecords": 1, **bounds, "nullCount": {"_sequence_id": 0}})
        _by_deltalake(opened, [AddAction(file.path, file.size, {ODD: "x"}, 1, True, stats)])
    assert [row[1] for row in seen_by_deltalake(table)] == [1]
    opened = delta_tables.open_table(table.folder)
    (live,) = file_lists.live_files(opened, table.folder)
    assert live.path == file.path
    if by == "us":
        _by_deltalake(opened, [RemoveAction(file.path, True, 1, file.size, {ODD: "x"})])
    else:
        commits.transact(table.folder, opened, REGION, 2, removes=[live])
    assert file_lists.live_paths(delta_tables.open_table(table.folder)) == set()
    assert seen_by_deltalake(table) == []


@pytest.mark.parametrize("text", ["city=Zürich/a.parquet", "city=*/a.parquet", "city=%5ba%5d/a.parquet"])
def test_a_file_leaves_by_the_text_that_added_it(tmp_path: Path, text: str) -> None:
    """OPTIMIZE of delta-spark names folders by the values of partitions, and escapes fewer letters."""
    table = made(tmp_path / "t")
    file = staged(table, 1, "x")
    moved = replace(file, path=unquote(text))
    (tmp_path / "t" / moved.path).parent.mkdir()
    (tmp_path / "t" / file.path).rename(tmp_path / "t" / moved.path)
    add = {"add": {**log_entries.add(file, data_change=True)["add"], "path": text}}
    log_entries.write_entry(table.folder, delta_tables.open_table(table.folder), REGION, 1, [add])
    assert [live.path for live in table.files.live()] == [moved.path]
    commits.transact(table.folder, delta_tables.open_table(table.folder), REGION, 2, removes=table.files.live())
    assert table.files.live() == ()
    assert seen_by_deltalake(table) == []


def test_a_source_opens_files_by_names_that_have_escapes_themselves(tmp_path: Path) -> None:
    """Other writers name folders by values, such as times: the name has an escape, and the log escapes it again."""
    table = made(tmp_path / "lake/t")
    file = staged(table, 1, "x", name="at=2026-01-01 00%3A00%3A00")
    commits.transact(table.folder, delta_tables.open_table(table.folder), REGION, 1, adds=[file])
    nothing: Any = None
    access = RegionAccess("app/rows", nothing, LocalFolder(tmp_path), nothing)
    assert [each.path for each in access.files_at("t", 1)] == [file.path]
    rows = TableRows(table="t", access=access, starting_version=0, keeps=False)
    piece = Slice(start=None, end={"version": 1}, size_bytes=1, facts={IDS: [1, 1]})
    assert [each.path for each in rows.files(piece)] == [file.path]
    assert [each.path for each in rows._files_with_ids(piece)] == [file.path], "once the log was cut"


def test_bounds_of_a_marked_file_keep_their_digits(tmp_path: Path) -> None:
    """A bound that is rounded would shut out the row that has it."""
    low, high = "-12345678901234567890.123456789012345678", "98765432109876543210.10"
    known = (
        f'{{"numRecords": 2, "minValues": {{"a": {low}, "b": 0.1}}, "maxValues": {{"a": {high}, "b": "1.5\\u0000"}}}}'
    )
    vector = DeletionVector(path=f"deletion_vector_{UUID(int=1)}.bin", offset=1, size=2, rows=1)
    file = replace(staged(made(tmp_path / "t"), 1, "x"), statistics=known, vector=vector)
    told = log_entries.add(file, data_change=True)["add"]["stats"]
    found = json.loads(told, parse_float=str)
    assert found["minValues"] == {"a": low, "b": "0.1"}
    assert found["maxValues"] == {"a": high, "b": "1.5\0"}
    assert found["tightBounds"] is False


@pytest.mark.parametrize("hint", ["null", "5", "[]", '{"version": null}', "", "{"])
def test_a_damaged_hint_at_the_last_checkpoint_is_none(tmp_path: Path, hint: str) -> None:
    table = made(tmp_path / "t")
    table.publish(1, [staged(table, 1, "x")])
    (tmp_path / "t" / commit_log.LOG / "_last_checkpoint").write_text(hint)
    assert commit_log.newest_checkpoint(table.folder) is None
    table.publish(2, [staged(table, 2, "y")])
    assert [row[1] for row in seen_by_deltalake(table)] == [1, 2]


def test_a_table_may_name_no_features(tmp_path: Path) -> None:
    table = ManagedTable(tmp_path / "t", REGION)
    table.create(schema_json([("_sequence_id", "long")]))
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": []}}
    log_entries.write_entry(table.folder, delta_tables.open_table(table.folder), REGION, 1, [protocol])
    table.publish(2, [])
    commits.take_vectors(table.folder, REGION, wanted=True, writer=None)
    opened = DeltaTable(table.folder.uri)
    assert opened.protocol().writer_features == opened.protocol().reader_features == ["deletionVectors"]


def _by_deltalake(opened: DeltaTable, actions: list[AddAction | RemoveAction]) -> None:
    made = CommitProperties(app_transactions=[Transaction(app_id(REGION), 1)])
    opened.create_write_transaction(actions, "append", opened.schema(), partition_by=[ODD], commit_properties=made)


class _Commits(World):
    """The world, which counts the commits that were begun."""

    def __init__(self) -> None:
        self.tried = 0

    def across(self, seam: Seam, deed: Callable[[], Any], on: object = None) -> Any:
        self.tried += seam is Seam.DELTA_COMMIT
        return super().across(seam, deed, on)


def _repair(table: ManagedTable, file: StagedFile) -> None:
    version = int(delta_tables.open_table(table.folder).version())
    repair = TableRepair(table="t", version=version, txn_version=1, added=(file,))
    assert table.writer is not None
    staging = Staging(table.folder, 2, "b")
    put_right(table.folder, REGION, repair, version=None, rows=None, staging=staging, writer=table.writer)


@pytest.mark.parametrize(
    "verb",
    [
        lambda table, file: table.publish(2, [file]),
        lambda table, file: table.replace(2, [file], {1}, Staging(table.folder, 2, "b", BY_VALUE)),
        lambda table, file: table.rewind_rows(2, 0, Staging(table.folder, 2, "b", BY_VALUE)),
        lambda table, file: table.fence(2),
        lambda table, file: commits.take_vectors(table.folder, REGION, wanted=True, writer=None),
        _repair,
    ],
    ids=["append", "replace", "rewind", "fence", "vectors", "repair"],
)
def test_a_feature_that_we_cannot_write_is_refused_once_and_by_name(
    tmp_path: Path, verb: Callable[[ManagedTable, StagedFile], object]
) -> None:
    table = made(tmp_path / "t")
    table.publish(1, [staged(table, 1, "x")])
    names = ["appendOnly", "domainMetadata", "invariants", "rowTracking", "timestampNtz"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["timestampNtz"]}
    changed = [{"protocol": {**protocol, "writerFeatures": names}}]
    log_entries.write_entry(table.folder, delta_tables.open_table(table.folder), REGION, 1, changed)
    counting = _Commits()
    with entered(counting), pytest.raises(SplitBrain, match="rowTracking") as refused:
        verb(table, staged(table, 2, "y"))
    assert counting.tried == 1
    assert table.folder.uri in str(refused.value)
    assert "DROP FEATURE rowTracking" in (refused.value.remedy or "")
    assert [row[1] for row in seen_by_deltalake(table)] == [1]


@pytest.mark.parametrize("of_readers", ["brandNew", "catalogManaged"])
def test_a_feature_that_nobody_here_can_read_is_refused_by_name(tmp_path: Path, of_readers: str) -> None:
    table = made(tmp_path / "t")
    named = {"readerFeatures": [of_readers, "timestampNtz"], "writerFeatures": [of_readers, "timestampNtz"]}
    changed = [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **named}}]
    log_entries.write_entry(table.folder, delta_tables.open_table(table.folder), REGION, 1, changed)
    with pytest.raises(SplitBrain, match=r"brandNew|catalog-managed") as refused:
        table.publish(2, [staged(table, 2, "y")])
    assert table.folder.uri in str(refused.value)
    assert "DROP FEATURE" in (refused.value.remedy or "")


@pytest.mark.parametrize("true", ["true", "TRUE"])
def test_rows_do_not_leave_a_table_that_takes_only_new_ones(tmp_path: Path, true: str) -> None:
    table = made(tmp_path / "t")
    file = staged(table, 1, "x")
    table.publish(1, [file])
    opened = delta_tables.open_table(table.folder)
    commits.set_properties(table.folder, opened, REGION, 1, {"delta.appendOnly": true})
    table.publish(2, [staged(table, 2, "y")])
    opened = delta_tables.open_table(table.folder)
    with pytest.raises(SplitBrain, match=r"delta\.appendOnly"):
        commits.commit(
            table.folder,
            verb="publish",
            prepare=lambda opened: lambda: commits.transact(table.folder, opened, REGION, 3, removes=[file]),
            landed=lambda opened: commits.is_done(opened, REGION, 3),
            writer=None,
        )
    assert [row[1] for row in seen_by_deltalake(table)] == [1, 2]


@pytest.mark.parametrize(
    ("versions", "features"),
    [((2, 5), {}), ((3, 7), {"readerFeatures": ["columnMapping"], "writerFeatures": ["columnMapping"]})],
)
def test_a_table_that_others_gave_a_feature_which_we_do_not_write_is_left_alone(
    tmp_path: Path, versions: tuple[int, int], features: dict[str, Any]
) -> None:
    table = ManagedTable(tmp_path / "t", REGION)
    table.create(schema_json([("_sequence_id", "long")]))
    reader, writer = versions
    protocol = {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **features}}
    log_entries.write_entry(table.folder, delta_tables.open_table(table.folder), REGION, 1, [protocol])
    with pytest.raises(SplitBrain, match="columnMapping"):
        table.publish(2, [])
    assert table.txn_version() == 1


def test_one_version_is_written_once(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    first, second = (delta_tables.open_table(table.folder) for _ in range(2))
    commits.transact(table.folder, first, REGION, 1, adds=[staged(table, 1, "x")])
    with pytest.raises(FileExistsError):
        commits.transact(table.folder, second, REGION, 1, adds=[staged(table, 2, "y")])
    assert [row[1] for row in seen_by_deltalake(table)] == [1]


def test_an_entry_of_a_version_that_was_cleaned_up_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that stood still finds the place of its entry empty: other commits were made, and left the log."""
    monkeypatch.setattr(log_retention, "LOG_VERSIONS", 1)
    table = made(tmp_path / "t")
    table.publish(1, [staged(table, 1, "x")])
    before = delta_tables.open_table(table.folder)
    for number in (2, 3, 4):
        table.publish(number, [staged(table, number, "x")])
    table.upkeep.maintain()
    place = commit_log.entry_path(before.version() + 1)
    assert not commit_log.has_file(table.folder, place)
    with pytest.raises(FileExistsError, match="checkpoint of version 4"):
        commits.transact(table.folder, before, REGION, 5, adds=[staged(table, 5, "y")])
    assert commit_log.has_file(table.folder, place), "no reader minds it"
    table.publish(6, [staged(table, 6, "z")])
    assert [row[1] for row in seen_by_deltalake(table)] == [1, 2, 3, 4, 6]
