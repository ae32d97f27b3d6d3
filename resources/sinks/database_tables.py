"""A table of a database as a sink: rows and the version that they bring it to are one transaction (V124, V148).

`drainmark_applied`, in the same database, has one row a sink. Every transaction locks that row and compares versions
before it touches the table: a version at or above mine means done, or undone by a later owner. That is the fence, as
`txnVersion` is a Delta table's (design.md §3.2); no clock and no lease is trusted.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from drainmark.jobs.errors import DrainmarkError, ForeignTable, Interrupted, SplitBrain, TableRefused
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.runtime.adapters import Breach
from drainmark.resources.delta.commits import Faults, Published
from drainmark.resources.delta.merge import KEEP_COLUMN, require_unique, rows_to_restore
from drainmark.resources.settings import Settings
from drainmark.resources.sinks import database_writes
from drainmark.resources.sinks.database_columns import arrow_schema, columns_of, has_terms, require_columns
from drainmark.resources.sinks.database_values import Unfit, may_be_unfit, up_to_unfit
from drainmark.resources.sinks.databases import answering, engine_of, url_of

if TYPE_CHECKING:
    import pyarrow as pa

Act = Callable[[sa.Connection], None]

APPLIED = "drainmark_applied"
_IDS = 500  # fewer than a statement may have parameters
_ROWS_AT_ONCE = 10_000

_applied = sa.Table(
    APPLIED,
    sa.MetaData(),
    sa.Column("region", sa.Text, primary_key=True),
    sa.Column("operator", sa.Text, primary_key=True),
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("checkpoints", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("sequence_id", sa.BigInteger, nullable=False),
    sa.Column("applied_at", sa.DateTime, nullable=False),
)


class DatabaseTable:
    """One table that a sink writes; holds no connection between calls.

    Args:
        settings: have the database's URL.
        table: says which database, which table, and the columns.
        region: whose rows these are.
        identity: gives what tells the region's checkpoint table from any other, None before there is one.
        faults: as for `ManagedTable`.

    Raises:
        StoreUnavailable: from any method: the database does not answer, or another one holds the lock.
    """

    def __init__(
        self,
        settings: Settings,
        table: RegionTable,
        region: str,
        identity: Callable[[], str | None],
        *,
        faults: Faults | None = None,
    ) -> None:
        self.region = region
        self._described = table
        self._engine = engine_of(url_of(settings, table.options["database"]))
        self._identity = identity
        self._pass = faults or (lambda _: None)
        schema, _, name = table.options["table"].rpartition(".")
        columns = columns_of(table.schema_json, table.columns)
        self._table = sa.Table(name, sa.MetaData(), *columns, schema=schema or None)
        self._where = f"the table {self._table.fullname} in the database {table.options['database']!r}"
        self._mine = sa.and_(
            _applied.c.region == region,
            _applied.c.operator == table.operator,
            _applied.c.target == self._table.fullname,
        )

    # --- reading ---------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Say whether the table is there and this sink's."""
        with self._reading() as connection:
            return self._row(connection) is not None and self._is_there(connection)

    def txn_version(self) -> int | None:
        """Return the newest version of the region that is in the table, None before the first."""
        with self._reading() as connection:
            row = self._row(connection)
        return int(row.version) or None if row is not None else None

    def delta_version(self) -> int:
        """Return the sequence id that the table was brought to last: databases number no states."""
        return split_txn_version(self.txn_version() or 0)[1]

    def row_count(self) -> int:
        """Return the number of rows of the region."""
        return int(self._scalar(sa.func.count(self._id)) or 0)

    def newest_id(self) -> int:
        """Return the largest `_sequence_id`, 0 without one."""
        return int(self._scalar(sa.func.max(self._id)) or INITIAL_ID)

    def read(
        self, columns: Sequence[str] | None = None, where: pa.compute.Expression | None = None, *,
        upto: int | None = None,
    ) -> pa.Table:  # fmt: skip
        """Return the region's rows for which `where` holds, in no order.

        Args:
            columns: all by default.
            where: a condition on any of the columns; the database gives rows for which it does not hold, too.
            upto: the last id of which the database gives rows.
        """
        rows = self._rows([self._id.is_not(None) if upto is None else self._id <= upto], where)
        return rows if columns is None else rows.select(list(columns))

    def read_ids(self, ids: Collection[int]) -> pa.Table:
        """Return the rows of some ids, in no order; the database gives no others."""
        ordered = sorted(ids)
        return self._rows([self._id.in_(ordered[first : first + _IDS]) for first in range(0, len(ordered), _IDS)])

    def _rows(
        self, conditions: Sequence[sa.ColumnElement[bool]], where: pa.compute.Expression | None = None
    ) -> pa.Table:
        import pyarrow as pa

        schema = arrow_schema(self._described.schema_json, self._names)
        parts = [schema.empty_table()]
        with self._reading() as connection:
            for condition in conditions:
                found = connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(
                    sa.select(self._table).where(condition)
                )
                for rows in found.mappings().partitions():
                    part = pa.Table.from_pylist([dict(row) for row in rows], schema)
                    parts.append(part if where is None else part.filter(where))
        return pa.concat_tables(parts)

    # --- before anything is committed ------------------------------------------------------------------------------

    def examine(self, schema_json: str) -> None:
        """Check that a table that is there takes rows of these columns, and is no other sink's; changes nothing.

        Raises:
            SchemaMismatch, ForeignTable: say what is in the way.
        """
        with self._reading() as connection:
            if self._is_there(connection):
                require_columns(sa.inspect(connection), self._table, self._where)
            self._require_mine(connection, self._row(connection))

    def create(self, schema_json: str) -> None:
        """Create the table and the sink's row in `drainmark_applied`; what is as it should be stays so.

        Raises:
            SchemaMismatch, ForeignTable: as `examine`.
            TableRefused: the database does not let us.
        """
        self.examine(schema_json)
        try:
            self._create()
        except TableRefused:  # another process may have created it at the same moment: then there is nothing to do
            self._create()
        self.examine(schema_json)

    def _create(self) -> None:
        with self._reading() as connection:
            if self._is_there(connection) and self._row(connection) is not None:
                return
        with self._answering(), self._engine.begin() as connection:
            _applied.create(connection, checkfirst=True)
            if not self._is_there(connection):
                self._table.create(connection)
                for index in self._indexes():
                    index.create(connection)
            if self._row(connection) is None:
                self._require_mine(connection, None)
                now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
                connection.execute(_applied.insert().values(
                    region=self.region, operator=self._described.operator, target=self._table.fullname,
                    checkpoints=self._identity() or "", version=0, sequence_id=INITIAL_ID, applied_at=now,
                ))  # fmt: skip

    def _require_mine(self, connection: sa.Connection, row: Any) -> None:
        """Refuse a table with rows of another sink, or of another home's region of the same name."""
        identity = self._identity()
        if row is not None and identity is not None and row.checkpoints != identity:
            msg = f"{self._where} was filled by another home's region {self.region!r}, up to id {row.sequence_id}"
            remedy = f"run there, or choose another table; to begin anew, empty the table and its row of {APPLIED}"
            raise ForeignTable(msg, remedy=remedy)
        if row is not None or not sa.inspect(connection).has_table(APPLIED):
            return
        others = connection.execute(sa.select(_applied).where(_applied.c.target == self._table.fullname)).first()
        if others is not None:
            msg = f"{self._where} is written by {others.operator} of region {others.region!r}: ids must not mix"
            raise ForeignTable(msg, remedy="choose another table")

    def breach(self, rows: Iterable[pa.Table], *, replaced: Collection[int] = ()) -> Breach | None:
        """Try rows that are not committed yet, in a transaction that is rolled back; free where the table asks nothing.

        What cannot be known so: constraints against rows of groups that are committed and not published yet.

        Args:
            replaced: ids whose rows leave when these come.

        Returns:
            the first row that is refused, None if none is.
        """
        dialect = self._engine.dialect.name
        refused, unfit = None, list[Unfit]()
        given = up_to_unfit(rows, dialect, unfit)
        with self._reading() as connection:
            asks = has_terms(sa.inspect(connection), self._table, [index.name or "" for index in self._indexes()])
        if asks:
            with self._answering(), self._engine.connect() as connection, connection.begin() as transaction:
                database_writes.withdraw(connection, self._table, replaced)
                refused = database_writes.first_refused(connection, self._table, given, self._described.keys)
                transaction.rollback()
        if may_be_unfit(arrow_schema(self._described.schema_json, self._names), dialect):
            deque(given, maxlen=0)  # what nobody has looked at so far
        if refused is None and unfit:
            refused = unfit[0]
        if refused is None:
            return None
        row, said = refused
        shown = {name: value for name, value in row.items() if name != SEQUENCE_ID}
        return Breach(rule=said, condition=f"row {shown}"[:500], rows=1, first_id=row[SEQUENCE_ID])

    # --- committing ------------------------------------------------------------------------------------------------

    def copy(
        self, version: int, ids: Collection[int], rows: Iterable[pa.Table], *, replaced: Collection[int] = ()
    ) -> Published:
        """Insert the rows of a group.

        Args:
            version: of the checkpoint row that is published.
            ids: of the group.
            rows: with the sink's columns.
            replaced: ids whose rows leave in the same transaction, since their files are in the group again.

        Raises:
            TableRefused: the table does not take them.
            SplitBrain: the sink's row of `drainmark_applied` is gone.
        """

        def act(connection: sa.Connection) -> None:
            database_writes.withdraw(connection, self._table, replaced)
            database_writes.insert(connection, self._table, rows)

        return self._commit("publish", version, act)

    def merge(self, version: int, rows: pa.Table, keys: Sequence[str]) -> Published:
        """Bring the table up to date: `rows` replace the rows of their keys, or are added.

        Args:
            rows: one row a key.
            keys: key columns; nulls are equal (H5).

        Raises:
            AccountingError: two rows of one key.
            TableRefused, SplitBrain: as `copy`.
        """
        require_unique(rows, keys, self._where)
        return self._commit("publish", version, lambda given: database_writes.merge(given, self._table, rows, keys))

    def rewind_rows(self, version: int, to: int, *, restored: Iterable[pa.Table] = ()) -> Published:
        """Delete the rows of ids above `to`.

        Args:
            restored: rows that come back, since what replaced them is taken back.
        """

        def act(connection: sa.Connection) -> None:
            self._delete_above(connection, to)
            database_writes.insert(connection, self._table, restored)

        return self._commit("rewind_table", version, act)

    def rewind_upsert(
        self,
        version: int,
        to: int,
        history: Any,
        keys: Sequence[str],
        columns: Sequence[str],
        *,
        images: Sequence[str] = (),
    ) -> Published:
        """Give each key that changed after `to` its last row up to `to`, or delete it; see `ManagedTable`."""
        found = rows_to_restore(history.folder, images, to, keys, columns)
        back = found.filter(found.column(KEEP_COLUMN)).drop_columns([KEEP_COLUMN])

        def act(connection: sa.Connection) -> None:
            database_writes.merge(connection, self._table, back, keys)
            self._delete_above(connection, to)

        return self._commit("rewind_table", version, act)

    def _delete_above(self, connection: sa.Connection, to: int) -> None:
        connection.execute(self._table.delete().where(self._id > to))

    def _commit(self, verb: str, version: int, act: Act) -> Published:
        """Do it once: unless the version is at or above mine, in one transaction with the version."""
        done = Published(delta_version=split_txn_version(version)[1], done_before=True)
        if self._is_done(version):
            return done
        self._pass(f"{verb}.before_commit")
        try:
            with self._answering(), self._engine.begin() as connection:
                if (self._locked(connection).version or 0) >= version:
                    return done
                act(connection)
                now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
                change = {"version": version, "sequence_id": split_txn_version(version)[1], "applied_at": now}
                connection.execute(_applied.update().where(self._mine).values(**change))
            self._pass(f"{verb}.after_commit")
        except (DrainmarkError, InjectedFailure) as error:  # the outcome is unknown until it is read back (H10)
            if isinstance(error, Interrupted) or not self._is_done(version):
                raise
        return Published(delta_version=split_txn_version(version)[1], done_before=False)

    def _is_done(self, version: int) -> bool:
        with self._reading() as connection:
            row = self._row(connection)
        if row is None:
            raise self._lost()
        return int(row.version) >= version

    def _locked(self, connection: sa.Connection) -> Any:
        row = connection.execute(sa.select(_applied).where(self._mine).with_for_update()).first()
        if row is None:
            raise self._lost()
        return row

    def _lost(self) -> SplitBrain:
        msg = f"{APPLIED} has no row for {self._where}: what is in the table cannot be known"
        return SplitBrain(msg, remedy="restore the database from a backup; or: drainmark reset REGION --to-initial")

    # --- how -------------------------------------------------------------------------------------------------------

    @property
    def _id(self) -> sa.Column[Any]:
        return self._table.c[SEQUENCE_ID]

    @property
    def _names(self) -> list[str]:
        return [column.name for column in self._table.columns]

    def _indexes(self) -> list[sa.Index]:
        """Return what a rewind and a merge find rows by."""
        table = sa.Table(self._table.name, sa.MetaData(), *(c._copy() for c in self._table.columns),
                         schema=self._table.schema)  # fmt: skip
        digest = database_writes.digest(self._table.fullname)
        indexes = [sa.Index(f"drainmark_{digest}_ids", table.c[SEQUENCE_ID])]
        if self._described.keys:
            keys = (table.c[key] for key in self._described.keys)
            indexes.append(sa.Index(f"drainmark_{digest}_keys", *keys))
        return indexes

    def _is_there(self, connection: sa.Connection) -> bool:
        return bool(sa.inspect(connection).has_table(self._table.name, schema=self._table.schema))

    def _row(self, connection: sa.Connection) -> Any:
        if not sa.inspect(connection).has_table(APPLIED):
            return None
        return connection.execute(sa.select(_applied).where(self._mine)).first()

    def _scalar(self, what: Any) -> Any:
        with self._reading() as connection:
            return connection.execute(sa.select(what).select_from(self._table)).scalar()

    def _answering(self) -> contextlib.AbstractContextManager[None]:
        return answering(self._engine, self._where)

    @contextlib.contextmanager
    def _reading(self) -> Any:
        with self._answering(), self._engine.connect() as connection:
            yield connection.execution_options(drainmark_reads=True)
