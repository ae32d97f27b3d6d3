"""The promises of a managed table beyond `test_publishers`: exact statistics, a fixed schema, compaction."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import Schema, write_deltalake
from harness import passing
from places import CREDENTIALS, ON_A_DISK, text_of
from publishers import (
    KEYS,
    ORDERS,
    REGION,
    SCHEMA,
    START,
    LostReplyError,
    Row,
    column,
    content,
    fail_before,
    given_rows,
    lose_replies,
    rows,
    schema_json,
    staged,
)
from publishers import VERBS as COMMON
from waiting import SOON

from drainmark.jobs.errors import AccountingError, CommitOutcomeUnknown, ForeignTable, SchemaMismatch, SplitBrain
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.state.keyed_rows import key_codes, last_per_key
from drainmark.jobs.tasks.parquet_files import WriteTask
from drainmark.jobs.tasks.places import MARK_BYTES, LocalPlace, mark_of
from drainmark.resources.delta import commits, delta_tables
from drainmark.resources.delta.delta_tables import open_table
from drainmark.resources.delta.keyed.keyed_changes import Restored
from drainmark.resources.delta.log.commit_log import LOG, entry_path
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.merge import up_to
from drainmark.resources.delta.staging import Staging, verify
from drainmark.resources.storage import folder
from drainmark.resources.storage.folder import Folder


def new_table(root: Folder, **more: Any) -> ManagedTable:
    table = ManagedTable(root, REGION, **more)
    table.create(ORDERS)
    return table


@pytest.fixture
def table(place: Folder) -> ManagedTable:
    return new_table(place / "lake" / "with space" / "orders")


@pytest.fixture
def history(place: Folder) -> ManagedTable:
    return new_table(place / "state" / "orders")


# --- the table object that is kept from commit to commit ----------------------------------------------------------


def test_commits_of_others_and_a_log_that_was_cut_are_seen_by_the_next_commit(table: ManagedTable) -> None:
    other = ManagedTable(table.folder, REGION)
    table.publish(txn_version(1, 1), staged(table, ("a", 1, 1, 1), stem="1"))
    for number in range(2, 9):
        other.publish(txn_version(1, number), staged(table, ("a", 1, 1, number), stem=str(number)))
    open_table(table.folder).create_checkpoint()
    table.folder.remove([entry_path(entry) for entry in range(5)])
    assert table.publish(txn_version(1, 8), ()).done_before
    assert table.publish(txn_version(1, 9), staged(table, ("a", 1, 1, 9), stem="9")).delta_version == 9
    assert [row[3] for row in content(table)] == list(range(1, 10))


def test_a_table_that_was_deleted_is_not_committed_to(table: ManagedTable) -> None:
    table.publish(txn_version(1, 1), staged(table, ("a", 1, 1, 1)))
    table.folder.remove([f"{LOG}/{name}" for name in table.folder.names(LOG)])
    with pytest.raises(SplitBrain, match="is gone"):
        table.publish(txn_version(1, 2), ())
    assert not table.exists()


def test_an_older_copy_is_read_anew(table: ManagedTable) -> None:
    table.publish(txn_version(1, 1), staged(table, ("a", 1, 1, 1), stem="1"))
    table.publish(txn_version(1, 2), staged(table, ("a", 1, 1, 2), stem="2"))
    table.folder.remove([entry_path(2)])
    assert [file.last_id for file in table.files.live()] == [1]


# --- creation -----------------------------------------------------------------------------------------------------


@pytest.mark.seed("H17")
def test_every_level_of_a_new_table_is_nullable_and_creation_may_be_repeated(place: Folder) -> None:
    nested = {"type": "array", "containsNull": False, "elementType": {"type": "struct", "fields": [
        column("price", "decimal(10,2)", nullable=False)]}}  # fmt: skip
    wanted = schema_json(column("items", nested, nullable=False), column("_sequence_id", "long", nullable=False))
    table = ManagedTable(place / "t", REGION)

    table.create(wanted)
    table.create(wanted)

    items, sequence_id = json.loads(delta_tables.open_table(table.folder).schema().to_json())["fields"]
    assert items["nullable"]
    assert items["type"]["containsNull"]
    assert items["type"]["elementType"]["fields"][0]["nullable"]
    assert sequence_id["nullable"]
    assert table.delta_version() == 0
    configuration = open_table(table.folder).metadata().configuration
    assert configuration["delta.logRetentionDuration"] == "interval 1 days"
    assert "delta.setTransactionRetentionDuration" not in configuration


@pytest.mark.seed("H17")
@pytest.mark.parametrize(
    ("changed", "columns"),
    [
        (schema_json(column("a", "string"), column("b", "integer")), ("b",)),
        (schema_json(column("a", "string")), ("b",)),
        (schema_json(column("b", "long"), column("a", "string")), ("b", "a")),
        (schema_json(column("a", "string"), column("b", "long"), column("c", "date")), ("c",)),
    ],
)
def test_a_table_with_other_columns_is_refused_by_name(tmp_path: Path, changed: str, columns: tuple[str, ...]) -> None:
    table = ManagedTable(tmp_path / "t", REGION)
    table.create(schema_json(column("a", "string"), column("b", "long")))
    with pytest.raises(SchemaMismatch) as refused:
        table.create(changed)
    assert set(refused.value.facts["columns"]) == set(columns)


@pytest.mark.seed("H17")
@pytest.mark.parametrize(
    "kind",
    [
        "void",
        "interval day to second",
        {"type": "array", "elementType": "void", "containsNull": True},
        {"type": "struct", "fields": [column("x", "interval year")]},
    ],
)
def test_a_type_that_delta_cannot_keep_is_refused(tmp_path: Path, kind: Any) -> None:
    table = ManagedTable(tmp_path / "t", REGION)
    with pytest.raises(SchemaMismatch):
        table.create(schema_json(column("a", kind)))
    assert not table.exists()


def test_what_somebody_else_made_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "delta", rows(("a", 1, 1, 1)))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    new_table(tmp_path / "other")
    for root, region in (("delta", REGION), ("folder", REGION), ("file", REGION), ("other", "shop/returns")):
        with pytest.raises(ForeignTable) as refused:
            ManagedTable(tmp_path / root, region).create(ORDERS)
        assert refused.value.remedy


def test_the_table_of_a_renamed_application_tells_its_old_name(tmp_path: Path) -> None:
    new_table(tmp_path / "t")
    with pytest.raises(ForeignTable) as refused:
        ManagedTable(tmp_path / "t", "store/orders").create(ORDERS)
    assert f"if the application {REGION.partition('/')[0]} was renamed" in (refused.value.remedy or "")


def test_staged_files_do_not_make_a_folder_foreign(place: Folder) -> None:
    table = ManagedTable(place / "t", REGION)
    staged(table, ("a", 1, 1, 1))
    table.create(ORDERS)
    assert content(table) == []


# --- publish ------------------------------------------------------------------------------------------------------


@pytest.mark.seed("H18")
def test_statistics_are_exact_and_of_the_sequence_id_only(table: ManagedTable) -> None:
    published = staged(table, ("a", 1, 10, 3), (None, 1, 5, 997))
    assert [(file.rows, file.first_id, file.last_id) for file in published] == [(2, 3, 997)]
    table.publish(txn_version(1, 1000), published)
    version = table.delta_version()

    entry = text_of(table.folder, f"_delta_log/{version:020}.json")
    (add,) = [json.loads(line)["add"] for line in entry.splitlines() if '"add"' in line]

    assert json.loads(add["stats"]) == {
        "numRecords": 2,
        "minValues": {"_sequence_id": 3},
        "maxValues": {"_sequence_id": 997},
        "nullCount": {"_sequence_id": 0},
    }
    assert table.files.live() == published


@pytest.mark.seed("H18")
def test_what_a_merge_writes_has_the_same_statistics(table: ManagedTable) -> None:
    table.merge(txn_version(1, 2), given_rows(rows(("a", 1, 10, 1), ("b", 1, 5, 2)), KEYS))
    (action,) = pa.table(open_table(table.folder).get_add_actions(flatten=True)).to_pylist()
    assert (action["num_records"], action["min._sequence_id"], action["max._sequence_id"]) == (2, 1, 2)
    assert "min.customer" not in action


# --- merge --------------------------------------------------------------------------------------------------------


@pytest.mark.seed("H17")
def test_rows_with_other_columns_are_not_merged(table: ManagedTable) -> None:
    for source in (rows(("a", 1, 1, 1)).drop_columns("total"), rows(("a", 1, 1, 1)).append_column("x", [[1]])):
        with pytest.raises(SchemaMismatch):
            table.merge(txn_version(1, 1), given_rows(source, KEYS))


# --- rewind -------------------------------------------------------------------------------------------------------


@ON_A_DISK
def test_a_rewind_drops_whole_files_and_rewrites_the_one_that_straddles(table: ManagedTable) -> None:
    table.publish(txn_version(1, 2), staged(table, ("a", 1, 1, 1), ("b", 1, 2, 2), stem="g1"))
    table.publish(txn_version(1, 5), staged(table, ("c", 1, 3, 3), ("d", 1, 4, 4), ("e", 1, 5, 5), stem="g2"))
    table.publish(txn_version(1, 6), staged(table, ("f", 1, 6, 6), stem="g3"))
    kept = table.files.live()[0]

    done = table.rewind_rows(txn_version(2, 7), 3, Staging(table.folder, 2, "r"))

    assert not done.done_before
    assert content(table) == [("a", 1, 1, 1), ("b", 1, 2, 2), ("c", 1, 3, 3)]
    assert table.files.live()[0] == kept
    assert [(file.first_id, file.last_id, file.rows) for file in table.files.live()] == [(1, 2, 2), (3, 3, 1)]
    assert table.rewind_rows(txn_version(2, 7), 3, Staging(table.folder, 2, "r")).done_before


def test_rows_above_an_id_are_counted_and_only_the_file_that_straddles_is_read(
    table: ManagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (1, 3, 5):
        files = staged(table, ("a", 1, 1, first), ("b", 1, 1, first + 1), ("c", 1, 1, first + 1), attempt=f"at-{first}")
        table.publish(txn_version(1, first + 1), files)
    read = []
    reading = type(table.folder).read_each
    monkeypatch.setattr(
        type(table.folder), "read_each", lambda self, paths, *of: read.append(list(paths)) or reading(self, paths, *of)
    )
    assert [table.files.rows_above(to) for to in (0, 2, 6)] == [9, 6, 0]
    assert read == []
    assert table.files.rows_above(3) == 5
    assert [len(paths) for paths in read] == [1]
    monkeypatch.setattr(folder, "_PIECE_BYTES", 0)
    assert table.files.rows_above(3) == 5
    assert len(read) == 1, "of a large file a row group at a time is read"


def test_a_large_file_has_row_groups_that_a_reader_of_some_ids_passes_over(place: Folder) -> None:
    noise = os.urandom(1 << 20)
    many = pa.table({"payload": [noise] * 20, "_sequence_id": pa.array(range(1, 21), pa.int64())})
    (file,) = Staging(place / "large", 1, "a").write(many, "rows")
    with pq.ParquetFile((place / "large").source(file.path)) as opened:
        column = opened.metadata.schema.names.index("_sequence_id")
        bounds = [opened.metadata.row_group(n).column(column).statistics for n in range(opened.metadata.num_row_groups)]
        assert [(found.min, found.max) for found in bounds] == [(1, 7), (8, 14), (15, 20)]
    assert (file.rows, file.first_id, file.last_id) == (20, 1, 20)


@pytest.mark.seed("H4", "V80")
def test_a_rewind_to_the_initial_state_empties_the_table(table: ManagedTable) -> None:
    table.publish(txn_version(1, 1), staged(table, ("a", 1, 1, 1)))
    table.rewind_rows(txn_version(2, 2), 0, Staging(table.folder, 2, "r"))
    assert content(table) == []


def test_a_straddling_file_keeps_every_type(place: Folder) -> None:
    source = pa.table(
        {
            "at": pa.array([1_700_000_000_000_001, None], pa.timestamp("us", tz="UTC")),
            "local": pa.array([1, 2], pa.timestamp("us")),
            "day": pa.array([1, 2], pa.date32()),
            "price": pa.array(["1.10", "2.20"]).cast(pa.decimal128(10, 2)),
            "small": pa.array([1, 2], pa.int16()),
            "tags": pa.array([["x", None], []], pa.list_(pa.string())),
            "props": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "place": pa.array([{"x": 1.5}, None], pa.struct([("x", pa.float64())])),
            "raw": pa.array([b"\x00", None], pa.binary()),
            "_sequence_id": pa.array([1, 2], pa.int64()),
        }
    )
    table = ManagedTable(place / "t", REGION)
    files = Staging(table.folder, 1, "a").write(source, "part")
    table.create(Schema.from_arrow(pq.read_schema(table.folder.source(files[0].path))).to_json())
    table.publish(1, files)

    table.rewind_rows(2, 1, Staging(table.folder, 1, "r"))

    assert table.read() == source.slice(0, 1)
    (file,) = table.files.live()
    verify(table.folder, [file])


@pytest.fixture
def pair(table: ManagedTable, history: ManagedTable) -> Callable[..., None]:
    """Return a function that publishes a group: changes to the history, the last of each key to the visible table."""

    def publish(epoch: int, sequence_id: int, *changes: Row) -> None:
        history.publish(txn_version(epoch, sequence_id), staged(history, *changes, stem=f"g{sequence_id}"))
        table.merge(txn_version(epoch, sequence_id), given_rows(last_per_key(rows(*changes), KEYS), KEYS))

    return publish


@ON_A_DISK
@pytest.mark.seed("H4", "H5")
@pytest.mark.parametrize("to", [2, 0])
def test_an_upsert_table_gets_its_commit_even_where_nothing_or_everything_goes(
    table: ManagedTable, history: ManagedTable, pair: Callable[..., None], to: int
) -> None:
    pair(1, 2, ("a", 1, 1, 1), (None, 1, 2, 2))
    table.rewind_upsert(txn_version(2, 3), Restored(to, history, KEYS, SCHEMA.names))
    assert table.txn_version() == txn_version(2, 3)
    assert len(content(table)) == to


@ON_A_DISK
@pytest.mark.seed("H29")
def test_an_image_stands_for_changes_that_were_dropped(
    table: ManagedTable, history: ManagedTable, pair: Callable[..., None]
) -> None:
    pair(1, 5, ("a", 1, 5, 5), ("b", 1, 5, 5))
    table.merge(txn_version(1, 6), given_rows(rows(("c", 1, 6, 4)), KEYS))
    (image,) = staged(history, ("a", 1, 2, 2), ("c", 1, 4, 4), stem="image")

    table.rewind_upsert(txn_version(2, 7), Restored(4, history, KEYS, SCHEMA.names, images=[image.path]))

    assert content(table) == [("a", 1, 2, 2), ("c", 1, 6, 4)]


def test_last_per_key_takes_the_highest_of_the_order_columns() -> None:
    source = rows(
        ("a", 1, 9, 2), ("a", 1, 1, 1), (None, 1, 1, 1), (None, 1, 2, 2), ("a", None, 3, 1), (None, None, 4, 1)
    )
    assert last_per_key(source, KEYS).to_pylist() == source.take([0, 3, 4, 5]).to_pylist()
    assert last_per_key(source, KEYS, ["_sequence_id", "total"]).num_rows == 4
    assert last_per_key(source.slice(0, 0), KEYS).num_rows == 0


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.seed("H5")
def test_codes_are_equal_where_all_keys_are_across_tables_and_however_many_keys() -> None:
    chance = random.Random(5)
    values: Sequence[Any] = ("x", "y", None)
    names = ["a", "b", "c", "d"]
    for count in range(1, 5):
        drawn = [{name: [chance.choice(values) for _ in range(60)] for name in names[:count]} for _ in range(2)]
        tables = [pa.table(each, schema=pa.schema([(name, pa.string()) for name in each])) for each in drawn]
        codes = [int(code) for part in key_codes(tables, names[:count]) for code in part]
        keys = [tuple(row.values()) for table in tables for row in table.to_pylist()]
        assert len(set(zip(keys, codes, strict=True))) == len(set(keys)) == len(set(codes))


def test_a_table_of_rows_can_be_read_as_it_was(table: ManagedTable) -> None:
    assert table.read(columns=["total"]).num_rows == 0
    table.publish(txn_version(1, 3), staged(table, ("a", 1, 1, 1), ("b", 1, 2, 2), ("c", 1, 3, 3)))
    assert table.read(["total"], up_to(2)).column("total").to_pylist() == [1, 2]
    assert table.read(where=pc.field("customer") == "c").num_rows == 1


@pytest.mark.seed("H34")
def test_a_process_that_wrote_and_read_ends_with_code_0(table: ManagedTable, s3_server: str) -> None:
    table.publish(txn_version(1, 1), staged(table, ("a", 1, 1, 1)))
    script = f"""
