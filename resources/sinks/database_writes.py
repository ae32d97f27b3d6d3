"""Changes to the rows of a database table inside a transaction: insert, merge by key, delete, and a trial."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from drainmark.jobs.errors.database_faults import is_passing, said_by
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.state.keyed_rows import present

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 10_000
"""Largest number of rows that are Python objects at the same time."""

_GIVEN = "drainmark_given"
_GONE_KEYS = "drainmark_gone"
_ASIDE = "drainmark_aside"
_IDS = 500
_NOTICED = """
SELECT EXISTS (SELECT 1 FROM pg_constraint WHERE contype = 'f' AND confrelid = to_regclass(:name))
    OR EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass(:name) AND NOT tgisinternal)
"""
_CHECKED = """
SELECT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass(:name) AND NOT tgisinternal)
    OR EXISTS (SELECT 1 FROM pg_constraint WHERE contype = 'x' AND conrelid = to_regclass(:name))
"""


def insert(connection: sa.Connection, table: sa.Table, rows: Iterable[pa.Table]) -> None:
    """Insert rows: by COPY into PostgreSQL, by `executemany` into other databases."""
    names = [column.name for column in table.columns]
    for batch in batches(rows, names):
        if connection.dialect.name == "postgresql":
            _copy(connection, table, batch)
        else:
            connection.execute(table.insert(), batch.to_pylist())


def withdraw(connection: sa.Connection, table: sa.Table, ids: Collection[int]) -> None:
    """Delete the rows of some ids, in several statements, because the parameters of a statement are limited."""
    ordered = sorted(ids)
    for start in range(0, len(ordered), _IDS):
        connection.execute(table.delete().where(table.c[SEQUENCE_ID].in_(ordered[start : start + _IDS])))


def merge(
    connection: sa.Connection,
    table: sa.Table,
    rows: Iterable[pa.Table],
    keys: Sequence[str],
    *,
    leaving: sa.ColumnElement[bool] | None = None,
) -> None:
    """Update the rows whose keys are in the table, insert the others; other columns of the table keep their values.

    A value that has to be unique may move from one row to another. So for all tables of rows together, one statement
    deletes, then one updates, and then one inserts.

    Args:
        rows: one row for each key; no key is in two tables. A row that is gone, by the column `GONE`, deletes its key.
        leaving: condition of the rows to delete, among those whose keys are not in `rows`.
    """
    given, gone = _Given(connection, table, keys), _Given(connection, table, keys, only_keys=True)
    for part in rows:
        given.add(present(part))
        if GONE in part.column_names:
            gone.add(part.filter(part[GONE].fill_null(False)))
    if (leaves := gone.same()) is not None:
        connection.execute(table.delete().where(leaves.is_given(table)))
        gone.drop()
    same = given.same()
    if same is None:
        if leaving is not None:
            connection.execute(table.delete().where(leaving))
        return
    if leaving is not None:
        connection.execute(table.delete().where(leaving, ~same.is_given(table)))
    _update(connection, table, same)
    there = sa.select(sa.literal(1)).select_from(table).where(same.as_in(table)).correlate(same.given).exists()
    names = [column.name for column in same.given.columns]
    connection.execute(table.insert().from_select(names, sa.select(same.given).where(~there)))
    given.drop()


class _Given:
    """Rows in a temporary table of this connection, which is made with the first of them.

    Args:
        table: has the columns of the rows.
        only_keys: only the keys of the rows are there.
    """

    def __init__(
        self, connection: sa.Connection, table: sa.Table, keys: Sequence[str], *, only_keys: bool = False
    ) -> None:
        columns = [sa.Column(each.name, each.type) for each in table.columns if not only_keys or each.name in keys]
        name = _GONE_KEYS if only_keys else _GIVEN
        self._connection, self._keys = connection, keys
        self._table = sa.Table(name, sa.MetaData(), *columns, prefixes=["TEMPORARY"])
        self._with_nulls, self._is_made = set[str](), False

    def add(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        if not self._is_made:
            self._table.create(self._connection)
            self._is_made = True
        insert(self._connection, self._table, [rows])
        self._with_nulls.update(key for key in self._keys if rows.column(key).null_count)

    def same(self) -> _SameKey | None:
        """Return the condition that a row has the key of one of these rows; None without any."""
        if not self._is_made:
            return None
        is_lite = self._connection.dialect.name != "postgresql"
        if is_lite:  # without an index, SQLite would read all given rows for each row of the table
            sa.Index(f"{self._table.name}_keys", *(self._table.c[key] for key in self._keys)).create(self._connection)
        else:
            self._connection.execute(sa.text(f"ANALYZE {self._table.name}"))
        return _SameKey(self._table, self._keys, self._with_nulls, is_lite)

    def drop(self) -> None:
        self._table.drop(self._connection)


@dataclass(frozen=True, slots=True)
class _SameKey:
    """The condition that a row has the key of a given row.

    An index serves `=`, but not `IS NOT DISTINCT FROM`, so only key columns with nulls use the latter.
    """

    given: sa.Table
    keys: Sequence[str]
    with_nulls: Collection[str]
    is_lite: bool

    def as_in(self, table: sa.FromClause) -> sa.ColumnElement[bool]:
        pairs = ((self._exact(table.c[key], key), self.given.c[key], key in self.with_nulls) for key in self.keys)
        return sa.and_(*(there.is_not_distinct_from(new) if nulls else there == new for there, new, nulls in pairs))

    def _exact(self, there: sa.ColumnElement[Any], key: str) -> sa.ColumnElement[Any]:
        """Compare texts exactly: a column of SQLite may have another collation; in PostgreSQL such keys are refused."""
        is_loose = self.is_lite and isinstance(self.given.c[key].type, sa.String)
        return there.collate("BINARY") if is_loose else there

    def is_given(self, table: sa.FromClause) -> sa.ColumnElement[bool]:
        return sa.select(sa.literal(1)).select_from(self.given).where(self.as_in(table)).correlate(table).exists()


def _update(connection: sa.Connection, table: sa.Table, same: _SameKey) -> None:
    """Give existing rows their new values.

    A database may check that a value is unique after each row. If an update breaks a constraint, the rows are deleted
    and inserted again, so that values can move in a circle. This is not done if foreign keys or triggers refer to the
    table: they would see the rows leave, and rows of other tables might go.
    """
    values = {column.name: column for column in same.given.columns if column.name not in same.keys}
    try:
        with connection.begin_nested():
            connection.execute(table.update().where(same.as_in(table)).values(values))
    except sa.exc.IntegrityError as refused:
        if _is_noticed(connection, table):
            raise
        try:
            with connection.begin_nested():
                _put_in_again(connection, table, same, values)
        except sa.exc.DBAPIError as error:
            if is_passing(error):
                raise
            raise refused from None  # its message names the rule that the values break


def _put_in_again(
    connection: sa.Connection, table: sa.Table, same: _SameKey, values: Mapping[str, sa.Column[Any]]
) -> None:
    described = sa.inspect(connection).get_columns(table.name, schema=table.schema)
    every = [sa.quoted_name(column["name"], quote=True) for column in described if not column.get("computed")]
    whole = sa.table(table.name, *(sa.column(name) for name in every), schema=table.schema)
    new = sa.select(*(values.get(name, whole.c[name]) for name in every)).where(same.as_in(whole))
    connection.exec_driver_sql(f"CREATE TEMPORARY TABLE {_ASIDE} AS {new.compile(dialect=connection.dialect)}")
    connection.execute(table.delete().where(same.is_given(table)))
    preparer = connection.dialect.identifier_preparer
    into, names = preparer.format_table(table), ", ".join(map(preparer.quote, every))
    kept = "OVERRIDING SYSTEM VALUE " if connection.dialect.name == "postgresql" else ""  # of identity columns
    insertion = f"INSERT INTO {into} ({names}) {kept}SELECT {names} FROM {_ASIDE}"  # noqa: S608 - names are quoted
    connection.exec_driver_sql(insertion)
    connection.exec_driver_sql(f"DROP TABLE {_ASIDE}")


def has_checks(connection: sa.Connection, table: sa.Table) -> bool:
    """Say whether a table has triggers, or a constraint that SQLAlchemy does not list; both may refuse a row."""
    if connection.dialect.name == "postgresql":
        name = connection.dialect.identifier_preparer.format_table(table)
        return bool(connection.execute(sa.text(_CHECKED), {"name": name}).scalar())
    triggers = sa.text("SELECT tbl_name FROM sqlite_master WHERE type = 'trigger'")
    return _is_among(table, [row[0] for row in connection.execute(triggers)])


def _is_noticed(connection: sa.Connection, table: sa.Table) -> bool:
    """Say whether foreign keys refer to a table, or the table has triggers: both notice when rows leave."""
    if connection.dialect.name == "postgresql":
        name = connection.dialect.identifier_preparer.format_table(table)
        return bool(connection.execute(sa.text(_NOTICED), {"name": name}).scalar())
    references = sa.inspect(connection).get_multi_foreign_keys().values()
    return has_checks(connection, table) or _is_among(
        table, [key["referred_table"] for keys in references for key in keys]
    )


def _is_among(table: sa.Table, names: Collection[str]) -> bool:
    return table.name.casefold() in map(str.casefold, names)  # names in SQLite do not depend on case


def first_refused(
    connection: sa.Connection, table: sa.Table, rows: Iterable[pa.Table], keys: Sequence[str]
) -> tuple[dict[str, Any], str] | None:
    """Return the first row that the table refuses, and the database's message; the caller rolls back.

    It also tries rows that a later row of the same key replaces within the group: a rewind may bring them back.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))
    for batch in batches(rows, [column.name for column in table.columns], kept=(GONE,)):
        for tried in _one_a_key(batch, keys) if keys else [batch]:
            found = _first_refused(connection, table, tried, keys)
            if found is not None:
                return found
    return None


