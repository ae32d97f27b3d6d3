"""Database tables as sinks: rows come once, in order; rewinds withdraw them; old owners add none (V124, V148, X5)."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import sqlalchemy as sa
from harness import passing
from waiting import SOON

from drainmark.jobs.errors import (
    AccountingError,
    ForeignTable,
    SchemaMismatch,
    SplitBrain,
    StoreUnavailable,
    TableRefused,
    UsageError,
)
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.state import keyed_parts
from drainmark.resources.delta.keyed.keyed_changes import Restored
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.settings import Settings
from drainmark.resources.sinks.database_columns import arrow_schema
from drainmark.resources.sinks.database_tables import DatabaseTable
from drainmark.resources.sinks.databases import url_of

REGION = "shop/orders"
KEYS = ("customer", "day")
_COLUMNS = {"_sequence_id": "long", "customer": "string", "day": "integer", "total": "long"}
SCHEMA = pa.schema(
    [("_sequence_id", pa.int64()), ("customer", pa.string()), ("day", pa.int32()), ("total", pa.int64())]
)
Row = tuple[int, str | None, int | None, int]


def schema_json(columns: dict[str, Any]) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


ORDERS = schema_json(_COLUMNS)
FLOATS = schema_json({"_sequence_id": "long", "k": "double", "x": "float"})


def rows(*values: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, value, strict=True)) for value in values], schema=SCHEMA)


def floats(number: int, k: float | None, x: float | None) -> pa.Table:
    columns = {"_sequence_id": pa.array([number]), "k": pa.array([k], pa.float64()), "x": pa.array([x], pa.float32())}
    return pa.table(columns)


def described(name: str, *, keys: tuple[str, ...] = (), schema: str = ORDERS, operator: str = "sink") -> RegionTable:
    columns = tuple(field["name"] for field in json.loads(schema)["fields"])
    return RegionTable(
        name=f"database/shop/{name}", role=TableRole.UPSERT if keys else TableRole.COPY, operator=operator,
        schema_json=schema, keys=keys, history="state/shop/sink", columns=columns, external="database",
        options={"database": "shop", "table": name},
    )  # fmt: skip


class Database:
    """One database of the settings, and sinks on it."""

    def __init__(self, root: Path, url: str) -> None:
        self.settings = Settings(home=root / "home", project_root=root, databases={"shop": url})
        self.engine = sa.create_engine(url_of(self.settings, "shop"), poolclass=sa.NullPool)
        self.history = ManagedTable(root / "home" / "state" / "shop" / "sink", REGION)

    def sink(self, table: RegionTable, *, region: str = REGION, identity: str = "mine", **more: Any) -> DatabaseTable:
        return DatabaseTable(self.settings, table, region, lambda: identity, **more)

    def made(self, table: RegionTable, **more: Any) -> DatabaseTable:
        sink = self.sink(table, **more)
        sink.create(table.schema_json)
        return sink

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return sorted((tuple(row) for row in connection.execute(sa.text(statement))), key=repr)

    def orders(self, name: str = "orders") -> list[tuple[Any, ...]]:
        return self.ask(f"SELECT _sequence_id, customer, day, total FROM {name}")  # noqa: S608

    def publish_history(self, version: int, *values: Row) -> None:
        self.history.create(ORDERS)
        staged = Staging(self.history.folder, 1, uuid.uuid4().hex).write(rows(*values), "rows")
        self.history.publish(version, staged)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    (tmp_path / "home").mkdir()
    url = "sqlite:///{home}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return Database(tmp_path, url)


@pytest.fixture
def lite(tmp_path: Path) -> Database:
    (tmp_path / "home").mkdir()
    return Database(tmp_path, "sqlite:///{home}/shop.db")


# --- rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.seed("V148", "X3")
def test_rows_arrive_once_and_leave_with_a_rewind(database: Database) -> None:
    sink = database.made(described("orders"))
    first, second = rows((1, "ann", 1, 5), (2, None, None, 7)), rows((3, "bob", 2, 9))
    sink.copy(txn_version(1, 2), range(1, 3), [first])
    again = sink.copy(txn_version(1, 2), range(1, 3), [first])
    sink.copy(txn_version(1, 3), range(3, 4), [second])
    assert again.done_before
    assert database.orders() == [(1, "ann", 1, 5), (2, None, None, 7), (3, "bob", 2, 9)]
    assert (sink.row_count(), sink.newest_id(), sink.txn_version()) == (3, 3, txn_version(1, 3))
    assert database.ask("SELECT region, operator, sequence_id FROM drainmark_applied") == [(REGION, "sink", 3)]

    sink.rewind_rows(txn_version(2, 4), 1)
    assert database.orders() == [(1, "ann", 1, 5)]
    late = sink.copy(txn_version(1, 3), range(3, 4), [second])
    assert late.done_before, "a rewind stays in force whoever publishes late (X3)"
    assert database.orders() == [(1, "ann", 1, 5)]


@pytest.mark.seed("V148", "X3")
def test_the_rows_of_an_id_leave_with_those_in_their_place_and_come_back(database: Database) -> None:
    """There are more ids than one statement takes. A publisher that comes late changes nothing."""
    sink = database.made(described("orders"))
    many = [(number, "ann", 1, number) for number in range(1, 1202)]
    sink.copy(txn_version(1, 1201), range(1, 1202), [rows(*many)])
    new = rows((1202, "bob", 2, 9))
    sink.copy(txn_version(1, 1202), [1202], [new], replaced=range(1, 1201))
    again = sink.copy(txn_version(1, 1202), [1202], [new], replaced=range(1, 1201))
    assert again.done_before
    assert database.orders() == [(1201, "ann", 1, 1201), (1202, "bob", 2, 9)]

    sink.rewind_rows(txn_version(2, 1203), 1201, restored=[rows(*many[:600]), rows(*many[600:1200])])
    late = sink.copy(txn_version(1, 1202), [1202], [new], replaced=range(1, 1201))
    assert late.done_before
    assert database.orders() == sorted(many, key=repr)


def test_the_rows_of_some_ids_are_asked_for_in_steps(database: Database) -> None:
    sink = database.made(described("orders"))
    many = [(number, "ann", 1, number) for number in range(1, 1202)]
    sink.copy(txn_version(1, 1201), range(1, 1202), [rows(*many)])
    assert sink.read_ids(range(1, 2000)).sort_by("_sequence_id") == rows(*many)
    assert sorted(sink.read_ids([1201, 7, 5000]).column("total").to_pylist()) == [7, 1201]
    assert sink.read_ids(()).num_rows == 0
    assert sorted(sink.read(["total"], pc.field("total") != 2, upto=3).column("total").to_pylist()) == [1, 3]


def test_rows_that_nobody_asked_for_are_not_read(lite: Database) -> None:
    """A row that cannot be read proves it. A replacement needs one day of a table with years of rows."""
    sink = lite.made(described("orders"))
    sink.copy(txn_version(1, 3), range(1, 4), [rows((1, "ann", 1, 5), (2, "bob", 1, 6), (3, "cy", 1, 7))])
    lite.run("UPDATE orders SET total = 'no number' WHERE _sequence_id = 3")
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
        sink.read()
    assert sink.read_ids([1, 2]).num_rows == 2
    assert sink.read(upto=2).num_rows == 2


@pytest.mark.seed("V148", "H5")
@pytest.mark.parametrize("at_once", [1000, 1], ids=["at once", "in parts"])
def test_the_last_row_a_key_is_there_and_comes_back(
    database: Database, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(keyed_parts, "ROWS_AT_ONCE", at_once)
    table = described("totals", keys=KEYS)
    sink = database.made(table)
    groups: list[tuple[Row, ...]] = [
        ((1, "ann", 1, 5), (1, None, None, 6), (1, "bob", None, 7)),
        ((2, "ann", 1, 8), (2, None, None, 9), (2, "cy", 3, 1)),
    ]
    most = 0
    for number, group in enumerate(groups, 1):
        database.publish_history(txn_version(1, number), *group)
        parts = list(keyed_parts.last_of_keys(lambda group=group: [rows(*group)], len(group), KEYS))  # type: ignore[misc]
        most = max(most, len(parts))
        sink.merge(txn_version(1, number), parts, KEYS)
    assert (most > 1) == (at_once == 1)
    assert database.orders("totals") == sorted([*groups[1], (1, "bob", None, 7)], key=repr)
    assert sink.merge(txn_version(1, 1), [rows(*groups[0])], KEYS).done_before

    sink.rewind_upsert(txn_version(2, 3), Restored(1, database.history, KEYS, table.columns))
    assert database.orders("totals") == sorted(groups[0], key=repr)
    sink.rewind_upsert(txn_version(2, 4), Restored(0, database.history, KEYS, table.columns))
    assert database.orders("totals") == []


def test_two_rows_of_one_key_are_refused(lite: Database) -> None:
    sink = lite.made(described("totals", keys=KEYS))
    with pytest.raises(AccountingError):
        sink.merge(txn_version(1, 1), [rows((1, "ann", 1, 5), (1, "ann", 1, 6))], KEYS)
    assert lite.orders("totals") == []


def test_many_rows_keep_their_number_and_order_by_batches(database: Database) -> None:
    count = 25_001
    table = pa.table(
        {"_sequence_id": pa.array([1] * count), "customer": [f"c{i}" for i in range(count)],
         "day": pa.array(range(count), pa.int32()), "total": pa.array(range(count), pa.int64())}
    )  # fmt: skip
    keyed = database.made(described("totals", keys=KEYS))
    rowwise = database.made(described("orders", operator="other"))
    keyed.merge(txn_version(1, 1), [table], KEYS)
    rowwise.copy(txn_version(1, 1), [1], [table.slice(0, 20_000), table.slice(20_000)])
    for name in ("totals", "orders"):
        assert database.ask(f"SELECT count(*), count(DISTINCT customer), sum(total) FROM {name}") == [  # noqa: S608
            (count, count, count * (count - 1) // 2)
        ]


def test_every_type_comes_back_as_it_was(database: Database) -> None:
    kinds = {
        "_sequence_id": "long", "s": "short", "i": "integer", "f": "float", "d": "double", "b": "boolean",
        "t": "string", "raw": "binary", "day": "date", "at": "timestamp", "there": "timestamp_ntz",
        "price": "decimal(20,4)",
    }  # fmt: skip
    sink = database.made(described("typed", schema=schema_json(kinds)))
    moment = dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=dt.UTC)
    full = {
        "_sequence_id": 1, "s": -7, "i": 2**31 - 1, "f": 0.5, "d": 1e300, "b": True, "t": "ä\t\\N\n'", "raw": b"\0\xff",
        "day": dt.date(2026, 1, 31), "at": moment, "there": moment.replace(tzinfo=None),
        "price": Decimal("1234567890123456.7891"),
    }  # fmt: skip
    empty = {**dict.fromkeys(kinds), "_sequence_id": 1}
    given = pa.Table.from_pylist([full, empty], arrow_schema(schema_json(kinds)))
    sink.copy(txn_version(1, 1), [1], [given])
    found = sorted(sink.read().to_pylist(), key=lambda row: row["t"] is None)
    assert found == [full, empty]
    assert sink.read(["t"], pa.compute.field("i") > 0).to_pylist() == [{"t": full["t"]}]


def test_a_type_without_a_match_is_refused_with_a_remedy(lite: Database) -> None:
    nested = {"type": "array", "elementType": "long", "containsNull": True}
    with pytest.raises(SchemaMismatch) as caught:
        lite.sink(described("orders", schema=schema_json({"_sequence_id": "long", "tags": nested})))
    assert "to_json" in (caught.value.remedy or "")


ODD = ("order", "lateral", "returning", 'a"b', "a'b; drop table t; --", "a`b", "a.b", "a\nb", "%s", "%(x)s%%", "{0}",
       ":x", "é☃", " a ")  # fmt: skip
"""Names of columns that a statement misreads unless they are quoted."""


@pytest.mark.parametrize("keys", [(), ODD[::2]], ids=["rows", "keys"])
@pytest.mark.parametrize("name", ["orders", "lateral", "returning", "Select"])
def test_names_that_are_sql_are_names(database: Database, name: str, keys: tuple[str, ...]) -> None:
    schema = schema_json({"_sequence_id": "long", **dict.fromkeys(ODD, "string")})
    table = described(name, keys=keys, schema=schema)
    sink = database.made(table)
    database.history.create(schema)
    values = [{"_sequence_id": number, **dict.fromkeys(ODD, text)} for number, text in ((1, "a"), (2, "a"), (2, "b"))]
    for number in (1, 2):
        group = pa.Table.from_pylist([row for row in values if row["_sequence_id"] == number])
        staged = Staging(database.history.folder, 1, uuid.uuid4().hex).write(group, "rows")
        database.history.publish(txn_version(1, number), staged)
        if keys:
            sink.merge(txn_version(1, number), [group], keys)
        else:
            sink.copy(txn_version(1, number), [number], [group])
    assert sorted(sink.read().to_pylist(), key=str) == sorted(values[1:] if keys else values, key=str)
    if keys:
        sink.rewind_upsert(txn_version(2, 3), Restored(1, database.history, keys, table.columns))
    else:
        sink.rewind_rows(txn_version(2, 3), 1)
    assert sink.read().to_pylist() == values[:1]


@pytest.mark.parametrize("name", ["orders", "order", "Orders"])
def test_a_column_that_a_table_lacks_is_named_as_sql_takes_it(database: Database, name: str) -> None:
    database.run(f'CREATE TABLE "{name}" (_sequence_id BIGINT)')
    odd = described(name, schema=schema_json({"_sequence_id": "long", ODD[4]: "string"}))
    with pytest.raises(SchemaMismatch) as caught:
        database.sink(odd).examine(odd.schema_json)
    database.run(caught.value.remedy or "")
    database.made(odd)


def test_a_column_in_another_case_is_to_be_renamed_in_sqlite(database: Database) -> None:
    """SQLite takes both for one, so it would refuse to add the column; to PostgreSQL they are two."""
    database.run('CREATE TABLE orders ("Customer" TEXT, day INTEGER, total BIGINT, _sequence_id BIGINT)')
    with pytest.raises(SchemaMismatch, match="no column 'customer'") as caught:
        database.made(described("orders", keys=KEYS))
    database.run(caught.value.remedy or "")
    database.made(described("orders", keys=KEYS))
    assert ("RENAME" in (caught.value.remedy or "")) == (database.engine.dialect.name == "sqlite")


def test_a_column_that_postgresql_would_cut_is_refused_before_a_table_is_made(database: Database) -> None:
    long = described("orders", schema=schema_json({"_sequence_id": "long", "é" * 32: "string"}))
    if database.engine.dialect.name == "sqlite":
        assert database.made(long).exists()
        return
    with pytest.raises(SchemaMismatch, match="63 bytes"):
        database.sink(long)


# --- the table ----------------------------------------------------------------------------------------------------


def test_a_table_of_others_keeps_their_rows_and_columns(database: Database) -> None:
    database.run(
        "CREATE TABLE totals (customer TEXT, day INTEGER, total BIGINT, note TEXT DEFAULT 'new', _sequence_id BIGINT)",
        "INSERT INTO totals VALUES ('theirs', 1, 1, 'keep', NULL), ('ann', 1, 0, 'ours now', NULL)",
    )
    table = described("totals", keys=KEYS)
    sink = database.made(table)
    database.publish_history(txn_version(1, 1), (1, "ann", 1, 5), (1, "bob", 2, 6))
    sink.merge(txn_version(1, 1), [rows((1, "ann", 1, 5), (1, "bob", 2, 6))], KEYS)
    assert database.ask("SELECT customer, total, note FROM totals") == [
        ("ann", 5, "ours now"), ("bob", 6, "new"), ("theirs", 1, "keep"),
    ]  # fmt: skip
    assert sink.row_count() == 2
    sink.rewind_upsert(txn_version(2, 2), Restored(0, database.history, KEYS, table.columns))
    assert database.ask("SELECT customer FROM totals") == [("theirs",)]


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        ("customer TEXT, day INTEGER, total BIGINT", "_sequence_id"),
        ("customer BIGINT, day INTEGER, total BIGINT, _sequence_id BIGINT", "customer"),
        ("customer TEXT, day INTEGER, total BIGINT, _sequence_id BIGINT, region TEXT NOT NULL", "region"),
    ],
)
def test_a_table_that_cannot_take_the_rows_is_refused_at_once(database: Database, columns: str, wrong: str) -> None:
    database.run(f"CREATE TABLE orders ({columns})")
    for verb in ("examine", "create"):
        with pytest.raises(SchemaMismatch) as caught:
            getattr(database.sink(described("orders")), verb)(ORDERS)
        assert caught.value.facts["columns"] == (wrong,)
        assert caught.value.remedy


NARROW = [
    ("decimal(10,4)", "numeric(5,2)", Decimal("1.2345")), ("decimal(10,4)", "numeric(10,2)", Decimal("1.2345")),
    ("decimal(10,4)", "numeric(9,4)", Decimal("123456.0001")), ("decimal(10,4)", "numeric(10)", Decimal("1.2345")),
    ("double", "real", 0.1), ("long", "integer", 2**31), ("integer", "smallint", 2**15), ("string", "name", "n" * 64),
    ("string", '"char"', "ab"), ("timestamp", "timestamptz(0)", dt.datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=dt.UTC)),
    ("timestamp_ntz", "timestamp(3)", dt.datetime.fromisoformat("2026-01-01 00:00:00.000005")),
]  # fmt: skip
"""Type of a column of a stream, a narrower type of PostgreSQL, a value that it would cut, round, or refuse."""

WIDE = [
    ("decimal(10,4)", "numeric", Decimal("123456.7891")), ("decimal(10,4)", "numeric(12,6)", Decimal("123456.7891")),
    ("decimal(10,4)", "numeric(10,4)", Decimal("123456.7891")), ("float", "double precision", 0.5),
    ("double", "float(40)", 0.1), ("short", "bigint", -(2**15)), ("string", "varchar", "n" * 64),
    ("timestamp", "timestamptz(6)", dt.datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=dt.UTC)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "theirs", "value"), [*NARROW, *WIDE])
def test_a_column_that_would_round_or_cut_is_refused_and_a_wider_one_is_not(
    tmp_path: Path, postgres_url: str, kind: str, theirs: str, value: Any
) -> None:
    (tmp_path / "home").mkdir()
    database = Database(tmp_path, postgres_url)
    database.run(f"CREATE TABLE orders (v {theirs}, _sequence_id BIGINT)")
    table = described("orders", schema=schema_json({"_sequence_id": "long", "v": kind}))
    if (kind, theirs, value) in NARROW:
        for verb in ("examine", "create"):
            with pytest.raises(SchemaMismatch, match="column 'v'") as caught:
                getattr(database.sink(table), verb)(table.schema_json)
            assert caught.value.facts["columns"] == ("v",)
        return
    sink = database.made(table)
    given = pa.Table.from_pylist([{"_sequence_id": 1, "v": value}], arrow_schema(table.schema_json))
    assert sink.breach([given]) is None
    sink.copy(txn_version(1, 1), [1], [given])
    assert sink.read().to_pylist() == given.to_pylist()


def test_the_types_of_sqlite_hold_what_they_are_given(lite: Database) -> None:
    """SQLite keeps each value unchanged, whether or not the column declares a precision."""
    lite.run("CREATE TABLE orders (amount TEXT, d REAL, x FLOAT, n SMALLINT, _sequence_id INT)")
    kinds = {"_sequence_id": "long", "amount": "decimal(10,4)", "d": "double", "x": "float", "n": "long"}
    sink = lite.made(described("orders", schema=schema_json(kinds)))
    row = {"_sequence_id": 1, "amount": Decimal("1.2345"), "d": 0.1, "x": 0.5, "n": 2**40}
    given = pa.Table.from_pylist([row], arrow_schema(schema_json(kinds)))
    sink.copy(txn_version(1, 1), [1], [given])
    assert sink.read().to_pylist() == [row]


ANY_CASE = "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
LOOSE = {
    "citext": ("SELECT name FROM pg_available_extensions WHERE name = 'citext'", "CREATE EXTENSION citext", "citext"),
    "no case": (
        "SELECT collname FROM pg_collation WHERE collprovider = 'i' LIMIT 1",
        ANY_CASE,
        "text COLLATE any_case",
    ),
    "padded": ("SELECT 'char'", "SELECT 1", "char(3)"),
}
"""A query that finds rows if the server has the feature, a statement that makes it, and the type of a column."""


@pytest.mark.parametrize("theirs", LOOSE)
def test_a_key_column_of_postgresql_that_takes_two_keys_for_one_is_refused(
    tmp_path: Path, postgres_url: str, theirs: str
) -> None:
    """Otherwise a row of "a" would replace that of "A"."""
    (tmp_path / "home").mkdir()
    database, (asked, made, kind) = Database(tmp_path, postgres_url), LOOSE[theirs]
    if not database.ask(asked):
        pytest.skip(f"this PostgreSQL has no {theirs}: {asked}")
    database.run(made, f"CREATE TABLE orders (customer {kind}, day INTEGER, total BIGINT, _sequence_id BIGINT)")
    for verb in ("examine", "create"):
        with pytest.raises(SchemaMismatch, match="customer") as caught:
            getattr(database.sink(described("orders", keys=KEYS)), verb)(ORDERS)
        assert caught.value.facts["columns"] == ("customer",)
    database.made(described("orders"))
    database.made(described("orders", keys=("day",)))


@pytest.mark.parametrize("collation", ["nocase", "rtrim"])
def test_keys_of_sqlite_are_compared_exactly_whatever_the_column_says(lite: Database, collation: str) -> None:
    lite.run(f"CREATE TABLE orders (customer TEXT COLLATE {collation}, day INTEGER, total BIGINT, _sequence_id BIGINT)")
    table, (one, other) = described("orders", keys=KEYS), ("A", "a") if collation == "nocase" else ("a", "a ")
    sink = lite.made(table)
    groups: list[tuple[Row, ...]] = [
        ((1, one, 1, 1), (1, other, 1, 2), (1, one, None, 3)),
        ((2, other, 1, 9), (2, other, None, 4)),
        ((3, one, 1, 5),),
    ]
    for number, group in enumerate(groups, 1):
        lite.publish_history(txn_version(1, number), *group)
        sink.merge(txn_version(1, number), [rows(*group)], KEYS)
    last = [(3, one, 1, 5), (2, other, 1, 9), (1, one, None, 3), (2, other, None, 4)]
    assert lite.orders() == sorted(last, key=repr)
    sink.rewind_upsert(txn_version(2, 4), Restored(1, lite.history, KEYS, table.columns))
    assert lite.orders() == sorted(groups[0], key=repr)


def test_two_sinks_never_share_a_table(lite: Database) -> None:
    lite.made(described("orders"))
    for other in (described("orders", operator="second"), described("orders")):
        region = REGION if other.operator == "second" else "shop/returns"
        with pytest.raises(ForeignTable):
            lite.sink(other, region=region).examine(ORDERS)


@pytest.mark.parametrize(("one", "other"), [("orders", "{default}.orders"), ("{default}.orders", "orders")])
def test_two_spellings_of_a_table_are_one_table(database: Database, one: str, other: str) -> None:
    default = {"sqlite": "main", "postgresql": "public"}[database.engine.dialect.name]
    database.made(described(one.format(default=default)))
    with pytest.raises(ForeignTable):
        database.sink(described(other.format(default=default), operator="second")).create(ORDERS)


def test_upper_and_lower_case_are_one_table_of_sqlite(lite: Database) -> None:
    lite.made(described("orders"))
    with pytest.raises(ForeignTable):
        lite.sink(described("Orders", operator="second")).create(ORDERS)


def test_a_new_home_does_not_take_an_old_ones_versions_for_its_own(lite: Database) -> None:
    """Otherwise all groups of the new home would count as done: no row would arrive, and no error would tell."""
    lite.made(described("orders")).copy(txn_version(9, 90), [90], [rows((90, "ann", 1, 1))])
    with pytest.raises(ForeignTable):
        lite.sink(described("orders"), identity="another").create(ORDERS)


def test_a_lost_row_of_versions_is_no_licence_to_begin_anew(lite: Database) -> None:
    sink = lite.made(described("orders"))
    lite.run("DELETE FROM drainmark_applied")
    with pytest.raises(SplitBrain):
        sink.copy(txn_version(1, 1), [1], [rows((1, "ann", 1, 1))])


# --- refused rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [(), ("customer",)])
def test_a_row_that_breaks_a_constraint_is_named_before_it_is_committed(
    database: Database, keys: tuple[str, ...]
) -> None:
    database.run("CREATE TABLE orders (customer TEXT NOT NULL, day INTEGER CHECK (day < 8), total BIGINT, "
                 "_sequence_id BIGINT, UNIQUE (total))")  # fmt: skip
    sink = database.made(described("orders", keys=keys))
    fine = [rows((1, "ann", 1, 5), (2, "bob", 2, 6))]
    assert sink.breach(fine) is None
    for bad in ((4, "cy", 9, 9), (4, None, 1, 9), (4, "cy", 1, 5)):
        found = sink.breach([*fine, rows((3, "dee", 1, 8), bad, (5, "eve", 9, 10))])
        assert found is not None
        assert (found.first_id, found.rows) == (4, 1)
        assert str(bad[3]) in found.condition
    replaced = rows((5, "ann", 1, 20), (4, "ann", 9, 21), (6, "ann", 1, 22))
    found = sink.breach([replaced])
    assert found is not None, "a rewind to 4 would bring it in"
    assert found.first_id == 4
    assert database.orders() == []
    sink.copy(txn_version(1, 2), range(1, 3), fine)
    assert sink.breach([rows((3, "cy", 1, 6))]) is not None, "rows that are there count"


def test_a_unique_value_moves_from_a_row_of_one_part_to_a_row_of_another(database: Database) -> None:
    """Rows merged in parts behave like rows merged at once: rows that pass the trial before the commit are merged."""
    database.run("CREATE TABLE orders (customer TEXT, day INTEGER, total BIGINT UNIQUE, _sequence_id BIGINT)")
    sink = database.made(described("orders", keys=("customer",)))
    sink.merge(txn_version(1, 1), [rows((1, "ann", 1, 5))], ["customer"])
    parts = [rows((2, "bob", 1, 5)), rows((2, "ann", 1, 6)), rows((2, None, 1, 7))]
    assert sink.breach([pa.concat_tables(parts)]) is None
    sink.merge(txn_version(1, 2), parts, ["customer"])
    assert database.orders() == [(2, "ann", 1, 6), (2, "bob", 1, 5), (2, None, 1, 7)]


MOVES: dict[str, list[list[Row]]] = {
    "to a row that came later": [[(1, "ann", 1, 5)], [(2, "ann", 1, 6), (2, "bob", 1, 5)]],
    "to a row that came back": [[(1, "ann", 1, 5), (1, "bob", 1, 6)], [(2, "bob", 1, 7), (2, "cy", 1, 6)]],
    "in a circle": [
        [(1, "ann", 1, 5), (1, "bob", 1, 6), (1, None, 1, 7)],
        [(2, "ann", 1, 8)],
        [(3, "bob", 1, 5)],
        [(4, None, 1, 6)],
        [(5, "ann", 1, 7)],
    ],
}


@pytest.mark.parametrize("moves", MOVES)
def test_a_rewind_moves_unique_values_back(database: Database, moves: str) -> None:
    """No state between two groups breaks the constraint, and no step of the rewind does."""
    database.run("CREATE TABLE orders (customer TEXT, day INTEGER, total BIGINT CONSTRAINT once UNIQUE,"
                 " note TEXT DEFAULT 'new', _sequence_id BIGINT)")  # fmt: skip
    table, groups = described("orders", keys=("customer",)), MOVES[moves]
    sink = database.made(table)
    for number, group in enumerate(groups, 1):
        database.publish_history(txn_version(1, number), *group)
        sink.merge(txn_version(1, number), [rows(*group)], ["customer"])
        database.run("UPDATE orders SET note = 'kept' WHERE _sequence_id = 1")
    sink.rewind_upsert(txn_version(2, 9), Restored(1, database.history, ["customer"], table.columns))
    assert database.orders() == sorted(groups[0], key=repr)
    assert database.ask("SELECT DISTINCT note FROM orders") == [("kept",)]


def test_a_group_may_move_unique_values_in_a_circle(database: Database) -> None:
    database.run("CREATE TABLE orders (customer TEXT, day INTEGER, total BIGINT UNIQUE, _sequence_id BIGINT)")
    sink = database.made(described("orders", keys=("customer",)))
    sink.merge(txn_version(1, 1), [rows((1, "ann", 1, 5), (1, "bob", 1, 6))], ["customer"])
    swapped = rows((2, "ann", 1, 6), (2, "bob", 1, 5))
    sink.merge(txn_version(1, 2), [swapped], ["customer"])
    assert database.orders() == [(2, "ann", 1, 6), (2, "bob", 1, 5)]


def test_rows_that_are_put_in_again_keep_their_identity(tmp_path: Path, postgres_url: str) -> None:
    """PostgreSQL takes a value for an identity column only if it is told to."""
    (tmp_path / "home").mkdir()
    database = Database(tmp_path, postgres_url)
    own = "id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \"100%\" TEXT DEFAULT 'new'"
    database.run(f"CREATE TABLE orders ({own}, customer TEXT, day INTEGER, total BIGINT UNIQUE, _sequence_id BIGINT)")
    sink = database.made(described("orders", keys=("customer",)))
    sink.merge(txn_version(1, 1), [rows((1, "ann", 1, 5), (1, "bob", 1, 6))], ["customer"])
    before = database.ask("SELECT customer, id FROM orders")
    swapped = rows((2, "ann", 1, 6), (2, "bob", 1, 5))
    assert sink.breach([swapped]) is None
    sink.merge(txn_version(1, 2), [swapped], ["customer"])
    assert database.orders() == [(2, "ann", 1, 6), (2, "bob", 1, 5)]
    assert database.ask("SELECT customer, id FROM orders") == before


FORGET = "DELETE FROM parcels WHERE customer = old.customer"
NOTICED = {
    "refers": ["CREATE TABLE parcels (customer TEXT REFERENCES Orders (customer) ON DELETE CASCADE)"],
    "trigger": [
        "CREATE TABLE parcels (customer TEXT)",
        f"CREATE TRIGGER forget AFTER DELETE ON Orders BEGIN {FORGET}; END",
    ],
}
IN_POSTGRESQL = [
    "CREATE TABLE parcels (customer TEXT)",
    f"CREATE FUNCTION forget() RETURNS trigger AS $$ BEGIN {FORGET}; RETURN old; END $$ LANGUAGE plpgsql",
    "CREATE TRIGGER forget AFTER DELETE ON orders FOR EACH ROW EXECUTE FUNCTION forget()",
]


@pytest.mark.parametrize("notices", NOTICED)
def test_rows_whose_leaving_others_notice_are_not_taken_out(database: Database, notices: str) -> None:
    """The rewind would have to take such rows out, which deletes the rows that depend on them. It is refused."""
    is_lite = database.engine.dialect.name == "sqlite"
    database.run(
        "CREATE TABLE orders (customer TEXT PRIMARY KEY, day INTEGER, total BIGINT CONSTRAINT once UNIQUE,"
        " _sequence_id BIGINT)",
        *(NOTICED[notices] if is_lite or notices == "refers" else IN_POSTGRESQL),
    )
    table, groups = described("orders", keys=("customer",)), [
        [(1, "ann", 1, 5), (1, "bob", 1, 6)], [(2, "ann", 1, 8)], [(3, "bob", 1, 5)], [(4, "ann", 1, 6)],
    ]  # fmt: skip
    sink = database.made(table)
    for number, group in enumerate(groups, 1):
        database.publish_history(txn_version(1, number), *group)
        sink.merge(txn_version(1, number), [rows(*group)], ["customer"])
    database.run("INSERT INTO parcels VALUES ('ann'), ('bob')")
    before = database.orders()
    with pytest.raises(TableRefused, match=r"once|total"):
        sink.rewind_upsert(txn_version(2, 9), Restored(1, database.history, ["customer"], table.columns))
    assert database.orders() == before
    assert database.ask("SELECT customer FROM parcels") == [("ann",), ("bob",)]


REFUSES = {
    "sqlite": [
        "CREATE TRIGGER no_nines BEFORE INSERT ON Orders WHEN new.total = 9 BEGIN SELECT raise(ABORT, 'no nines'); END",
    ],
    "postgresql": [
        "CREATE FUNCTION no_nines() RETURNS trigger AS $$ BEGIN IF new.total = 9 THEN RAISE 'no nines'; END IF;"
        " RETURN new; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER no_nines BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION no_nines()",
    ],
}


@pytest.mark.parametrize("keys", [(), ("customer",)])
def test_a_row_that_a_trigger_refuses_is_named_before_it_is_committed(
    database: Database, keys: tuple[str, ...]
) -> None:
    database.run(
        "CREATE TABLE orders (customer TEXT, day INTEGER, total BIGINT, _sequence_id BIGINT)",
        *REFUSES[database.engine.dialect.name],
    )
    sink = database.made(described("orders", keys=keys))
    assert sink.breach([rows((1, "ann", 1, 5))]) is None
    found = sink.breach([rows((1, "ann", 1, 5), (2, "bob", 1, 9), (3, "cy", 1, 9))])
    assert found is not None
    assert (found.first_id, "no nines" in found.rule) == (2, True)
    assert database.orders() == []


def test_a_row_that_an_exclusion_refuses_is_named_before_it_is_committed(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "home").mkdir()
    database = Database(tmp_path, postgres_url)
    database.run("CREATE TABLE orders (customer TEXT, day INTEGER, total BIGINT, _sequence_id BIGINT,"
                 " EXCLUDE USING btree (total WITH =))")  # fmt: skip
    found = database.made(described("orders")).breach([rows((1, "ann", 1, 5), (2, "bob", 1, 5))])
    assert found is not None
    assert found.first_id == 2


def test_what_a_table_of_ours_cannot_refuse_is_not_tried(lite: Database) -> None:
    sink = lite.made(described("orders", keys=KEYS))

    def rows_nobody_reads() -> Iterator[pa.Table]:
        raise AssertionError
        yield

    assert sink.breach(rows_nobody_reads()) is None


@pytest.mark.parametrize("with_terms", [False, True])
def test_a_date_that_python_cannot_hold_is_refused_before_the_commit(database: Database, with_terms: bool) -> None:
    """Spark accepts a year with five digits; but no driver could write it after the commit."""
    if with_terms:
        database.run("CREATE TABLE orders (day DATE UNIQUE, _sequence_id BIGINT)")
    schema = schema_json({"_sequence_id": "long", "day": "date"})
    sink = database.made(described("orders", schema=schema))

    def table(number: int, days: int) -> pa.Table:
        return pa.table({"_sequence_id": pa.array([number]), "day": pa.array([days], pa.date32())})

    assert sink.breach([table(1, 0), table(2, 2_932_896)]) is None
    found = sink.breach([table(1, 0), table(2, 2_932_897), table(3, 1)])
    assert found is not None
    assert (found.first_id, "10000-01-01" in found.condition) == (2, True)


@pytest.mark.seed("RT2")
@pytest.mark.parametrize("with_terms", [False, True])
@pytest.mark.parametrize("column", ["k", "x"])
def test_sqlite_refuses_nan_before_the_commit_and_holds_infinities(
    lite: Database, column: str, with_terms: bool
) -> None:
    """SQLite would store null, and a key that is NaN would add a row in every group."""
    if with_terms:
        lite.run("CREATE TABLE orders (k DOUBLE UNIQUE, x REAL, _sequence_id BIGINT)")
    sink = lite.made(described("orders", keys=("k",), schema=FLOATS))
    fine = [floats(1, math.inf, -math.inf), floats(2, -math.inf, None), floats(3, None, 0.5)]
    bad = floats(4, math.nan, 1.0) if column == "k" else floats(4, 1.0, math.nan)
    assert sink.breach(fine) is None
    found = sink.breach([*fine, bad, floats(5, 1.0, 1.0)])
    assert found is not None
    assert (found.first_id, repr(column) in found.rule, "nan" in found.condition) == (4, True, True)
    sink.merge(txn_version(1, 3), [pa.concat_tables(fine)], ["k"])
    assert sorted(map(repr, sink.read(["k", "x"]).to_pylist())) == sorted(
        repr({"k": row["k"][0].as_py(), "x": row["x"][0].as_py()}) for row in fine
    )


@pytest.mark.parametrize("keys", [(), ("day",)])
def test_sqlite_refuses_a_null_that_it_would_replace_by_a_number(lite: Database, keys: tuple[str, ...]) -> None:
    """With each change of a key that is null, an upsert sink would get a further row, under another number."""
    lite.run("CREATE TABLE orders (customer TEXT, day INTEGER PRIMARY KEY, total BIGINT, _sequence_id BIGINT)")
    sink = lite.made(described("orders", keys=keys))
    fine = rows((1, "ann", 1, 5), (1, None, 2, 6))
    assert sink.breach([fine]) is None
    found = sink.breach([fine, rows((2, "bob", 3, 7), (3, "cy", None, 8), (4, "dee", 4, 9))])
    assert found is not None
    assert (found.first_id, "'day'" in found.rule, "'cy'" in found.condition) == (3, True, True)
    lite.run("CREATE TABLE keyed (customer TEXT, day BIGINT PRIMARY KEY, total BIGINT, _sequence_id BIGINT)")
    assert lite.made(described("keyed", keys=keys)).breach([rows((1, "ann", None, 5))]) is None, "it holds a null"


@pytest.mark.seed("RT2")
def test_postgresql_holds_nan_as_one_key(tmp_path: Path, postgres_url: str) -> None:
    """NaN equals NaN in PostgreSQL, also in an index: the newer row replaces the older, and a rewind finds it."""
    sink = Database(tmp_path, postgres_url).made(described("orders", keys=("k",), schema=FLOATS))
    rows_by_id = [floats(number, math.nan, float(number)) for number in (1, 2)]
    assert sink.breach(rows_by_id) is None
    for number, given in enumerate(rows_by_id, 1):
        sink.merge(txn_version(1, number), [given], ["k"])
    (left,) = sink.read().to_pylist()
    assert (left["_sequence_id"], math.isnan(left["k"]), left["x"]) == (2, True, 2.0)


@pytest.mark.parametrize(("theirs", "keys"), [("varchar(3)", ()), ("varchar(3)", ("customer",)), ("char(3)", ())])
def test_postgresql_cuts_no_blanks_off_a_text(
    tmp_path: Path, postgres_url: str, theirs: str, keys: tuple[str, ...]
) -> None:
    """It does so without an error, and the key of a row would not be found again: each group would add a row."""
    (tmp_path / "home").mkdir()
    database = Database(tmp_path, postgres_url)
    database.run(f"CREATE TABLE orders (customer {theirs}, day INTEGER, total BIGINT, _sequence_id BIGINT)")
    sink = database.made(described("orders", keys=keys))
    fine = [rows((1, "ann", 1, 5), (1, None, 2, 6)), rows((2, "é☃ ", 1, 5), (2, "\U0001f600ab", 1, 5))]
    assert sink.breach(fine) is None
    found = sink.breach([*fine, rows((3, "bob", 3, 7), (4, "ann  ", None, 8), (5, "dee", 4, 9))])
    assert found is not None
    assert (found.first_id, "'customer'" in found.rule, "'ann  '" in found.condition) == (4, True, True)
    found = sink.breach([rows((1, "anne  ", 1, 5))])
    assert found is not None
    assert "too long" in found.rule, "the database says so itself"


def test_a_key_that_our_own_index_refuses_is_named_before_it_is_committed(tmp_path: Path, postgres_url: str) -> None:
    """An index of PostgreSQL compresses a key; only what is too long even then is refused."""
    sink = Database(tmp_path, postgres_url).made(described("orders", keys=KEYS))
    random = "".join(hashlib.sha256(b"%d" % place).hexdigest() for place in range(100))
    fine = [rows((1, "ann", 1, 5), (1, None, 2, 6)), rows((2, "a" * 9000, 1, 5))]
    assert sink.breach(fine) is None
    found = sink.breach([*fine, rows((3, "bob", 3, 7), (4, random, None, 8), (5, "dee", 4, 9))])
    assert found is not None
    assert (found.first_id, "index" in found.rule, random[:20] in found.condition) == (4, True, True)
    assert sink.row_count() == 0
    for number, part in enumerate(fine, 1):
        sink.merge(txn_version(1, number), [part], KEYS)
    assert sink.row_count() == 3
    kept = described("files", keys=("key",), schema=schema_json({"_sequence_id": "long", "key": "binary"}))
    of_bytes = Database(tmp_path, postgres_url).made(kept)
    found = of_bytes.breach([pa.table({"_sequence_id": [1, 2], "key": [b"a", random.encode()]})])
    assert found is not None
    assert (found.first_id, "index" in found.rule) == (2, True)


def test_postgresql_has_no_nul_in_texts(tmp_path: Path, postgres_url: str) -> None:
    sink = Database(tmp_path, postgres_url).made(described("orders"))
    found = sink.breach([rows((1, "ann", 1, 1), (2, "a\0b", 1, 1))])
    assert found is not None
    assert found.first_id == 2


def test_a_constraint_that_came_since_refuses_the_publish_whole(database: Database) -> None:
    sink = database.made(described("orders"))
    database.run("CREATE UNIQUE INDEX theirs ON orders (total)")
    with pytest.raises(TableRefused):
        sink.copy(txn_version(1, 1), [1], [rows((1, "ann", 1, 5)), rows((1, "bob", 1, 5))])
    assert database.orders() == []
    assert sink.txn_version() is None
    database.run("DROP INDEX theirs")
    sink.copy(txn_version(1, 1), [1], [rows((1, "ann", 1, 5)), rows((1, "bob", 1, 5))])
    assert len(database.orders()) == 2


# --- faults -------------------------------------------------------------------------------------------------------


class _Fault(RuntimeError):
    pass


def failing_at(step: str, error: Exception) -> Callable[[str], None]:
    def pass_point(point: str) -> None:
        if point == step:
            raise error

    return pass_point


@pytest.mark.seed("H10")
def test_a_lost_reply_is_found_out(database: Database) -> None:
    from drainmark.jobs.failpoints import InjectedFailure

    database.made(described("orders"))
    sink = database.sink(described("orders"))
    with passing(failing_at("publish.after_commit", InjectedFailure())):
        assert not sink.copy(txn_version(1, 1), [1], [rows((1, "ann", 1, 5))]).done_before
    assert len(database.orders()) == 1
    with passing(failing_at("publish.before_commit", InjectedFailure())), pytest.raises(InjectedFailure):
        sink.copy(txn_version(1, 2), [2], [rows((2, "ann", 1, 5))])
    assert len(database.orders()) == 1


def test_what_fails_in_the_middle_leaves_nothing(database: Database) -> None:
    sink = database.made(described("orders"))

    def breaking() -> Iterator[pa.Table]:
        yield rows((1, "ann", 1, 5))
        raise _Fault

    with pytest.raises(_Fault):
        sink.copy(txn_version(1, 1), [1], breaking())
    assert database.orders() == []
    assert sink.txn_version() is None


@pytest.mark.seed("X5", "H3")
def test_a_publisher_held_up_in_its_transaction_excludes_the_rewind_until_it_ends(
    tmp_path: Path, postgres_url: str
) -> None:
    """The rewind waits for the row that the publisher has locked, and takes back the rows that it committed."""
    database = Database(tmp_path, postgres_url)
    sink = database.made(described("orders"))
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[pa.Table]:
        yield rows((1, "ann", 1, 5))
        inside.set()
        assert go_on.wait(SOON)

    publisher = threading.Thread(target=lambda: sink.copy(txn_version(1, 1), [1], slow()))
    rewinder = threading.Thread(target=lambda: database.sink(described("orders")).rewind_rows(txn_version(2, 2), 0))
    publisher.start()
    try:
        assert inside.wait(SOON)
        rewinder.start()
        rewinder.join(0.5)
        assert rewinder.is_alive()
    finally:
        go_on.set()
    publisher.join(SOON)
    rewinder.join(SOON)
    assert database.orders() == []
    assert sink.txn_version() == txn_version(2, 2)


@pytest.mark.seed("X5", "H4")
def test_a_publisher_that_wakes_after_the_rewind_finds_it_done(database: Database) -> None:
    """The publisher is stopped between its look and its transaction; the row that it then locks shows the rewind."""
    later = database.made(described("orders"))
    stopped = database.sink(described("orders"))
    with passing(lambda point: point == "publish.before_commit" and later.rewind_rows(txn_version(2, 2), 0)):
        assert stopped.copy(txn_version(1, 1), [1], [rows((1, "ann", 1, 5))]).done_before
    assert database.orders() == []


def test_a_locked_database_is_waited_for(lite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    lite.made(described("orders"))
    monkeypatch.setattr("drainmark.resources.sinks.databases.BUSY_SECONDS", 0.1)
    sink = lite.sink(described("orders"))
    other = sqlite3.connect(lite.settings.home / "shop.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable):
        sink.copy(txn_version(1, 1), [1], [rows((1, "ann", 1, 5))])
    other.execute("ROLLBACK")
    other.close()
    sink.copy(txn_version(1, 1), [1], [rows((1, "ann", 1, 5))])
    assert len(lite.orders()) == 1


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.seed("Z5")
def test_no_message_has_the_password(tmp_path: Path) -> None:
    urls = {"dead": "postgresql://u:hunter2@127.0.0.1:1/none", "odd": "mysql://u:hunter2@host/db", "bad": "hunter2"}
    settings = Settings(home=tmp_path, project_root=tmp_path, databases=urls)
    assert "hunter2" not in repr(settings)
    for name in urls:
        table = described("orders")
        table = RegionTable.from_json({**table.to_json(), "options": {"database": name, "table": "orders"}})
        with pytest.raises((UsageError, StoreUnavailable)) as caught:
            DatabaseTable(settings, table, REGION, lambda: "mine").examine(ORDERS)
        assert "hunter2" not in json.dumps(caught.value.to_json())
        assert "hunter2" not in str(caught.value.__cause__)
    with pytest.raises(UsageError) as unset:
        url_of(settings, "other")
    assert "DRAINMARK_DATABASES__OTHER" in (unset.value.remedy or "")


def test_a_database_is_set_by_a_variable_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from drainmark.resources.settings import load_settings

    monkeypatch.setenv("DRAINMARK_DATABASES__SHOP", "sqlite:///shop.db")
    monkeypatch.chdir(tmp_path)
    settings = load_settings(home=str(tmp_path / "home"))
    assert url_of(settings, "shop").database == str(tmp_path / "shop.db")