from places import place_at
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.merge import up_to
table = ManagedTable(place_at({table.folder.uri!r}, {s3_server!r}), {REGION!r})
assert table.publish({txn_version(1, 2)}, ()).delta_version == 2
assert table.read().num_rows == 1
"""
    environment = {**os.environ, **CREDENTIALS, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=SOON, env=environment).returncode == 0


# --- maintenance --------------------------------------------------------------------------------------------------


def publish_many(table: ManagedTable, ids: Sequence[int]) -> None:
    for sequence_id in ids:
        name = f"c{sequence_id}"
        files = staged(table, (name, 1, sequence_id, sequence_id), stem=f"g{sequence_id}")
        table.publish(txn_version(1, sequence_id), files)


@ON_A_DISK
@pytest.mark.seed("H3", "H7")
def test_compaction_keeps_rows_version_and_fence(table: ManagedTable) -> None:
    publish_many(table, range(1, 6))
    group = staged(table, ("zombie", 1, 5, 5), stem="zombie")
    before = content(table)

    assert table.upkeep.compact(txn_version(1, 5), Staging(table.folder, 1, "c"), files_at_least=4)

    assert content(table) == before
    assert [(file.first_id, file.last_id, file.rows) for file in table.files.live()] == [(1, 5, 5)]
    assert table.txn_version() == txn_version(1, 5)
    assert table.publish(txn_version(1, 5), group).done_before
    table.publish(txn_version(2, 6), staged(table, ("next", 1, 6, 6), stem="g6"))
    assert content(table) == sorted([*before, ("next", 1, 6, 6)], key=repr)


@ON_A_DISK
@pytest.mark.seed("H7")
def test_compaction_does_nothing_at_another_version_or_with_few_files(table: ManagedTable) -> None:
    publish_many(table, range(1, 4))
    version = table.delta_version()
    staging = Staging(table.folder, 1, "c")
    assert not table.upkeep.compact(txn_version(1, 2), staging, files_at_least=2)
    assert not table.upkeep.compact(txn_version(1, 3), staging, files_at_least=4)
    assert table.delta_version() == version


@ON_A_DISK
@pytest.mark.seed("H7", "H10", "H29")
def test_a_drop_that_did_not_land_is_not_taken_for_done(place: Folder) -> None:
    met: list[str] = []

    def meet(point: str) -> None:
        if point == "compact.before_commit" and not met:
            met.append(point)  # a commit without changes makes the first commit of the drop fail
            commits.transact(other.folder, delta_tables.open_table(other.folder), REGION, txn_version(1, 3))

    table = new_table(place / "t")
    other = ManagedTable(table.folder, REGION)
    publish_many(other, range(1, 4))
    assert not table.upkeep.drop(txn_version(1, 2), 2), "another version"
    with passing(meet):
        assert table.upkeep.drop(txn_version(1, 3), 2)
    assert [file.first_id for file in table.files.live()] == [3]
    assert not table.upkeep.drop(txn_version(1, 3), 2), "nothing is left to drop"


@ON_A_DISK
@pytest.mark.seed("H7")
def test_a_compaction_that_meets_a_publish_is_given_up(place: Folder) -> None:
    zombie = new_table(place / "t")
    owner = ManagedTable(zombie.folder, REGION)
    publish_many(owner, range(1, 4))

    def meanwhile(point: str) -> None:
        if point == "compact.before_commit":
            owner.rewind_rows(txn_version(2, 4), 1, Staging(owner.folder, 2, "r"))

    with passing(meanwhile):
        assert not zombie.upkeep.compact(txn_version(1, 3), Staging(zombie.folder, 1, "c"), files_at_least=2)
    assert content(owner) == [("c1", 1, 1, 1)]
    assert owner.txn_version() == txn_version(2, 4)


@pytest.mark.seed("H30")
@ON_A_DISK
def test_no_compacted_file_lies_across_the_horizon(table: ManagedTable) -> None:
    publish_many(table, range(1, 7))
    assert table.upkeep.compact(txn_version(1, 6), Staging(table.folder, 1, "c"), files_at_least=2, horizon_id=3)
    assert [(file.first_id, file.last_id) for file in table.files.live()] == [(1, 3), (4, 6)]


@pytest.mark.seed("H30")
@ON_A_DISK
def test_a_heavy_old_file_is_not_rewritten_for_a_few_new_rows(table: ManagedTable) -> None:
    heavy = [(f"h{n}", 1, n, 1) for n in range(20)]
    table.publish(txn_version(1, 1), staged(table, *heavy, stem="heavy"))
    old = table.files.live()[0]
    publish_many(table, range(2, 6))
    assert table.upkeep.compact(txn_version(1, 5), Staging(table.folder, 1, "c"), files_at_least=4)
    assert old in table.files.live()
    assert len(table.files.live()) == 2


@ON_A_DISK
@pytest.mark.seed("H10", "H30")
def test_the_version_survives_maintenance_of_the_log(table: ManagedTable) -> None:
    publish_many(table, [1, 2])
    table.upkeep.maintain()
    assert "_last_checkpoint" in table.folder.names("_delta_log")
    assert table.txn_version() == txn_version(1, 2)
    assert table.publish(txn_version(1, 2), ()).done_before
    publish_many(table, [3])
    assert table.row_count() == 3


def test_rows_of_some_ids_are_staged_once_more_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`backfill --again` withdraws half of forty megabytes, and holds only a few of them in memory (H30)."""
    monkeypatch.setattr("drainmark.resources.delta.staging._FEW_BYTES", 2**20)
    chance = random.Random(7)
    table = ManagedTable(folder.LocalFolder(tmp_path / "t"), REGION)
    table.create(schema_json(column("text", "string"), column("_sequence_id", "long")))
    ids = pa.array([1, 2] * 10_000, pa.int64())
    for number in (1, 2):
        texts = pa.array([chance.randbytes(500).hex() for _ in range(20_000)])
        rows = pa.table({"text": texts, "_sequence_id": ids})
        files = Staging(table.folder, 1, "a").write(rows, f"rows-{number}", rows_per_group=2000)
        table.publish(txn_version(1, 2 * number), files)
    wanted = rows["text"].filter(pc.equal(ids, 2))
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        copied = table.files.copied([2], Staging(table.folder, 1, "b"))
    finally:
        pa.set_memory_pool(before)
    assert 10**6 < pool.max_memory() < 30 * 2**20
    assert [(file.rows, file.first_id, file.last_id) for file in copied] == [(10_000, 2, 2)] * 2
    found = [pq.read_table(tmp_path / "t" / file.path)["text"].combine_chunks() for file in copied]
    assert wanted.combine_chunks() in found