def _one_a_key(rows: pa.Table, keys: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the first row of each key by id, then the second, and so on."""
    import numpy as np
    import pyarrow as pa

    from drainmark.jobs.state.keyed_rows import key_codes

    codes = key_codes([rows], keys)[0]
    ids = rows.column(SEQUENCE_ID).to_numpy()
    by_key = np.lexsort((ids, codes))
    starts = np.flatnonzero(np.append(True, codes[by_key][1:] != codes[by_key][:-1]))
    places = np.arange(len(codes)) - np.repeat(starts, np.diff(np.append(starts, len(codes))))
    for place in range(int(places.max(initial=-1)) + 1):
        yield rows.take(pa.array(np.sort(by_key[places == place])))


def _first_refused(
    connection: sa.Connection, table: sa.Table, rows: pa.Table, keys: Sequence[str]
) -> tuple[dict[str, Any], str] | None:
    """Halve refused rows until one is left; the rows before it stay in the transaction."""
    dbapi: Any = connection.dialect.dbapi
    trial = connection.begin_nested()
    try:
        if keys:
            merge(connection, table, [rows], keys)
        else:
            insert(connection, table, [rows])
    except (sa.exc.DBAPIError, dbapi.Error) as error:
        trial.rollback()
        if is_passing(error):
            raise
        said = said_by(error)
    else:
        trial.commit()
        return None
    if rows.num_rows == 1:
        return rows.to_pylist()[0], said
    half = rows.num_rows // 2
    first = _first_refused(connection, table, rows.slice(0, half), keys)
    return first or _first_refused(connection, table, rows.slice(half), keys)


def batches(rows: Iterable[pa.Table], names: Sequence[str], *, kept: Sequence[str] = ()) -> Iterator[pa.Table]:
    """Yield the rows in these columns, and in those of `kept` that they have, at most BATCH_ROWS at a time."""
    for table in rows:
        chosen = table.select([*names, *(name for name in kept if name in table.column_names)])
        for start in range(0, chosen.num_rows, BATCH_ROWS):
            yield chosen.slice(start, BATCH_ROWS)


def digest(text: str) -> str:
    """Return twelve hexadecimal characters that stand for a name that may be too long."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _copy(connection: sa.Connection, table: sa.Table, rows: pa.Table) -> None:
    from psycopg.sql import SQL, Identifier  # SQLAlchemy doubles each % of a name, COPY must not

    into = Identifier(*filter(None, (table.schema, table.name)))
    names = SQL(", ").join(map(Identifier, rows.column_names))
    columns = [column.to_pylist() for column in rows.columns]
    cursor = connection.connection.cursor()
    try:
        with cursor.copy(SQL("COPY {} ({}) FROM STDIN").format(into, names)) as copy:  # type: ignore[attr-defined]
            for row in zip(*columns, strict=True):
                copy.write_row(row)
    finally:
        cursor.close()
