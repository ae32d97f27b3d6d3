"""The entries of Delta's log that we write: what other readers of the table find in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction
from deltalake.transaction import AddAction, RemoveAction

from drainmark.jobs.errors import CommitOutcomeUnknown
from drainmark.jobs.protocol.records.ids import app_id, txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.resources.delta import commits
from drainmark.resources.delta.log import log_entries
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.spark.session import SparkEngine

REGION = "shop/orders"
ODD = "a b\"'é=%41{}"
COLUMNS: list[tuple[str, Any]] = [
    (ODD, "string"),
    ("at", "timestamp"),
    ("local", {"type": "array", "elementType": "timestamp_ntz", "containsNull": True}),
    ("_sequence_id", "long"),
]
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


@pytest.mark.parametrize("by", ["deltalake", "us"])
def test_a_file_of_an_odd_name_leaves_whoever_added_it(tmp_path: Path, by: str) -> None:
    """Add and remove name a file by the same text, or the file stays."""
    table = made(tmp_path / "t")
    odd = "".join(chr(code) for code in range(32, 127) if chr(code) != "/") + "é\u2028"
    file = staged(table, 1, "x", name=odd)
    opened = commits.open_table(table.folder)
    if by == "us":
        commits.transact(table.folder, opened, REGION, 1, adds=[file])
    else:
        bounds = {"minValues": {"_sequence_id": 1}, "maxValues": {"_sequence_id": 1}}
        stats = json.dumps({"numRecords": 1, **bounds, "nullCount": {"_sequence_id": 0}})
        _by_deltalake(opened, [AddAction(file.path, file.size, {ODD: "x"}, 1, True, stats)])
    assert [row[1] for row in seen_by_deltalake(table)] == [1]
    opened = commits.open_table(table.folder)
    (live,) = commits.live_files(opened, table.folder)
    assert live.path == file.path
    if by == "us":
        _by_deltalake(opened, [RemoveAction(file.path, True, 1, file.size, {ODD: "x"})])
    else:
        commits.transact(table.folder, opened, REGION, 2, removes=[live])
    assert commits.live_paths(commits.open_table(table.folder)) == set()
    assert seen_by_deltalake(table) == []


def _by_deltalake(opened: DeltaTable, actions: list[AddAction | RemoveAction]) -> None:
    made = CommitProperties(app_transactions=[Transaction(app_id(REGION), 1)])
    opened.create_write_transaction(actions, "append", opened.schema(), partition_by=[ODD], commit_properties=made)


def test_rows_do_not_leave_a_table_that_takes_only_new_ones(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    file = staged(table, 1, "x")
    table.publish(1, [file])
    opened = commits.open_table(table.folder)
    commits.set_properties(table.folder, opened, REGION, 1, {"delta.appendOnly": "true"})
    table.publish(2, [staged(table, 2, "y")])
    opened = commits.open_table(table.folder)
    with pytest.raises(CommitOutcomeUnknown, match=r"delta\.appendOnly"):
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
    log_entries.write_entry(table.folder, commits.open_table(table.folder), REGION, 1, [protocol])
    with pytest.raises(CommitOutcomeUnknown, match="columnMapping"):
        table.publish(2, [])
    assert table.txn_version() == 1


def test_one_version_is_written_once(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    first, second = (commits.open_table(table.folder) for _ in range(2))
    commits.transact(table.folder, first, REGION, 1, adds=[staged(table, 1, "x")])
    with pytest.raises(FileExistsError):
        commits.transact(table.folder, second, REGION, 1, adds=[staged(table, 2, "y")])
    assert [row[1] for row in seen_by_deltalake(table)] == [1]