# --- lost replies and lost races ----------------------------------------------------------------------------------


VERBS = COMMON | {
    "compact": lambda table, _: table.upkeep.compact(
        txn_version(1, 3), Staging(table.folder, 1, "c"), files_at_least=2
    ),
}


def started(root: Folder) -> ManagedTable:
    new_table(root)
    table = ManagedTable(root, REGION)
    for row in START:
        ManagedTable(root, REGION).publish(txn_version(1, row[3]), staged(table, row, stem=f"g{row[3]}"))
    return table


@pytest.mark.seed("H10")
@ON_A_DISK
@pytest.mark.parametrize("verb", ["compact"])
def test_a_lost_reply_is_found_out_and_nothing_is_done_twice(place: Folder, verb: str) -> None:
    history, calm = started(place / "history"), started(place / "calm")
    VERBS[verb](calm, history)
    table = started(place / "table")
    before = table.delta_version()

    with passing(lose_replies):
        VERBS[verb](table, history)

    assert table.delta_version() == before + 1
    assert content(table) == content(calm)
    assert table.txn_version() == calm.txn_version()


@pytest.mark.seed("H10")
@pytest.mark.parametrize("verb", ["compact"])
def test_a_failure_before_the_commit_is_passed_on_and_leaves_the_table(wide_place: Folder, verb: str) -> None:
    history, table = started(wide_place / "history"), started(wide_place / "table")
    with passing(fail_before), pytest.raises(LostReplyError):
        VERBS[verb](table, history)
    assert content(table) == sorted(START, key=repr)
    assert table.txn_version() == txn_version(1, 3)


