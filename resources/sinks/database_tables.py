"""A table of a database as a sink, and what is read from it: one transaction changes the rows and the table's version.

`drainmark_applied`, in the same database, has one row for each sink. Every transaction locks that row and compares
versions before it changes the table. A version at or above its own means that the commit is done already, or that a
later owner has undone it. This is the fence, as `txnVersion` is for a Delta table; it needs no clock and no lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import sqlalchemy as sa

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, Interrupted, TableRefused
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.state.keyed_parts import parts_of
from drainmark.resources.delta.adopted.constraints import Breach
from drainmark.resources.delta.commits import Published
from drainmark.resources.delta.keyed.keyed_changes import Restored, schema_of
from drainmark.resources.delta.merge import require_unique
from drainmark.resources.settings import Settings
from drainmark.resources.sinks import database_writes
from drainmark.resources.sinks.applied_version import AppliedVersion, create_applied
from drainmark.resources.sinks.database_columns import Unfit, may_be_too_long, may_be_unfit, up_to_unfit
from drainmark.resources.sinks.database_target import DatabaseTarget
from drainmark.resources.sinks.databases import forget_pages
from drainmark.resources.sinks.version_note import SeenVersion

if TYPE_CHECKING:
    import pyarrow as pa


_IDS = 500  # fewer than a statement may have parameters


class DatabaseReader:
    """The region's rows in one table; rows of others, without an id, are left out."""

    def __init__(self, target: DatabaseTarget) -> None:
        self._target = target

    def row_count(self) -> int:
        """Return the number of rows of the region."""
        return int(self._target.scalar(sa.func.count(self._target.id)) or 0)

    def rows_above(self, to: int) -> int:
        """Return the number of rows with ids above `to` (exclusive)."""
        return int(self._target.scalar(sa.func.count(self._target.id).filter(self._target.id > to)) or 0)

    def newest_id(self) -> int:
        """Return the largest `_sequence_id`, 0 without one."""
        return int(self._target.scalar(sa.func.max(self._target.id)) or INITIAL_ID)

    def counts(self) -> dict[int, int | None]:
        """Return the number of rows by id; {} if there is no table."""
        with self._target.reading() as connection:
            if not self._target.is_there(connection):
                return {}
            counted = sa.select(self._target.id, sa.func.count()).where(self._target.id.is_not(None))
            return {int(number): int(rows) for number, rows in connection.execute(counted.group_by(self._target.id))}

    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pa.compute.Expression | None = None,
        *,
        upto: int | None = None,
    ) -> pa.Table:
        """Return the region's rows for which `where` holds, in no order.

        Args:
            columns: all by default.
            where: a condition on any of the columns; it is applied after the rows left the database.
            upto: the last id (inclusive) whose rows the database returns.
        """
        rows = self._target.rows([self._target.id.is_not(None) if upto is None else self._target.id <= upto], where)
        return rows if columns is None else rows.select(list(columns))

    def forget_removed(self) -> None:
        """Let the database forget deleted rows of the table, which may lie in its files still; see `databases`."""
        with self._target.answering():
            forget_pages(self._target.engine, self._target.table.name, self._target.table.schema)

    def read_ids(self, ids: Collection[int]) -> pa.Table:
        """Return the rows of some ids, in no order; the database returns no other rows."""
        ordered = sorted(ids)
        return self._target.rows(
            [self._target.id.in_(ordered[first : first + _IDS]) for first in range(0, len(ordered), _IDS)]
        )


Act = Callable[[sa.Connection], None]


