"""Rows that are gone delete their keys: in databases, and in Delta tables that tasks merge in parts."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_database_sinks import Database, database, described, lite, schema_json
from test_large_tables import Elsewhere

from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.state import keyed_parts
from drainmark.resources.checkpoints.region_store import RegionTables
from drainmark.resources.delta.keyed import keyed_merge
from drainmark.resources.delta.keyed.keyed_changes import Restored
from drainmark.resources.delta.managed_table import KeyedTable, ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.folder import LocalFolder

__all__ = ["database", "lite"]

KEYS = ("customer", "day")
SCHEMA = pa.schema(
    [
        ("customer", pa.string()),
        ("day", pa.int32()),
        ("total", pa.int64()),
        ("_gone", pa.bool_()),
        ("_sequence_id", pa.int64()),
    ]
)
COLUMNS = ("customer", "day", "total", "_sequence_id")
_KINDS = {"customer": "string", "day": "integer", "total": "long", "_gone": "boolean", "_sequence_id": "long"}
SHOWN = schema_json({name: _KINDS[name] for name in COLUMNS})
Change = tuple[str | None, int | None, int | None]
"""A key, and its value; None deletes it."""
Group = tuple[int, Sequence[Change]]


def changes(number: int, *rows: Change) -> pa.Table:
    values = [(*row, row[2] is None, number) for row in rows]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, value, strict=True)) for value in values], schema=SCHEMA)


def published(history: ManagedTable, number: int, *rows: Change) -> pa.Table:
    history.create(schema_json(_KINDS))
    given = changes(number, *rows)
    history.publish(txn_version(1, number), Staging(history.folder, 1, uuid.uuid4().hex).write(given, "rows"))
    return given


def expected(groups: Sequence[Group], to: int) -> list[tuple[Any, ...]]:
    """Return the rows at an id, by plain Python."""
    found = {}
    for number, rows in groups:
        for customer, day, total in rows if number <= to else ():
            found.pop((customer, day), None)
            if total is not None:
                found[customer, day] = (customer, day, total, number)
    return sorted(found.values(), key=repr)


GROUPS: list[Group] = [
    (1, [("ann", 1, 5), (None, None, 6), ("bob", None, 7), ("cy", 3, 1)]),
    (2, [("ann", 1, None), (None, None, None), ("nobody", 1, None), ("cy", 3, 2)]),
    (3, [("ann", 1, 9), ("bob", None, None)]),
    (4, [("ann", 1, None), ("cy", 3, None)]),
]


@pytest.mark.seed("DL1")
@pytest.mark.parametrize("at_once", [1000, 1], ids=["at once", "in parts"])
def test_a_database_loses_the_keys_and_gets_them_back(
    database: Database, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(keyed_parts, "ROWS_AT_ONCE", at_once)
    table = described("totals", keys=KEYS, schema=SHOWN)
    sink = database.made(table)

    def shown() -> list[tuple[Any, ...]]:
        return database.ask("SELECT customer, day, total, _sequence_id FROM totals")

    for number, rows in GROUPS:
        given = published(database.history, number, *rows)
        parts = list(keyed_parts.last_of_keys(lambda given=given: [given], given.num_rows, KEYS))  # type: ignore[misc]
        sink.merge(txn_version(1, number), parts, KEYS)
        assert shown() == expected(GROUPS, number), number
        assert sink.merge(txn_version(1, number), parts, KEYS).done_before
    for place, to in enumerate((3, 2, 1, 0)):
        sink.rewind_upsert(txn_version(2, 5 + place), Restored(to, database.history, KEYS, table.columns))
        assert shown() == expected(GROUPS, to), to


@pytest.mark.seed("DL1")
def test_a_row_of_others_with_a_deleted_key_leaves_and_others_stay(database: Database) -> None:
    database.run(
        "CREATE TABLE totals (customer TEXT, day INTEGER, total BIGINT, note TEXT, _sequence_id BIGINT)",
        "INSERT INTO totals VALUES ('theirs', 1, 1, 'keep', NULL), ('ann', 1, 0, 'goes', NULL)",
    )
    sink = database.made(described("totals", keys=KEYS, schema=SHOWN))
    sink.merge(txn_version(1, 1), [changes(1, ("ann", 1, None))], KEYS)
    assert database.ask("SELECT customer FROM totals") == [("theirs",)]


def test_a_delete_that_a_database_refuses_is_found_before_the_commit(database: Database) -> None:
    """A row of another table refers to the row; or the key is one that no database can hold."""
    database.run(
        "CREATE TABLE totals (customer TEXT PRIMARY KEY, total BIGINT, _sequence_id BIGINT)",
        "CREATE TABLE orders (customer TEXT REFERENCES totals (customer))",
    )
    kinds = {"customer": "string", "total": "long", "_sequence_id": "long"}
    sink = database.made(described("totals", keys=("customer",), schema=schema_json(kinds)))

    def gone(customer: str) -> pa.Table:
        return pa.table({"customer": [customer], "total": [1], "_gone": [True], "_sequence_id": [2]})

    there = pa.table({"customer": ["ann"], "total": [1], "_sequence_id": [1]})
    sink.merge(txn_version(1, 1), [there], ["customer"])
    database.run("INSERT INTO orders VALUES ('ann')")
    if database.engine.dialect.name == "postgresql":  # SQLite checks foreign keys only if it is asked to
        breach = sink.breach([gone("ann")])
        assert breach is not None
        assert breach.first_id == 2
        assert sink.breach([gone("bob\0")]) is not None
    assert sink.breach([gone("bob")]) is None
    assert database.ask("SELECT customer FROM totals") == [("ann",)]


# --- Delta --------------------------------------------------------------------------------------------------------


def scene(root: Path, engine: SparkEngine | None, **options: Any) -> tuple[RegionTables, RegionTable]:
    elsewhere = (lambda: Elsewhere(engine.session)) if engine is not None else None
    store = RegionTables(root, "shop/orders", LocalFolder(root), elsewhere)  # type: ignore[arg-type]
    table = RegionTable(
        name="lake/totals", role=TableRole.UPSERT, operator="sink", schema_json=SHOWN, keys=KEYS,
        history="state/totals", columns=COLUMNS, deletes=True, options=options,
    )  # fmt: skip
    store.create(table)
    return store, table


def drawn(draw: random.Random) -> list[Group]:
    keys = [(f"c{number}", number % 3) for number in range(30)]
    return [
        (number, [(*key, None if draw.random() < 0.4 else draw.randrange(9)) for key in draw.sample(keys, 12)])
        for number in range(1, 7)
    ]


@pytest.mark.seed("DL1")
@pytest.mark.parametrize("by", ["here", "in parts", pytest.param("by tasks", marks=pytest.mark.spark)])
@pytest.mark.parametrize("partition_by", [[], ["day"]], ids=["whole", "partitioned"])
def test_a_delta_table_loses_keys_and_gets_them_back(
    tmp_path: Path, by: str, partition_by: list[str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by != "here":
        monkeypatch.setattr(keyed_merge, "_FEW_BYTES", 0)
        monkeypatch.setattr(keyed_merge, "_SENT_BYTES", 0)
        monkeypatch.setattr(keyed_merge, "_PART_BYTES", 1000)
    engine = request.getfixturevalue("engine") if by == "by tasks" else None
    store, table = scene(tmp_path, engine, **({"partition_by": partition_by} if partition_by else {}))
    groups, history = drawn(random.Random(7)), store.table("state/totals")

    def shown() -> list[tuple[Any, ...]]:
        rows = store.table("lake/totals").read().to_pylist()
        assert all(set(row) == set(COLUMNS) for row in rows)
        return sorted((tuple(row[name] for name in COLUMNS) for row in rows), key=repr)

    for number, rows in groups:
        published(history, number, *rows)
        files = [file for file in history.files.live() if file.first_id == number]
        store.delta(table).merge(txn_version(1, number), store.changes(table, files))
        assert shown() == expected(groups, number), number
    assert store.visible_rows(table, history.files.live(), 6).counts() == {
        number: sum(row[3] == number for row in expected(groups, 6))
        for number in {row[3] for row in expected(groups, 6)}
    }
    for place, to in enumerate((4, 1)):
        store.delta(table).rewind_upsert(txn_version(2, 7 + place), Restored(to, history, KEYS, COLUMNS))
        assert shown() == expected(groups, to), to
    visible = store.delta(table)
    assert isinstance(visible, KeyedTable)
    visible.fill(txn_version(3, 9), Restored(5, history, KEYS, COLUMNS).everything())
    assert shown() == expected(groups, 5)
    staging = store.staging(table, 3, "repair")
    with_all = store.visible_rows(table, history.files.live(), 3).written(store.table(table.name)._open(), staging)
    assert sum(file.rows for file in with_all) == len(expected(groups, 3))


def test_a_history_without_the_tag_is_read_as_one_whose_rows_are_there(tmp_path: Path) -> None:
    store, table = scene(tmp_path, None)
    history = store.table("state/totals")
    plain = {name: kind for name, kind in _KINDS.items() if name != "_gone"}
    history.create(schema_json(plain))
    old = changes(1, ("ann", 1, 5), ("bob", 1, 6)).drop_columns(["_gone"])
    history.publish(txn_version(1, 1), Staging(history.folder, 1, "old").write(old, "rows"))
    store.delta(table).merge(txn_version(1, 1), store.changes(table, history.files.live()))
    history.create(schema_json(_KINDS), evolves=True)
    history.widen(json.dumps(json.loads(schema_json(_KINDS))))
    files = Staging(history.folder, 1, "new").write(changes(2, ("ann", 1, None)), "rows")
    history.publish(txn_version(1, 2), files)
    store.delta(table).merge(txn_version(1, 2), store.changes(table, files))
    assert [row["customer"] for row in store.table("lake/totals").read().to_pylist()] == ["bob"]
    store.delta(table).rewind_upsert(txn_version(2, 3), Restored(1, history, KEYS, COLUMNS))
    assert sorted(row["customer"] for row in store.table("lake/totals").read().to_pylist()) == ["ann", "bob"]