def other_commits(root: Folder, times: int) -> Callable[[str], None]:
    """Return a hook: a stranger to the region commits between check and commit, so many times."""
    left = [times]

    def interfere(point: str) -> None:
        if point.endswith(".before_commit") and left[0]:
            left[0] -= 1
            commits.transact(root, delta_tables.open_table(root), "nobody", 1)

    return interfere


@pytest.mark.seed("H2", "H10")
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "compact"])
def test_a_refused_commit_is_checked_and_made_anew(wide_place: Folder, verb: str) -> None:
    history, calm = started(wide_place / "history"), started(wide_place / "calm")
    VERBS[verb](calm, history)
    root = wide_place / "table"
    table = started(root)
    with passing(other_commits(root, 2)):
        VERBS[verb](table, history)
    assert content(table) == content(calm)
    assert table.txn_version() == calm.txn_version()


@pytest.mark.seed("H10")
def test_a_commit_that_never_lands_is_given_up_as_unknown(wide_place: Folder) -> None:
    root = wide_place / "table"
    table = started(root)
    with passing(other_commits(root, 1000)), pytest.raises(CommitOutcomeUnknown) as unknown:
        table.publish(txn_version(1, 4), ())
    assert unknown.value.__cause__ is not None
    assert table.txn_version() == txn_version(1, 3)