class DatabaseTable(DatabaseReader):
    """One table that a sink writes; it holds no connection between calls.

    Args:
        settings: have the database's URL.
        table: names the database, the table and the columns.
        region: the region whose rows it holds.
        identity: returns the unique id of the region's checkpoint table, None before that table exists.
        seen: as for `Externals.open`.

    Raises:
        StoreUnavailable: from any method: the database does not answer, or another process holds the lock.
    """

    judges_by_itself = False

    def __init__(
        self,
        settings: Settings,
        table: RegionTable,
        region: str,
        identity: Callable[[], str | None],
        *,
        seen: dict[str, int] | None = None,
    ) -> None:
        self._described = table
        self._seen = SeenVersion(table.name, seen)
        super().__init__(DatabaseTarget(settings, table))
        self._applied = AppliedVersion(self._target, region, table.operator, identity)

    def exists(self) -> bool:
        """Say whether the table exists and belongs to this sink."""
        with self._target.reading() as connection:
            return self._applied.row(connection) is not None and self._target.is_there(connection)

    def txn_version(self) -> int | None:
        """Return the version that the table has reached, None before the first."""
        with self._target.reading() as connection:
            row = self._applied.row(connection)
        self._seen.note(int(row.version) if row is not None else 0)
        return int(row.version) or None if row is not None else None

    def delta_version(self) -> int:
        """Return the sequence id that the table has reached: databases have no version numbers of their own."""
        return split_txn_version(self.txn_version() or 0)[1]

    def newest_epoch(self) -> int:
        """Return the epoch of the version that the table has reached, 0 before the first."""
        return split_txn_version(self.txn_version() or 0)[0]

    # --- before anything is committed ------------------------------------------------------------------------------

    def examine(self, schema_json: str) -> None:
        """Check that an existing table takes rows of these columns, and is no other sink's; changes nothing.

        Raises:
            SchemaMismatch, ForeignTable: it does not, or it is; the message names the obstacle.
        """
        with self._target.reading() as connection:
            if self._target.is_there(connection):
                self._target.require_columns(connection)
            self._applied.require_mine(connection, self._applied.row(connection))

    def create(self, schema_json: str) -> None:
        """Create the table and the sink's row in `drainmark_applied`, unless they exist.

        Raises:
            SchemaMismatch, ForeignTable: as `examine`.
            TableRefused: the database refuses it.
        """
        self.examine(schema_json)
        try:
            self._create()
        except TableRefused:  # another process may have created it at the same moment: then the second call finds it
            self._create()
        self.examine(schema_json)

    def _create(self) -> None:
        with self._target.reading() as connection:
            if self._target.is_there(connection) and self._applied.row(connection) is not None:
                return
        with self._target.writing() as connection:
            create_applied(connection)
            if not self._target.is_there(connection):
                self._target.make(connection)
            self._applied.begin(connection)

    def breach(self, rows: Iterable[pa.Table], *, replaced: Collection[int] = ()) -> Breach | None:
        """Try rows that are not committed yet, in a transaction that is rolled back, if the table may refuse some.

        It does not find conflicts with rows of groups that are committed and not published yet.

        Args:
            replaced: ids whose rows these rows replace.

        Returns:
            the first row that the database refuses, None if it takes all.
        """
        target, dialect = self._target, self._target.engine.dialect.name
        refused, unfit = None, list[Unfit]()
        with target.reading() as connection:
            asks, numbered = target.has_terms(connection), target.numbered_column(connection)
            lengths = target.cut_columns(connection)
        is_suspect, keys = may_be_unfit(target.schema, dialect), self._described.keys
        looked_at = rows if asks or is_suspect or (keys and dialect == "postgresql") else ()
        given = up_to_unfit(looked_at, dialect, unfit, numbered=numbered, lengths=lengths)
        tried = (part for part in given if asks or may_be_too_long(part, keys, dialect))
        if (first := next(tried, None)) is not None:
            with target.writing() as connection:
                database_writes.withdraw(connection, target.table, replaced)
                refused = database_writes.first_refused(connection, target.table, chain([first], tried), keys)
                connection.rollback()
        if is_suspect:
            deque(given, maxlen=0)  # looks at the tables that were not read so far
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
            replaced: ids whose rows the same transaction deletes, because their files are in the group again.

        Raises:
            TableRefused: the table does not take the rows.
            SplitBrain: the sink's row in `drainmark_applied` is gone.
        """

        def act(connection: sa.Connection) -> None:
            database_writes.withdraw(connection, self._target.table, replaced)
            database_writes.insert(connection, self._target.table, rows)

        return self._commit("publish", version, act)

    def merge(self, version: int, rows: Iterable[pa.Table], keys: Sequence[str]) -> Published:
        """Update the table: each of `rows` replaces the row of its key, or is added; if it is gone, the key is deleted.

        Args:
            rows: one row for each key; no key is in two tables. With a column `_gone` if rows may be gone.
            keys: key columns; nulls are equal.

        Raises:
            AccountingError: two rows have the same key.
            TableRefused, SplitBrain: as `copy`.
        """

        def act(connection: sa.Connection) -> None:
            unique = (require_unique(part, keys, self._target.where) for part in rows)
            database_writes.merge(connection, self._target.table, unique, keys)

        return self._commit("publish", version, act)

    def rewind_rows(self, version: int, to: int, *, restored: Iterable[pa.Table] = ()) -> Published:
        """Delete the rows with ids above `to` (exclusive).

        Args:
            restored: rows that come back, because the rows that replaced them are withdrawn.
        """

        def act(connection: sa.Connection) -> None:
            connection.execute(self._target.table.delete().where(self._target.id > to))
            database_writes.insert(connection, self._target.table, restored)

        return self._commit("rewind_table", version, act)

    def rewind_upsert(self, version: int, restored: Restored) -> Published:
        """Give each key that changed its row back, or delete it; see `ManagedTable`."""
        parts = parts_of(restored.history.files.rows_above(restored.after))

        def back(part: int) -> pa.Table:
            schema = schema_of(restored.history.folder, restored.columns)
            return restored.changes().part(schema, part, parts)[1]

        def act(connection: sa.Connection) -> None:
            rows, leaving = map(back, range(parts)), self._target.id > restored.to
            database_writes.merge(connection, self._target.table, rows, restored.keys, leaving=leaving)

        return self._commit("rewind_table", version, act)

    def put_right(
        self,
        version: int,
        rows: Callable[[Collection[int]], Iterable[pa.Table]],
        *,
        written: Collection[int],
        leaving: Collection[int],
        keys: Sequence[str] = (),
    ) -> Published:
        """Make the region's rows those that its history says; rows of others, without an id, stay.

        Args:
            version: above that of the table.
            rows: returns the rows of some ids; with `keys` one row for each key, and all of them.
            written: ids that get these rows in place of those that they have.
            leaving: ids whose rows are deleted.
        """

        def act(connection: sa.Connection) -> None:
            table, is_mine = self._target.table, self._target.id.is_not(None)
            if keys:
                database_writes.merge(connection, table, rows(written), keys, leaving=is_mine)
            else:
                database_writes.withdraw(connection, table, {*written, *leaving})
                database_writes.insert(connection, table, rows(written) if written else ())

        return self._commit("repair", version, act)

    def _commit(self, verb: str, version: int, act: Act) -> Published:
        """Run `act` and set the version in one transaction, unless the table has reached `version` already."""
        done = Published(delta_version=split_txn_version(version)[1], done_before=True)
        if self._applied.is_reached(version):
            return done
        world.pass_point(f"{verb}.before_commit")
        try:
            with self._target.writing() as connection:
                found = self._applied.locked(connection)
                if found >= version:
                    return done
                self._seen.require(found, is_repair=verb == "repair")
                act(connection)
                self._applied.note(connection, version)
            self._seen.note(version)
            world.pass_point(f"{verb}.after_commit")
        except (DrainmarkError, InjectedFailure) as error:  # the outcome is unknown until it is read back
            if isinstance(error, Interrupted) or not self._applied.is_reached(version):
                raise
        return Published(delta_version=split_txn_version(version)[1], done_before=False)