# --- staging ------------------------------------------------------------------------------------------------------


@pytest.mark.seed("H8")
def test_staging_of_two_attempts_never_shares_a_file(tmp_path: Path) -> None:
    one, two = Staging(tmp_path, 1, "one"), Staging(tmp_path, 1, "two")
    assert not (tmp_path / "_staged").exists()
    paths = [stage.write(rows(("a", 1, 1, 1)), "part")[0].path for stage in (one, one, two)]
    assert paths == ["_staged/1-one/part.parquet", "_staged/1-one/part-1.parquet", "_staged/1-two/part.parquet"]
    assert one.write(rows(), "nothing") == ()
    one.discard()
    assert [path.name for path in (tmp_path / "_staged").iterdir()] == ["1-two"]


@pytest.mark.seed("H18", "H35")
def test_a_task_tells_the_facts_of_what_it_wrote(tmp_path: Path) -> None:
    batches = [each for ids in ((7, 3), (), (5, None)) for each in id_rows(*ids).to_batches()]
    (facts,) = WriteTask(LocalPlace(str(tmp_path)), "new").work(iter(batches))
    (path,) = (tmp_path / "new").iterdir()
    assert facts == {
        "name": f"new/{path.name}", "size": path.stat().st_size, "rows": 4, "footer_rows": 4, "first_id": 3,
        "last_id": 7, "without_id": 1, "mark": mark_of(path.read_bytes()[-MARK_BYTES:]), "partition": "",
        "statistics": "",
    }  # fmt: skip
    assert pq.read_table(path).to_pylist() == [{"_sequence_id": number} for number in (7, 3, 5, None)]


def test_a_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    assert [*WriteTask(LocalPlace(str(tmp_path)), "new").work(iter(id_rows().to_batches()))] == []
    assert list(tmp_path.iterdir()) == []


def test_two_attempts_at_a_task_write_two_files(tmp_path: Path) -> None:
    """Spark takes the facts of one attempt; no other attempt writes to the file of that one."""
    task = WriteTask(LocalPlace(str(tmp_path)), "")
    names = {facts["name"] for _ in range(2) for facts in task.work(iter(id_rows(1).to_batches()))}
    assert names == {path.name for path in tmp_path.iterdir()}
    assert len(names) == 2


def test_a_task_that_cannot_write_tells_why(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    with pytest.raises(OSError) as refused:
        list(WriteTask(LocalPlace(str(tmp_path)), "new").work(iter(id_rows(1).to_batches())))
    assert refused.value.errno == errno.EEXIST


def id_rows(*ids: int | None) -> pa.Table:
    return pa.table({"_sequence_id": pa.array(ids, pa.int64())})


@pytest.mark.seed("H18")
def test_rows_without_a_sequence_id_are_refused(tmp_path: Path) -> None:
    staging = Staging(tmp_path, 1, "a")
    for ids in ([1, None], [None, None]):
        source = pa.table({"x": [1, 2], "_sequence_id": pa.array(ids, pa.int64())})
        with pytest.raises(AccountingError):
            staging.write(source, "part")


def test_a_staged_file_has_microseconds_and_plain_types(tmp_path: Path) -> None:
    source = pa.table(
        {
            "at": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", tz="Europe/Berlin")),
            "name": pa.array(["x"]).dictionary_encode(),
            "view": pa.array(["x"], pa.string_view()),
            "_sequence_id": [1],
        }
    )
    (file,) = Staging(tmp_path, 1, "a").write(source, "part")
    found = pq.read_schema(tmp_path / file.path)
    assert [str(kind) for kind in found.types] == ["timestamp[us, tz=UTC]", "string", "string", "int64"]
    assert found.metadata is None
    with pytest.raises(SchemaMismatch):
        Staging(tmp_path, 1, "a").write(pa.table({"x": pa.nulls(1)}), "void")
