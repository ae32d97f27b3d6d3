"""The table of a database that a sink writes: its connection, its columns and indexes, its rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from drainmark.jobs import world
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.world import Seam
from drainmark.resources.settings import Settings
from drainmark.resources.sinks import database_writes
from drainmark.resources.sinks.database_columns import (
    always_quoted,
    arrow_schema,
    columns_of,
    cut_columns,
    has_terms,
    numbered_column,
    require_columns,
    require_exact_keys,
    require_lengths,
)
from drainmark.resources.sinks.databases import answering, engine_of, url_of

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 10_000


class DatabaseTarget:
    """One table of a database, which need not exist yet; it holds no connection between calls.

    Args:
        settings: have the database's URL.
        described: names the database, the table and the columns.
    """

    def __init__(self, settings: Settings, described: RegionTable) -> None:
        self.engine = engine_of(url_of(settings, described.options["database"]))
        schema, _, name = (always_quoted(part) for part in described.options["table"].rpartition("."))
        columns = columns_of(described.schema_json, described.columns)
        self.table = sa.Table(name, sa.MetaData(), *columns, schema=schema or None)
        self.where = f"the table {self.table.fullname} in the database {described.options['database']!r}"
        require_lengths(self.engine.dialect, self.table, self.where)
        self._described = described

    @property
    def id(self) -> sa.Column[Any]:
        """Return the column that holds the ids of the rows."""
        return self.table.c[SEQUENCE_ID]

    @property
    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the table."""
        return arrow_schema(self._described.schema_json, [column.name for column in self.table.columns])

    def answering(self) -> contextlib.AbstractContextManager[None]:
        """Turn errors of the database inside the block into Drainmark's errors."""
        return answering(self.engine, self.where)

    @contextlib.contextmanager
    def reading(self) -> Any:
        """Yield a connection for statements that change nothing."""
        with self.answering(), world.transaction(Seam.SINK_DATABASE), self.engine.connect() as connection:
            yield connection.execution_options(drainmark_reads=True)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a transaction, which holds SQLite's write lock from its start."""
        with self.answering(), world.transaction(Seam.SINK_DATABASE), self.engine.begin() as connection:
            yield connection

    def is_there(self, connection: sa.Connection) -> bool:
        """Say whether the database has a table of that name."""
        return bool(sa.inspect(connection).has_table(self.table.name, schema=self.table.schema))

    def require_columns(self, connection: sa.Connection) -> None:
        """Check that the existing table takes rows of these columns, and tells all keys apart.

        Raises:
            SchemaMismatch: it does not.
        """
        require_columns(sa.inspect(connection), self.table, self.where)
        if self._described.keys:
            require_exact_keys(connection, self.table, self._described.keys, self.where)

    def has_terms(self, connection: sa.Connection) -> bool:
        """Say whether the table restricts rows in other ways than by its columns."""
        ours = [index.name or "" for index in self._indexes()]
        return has_terms(sa.inspect(connection), self.table, ours) or database_writes.has_checks(connection, self.table)

    def numbered_column(self, connection: sa.Connection) -> str | None:
        """Return the column in which SQLite stores a number in place of a null, if the table has one."""
        return numbered_column(connection, self.table)

    def cut_columns(self, connection: sa.Connection) -> dict[str, int]:
        """Return how many characters the text columns hold that PostgreSQL cuts blanks off the end of, by name."""
        return cut_columns(connection, self.table)

    def make(self, connection: sa.Connection) -> None:
        """Create the table, and the indexes by which a rewind and a merge find rows."""
        self.table.create(connection)
        for index in self._indexes():
            index.create(connection)

    def scalar(self, what: Any) -> Any:
        """Return the value of one aggregate over all rows."""
        with self.reading() as connection:
            return connection.execute(sa.select(what).select_from(self.table)).scalar()

    def rows(
        self, conditions: Sequence[sa.ColumnElement[bool]], where: pa.compute.Expression | None = None
    ) -> pa.Table:
        """Return the rows that meet any of the conditions, which must not overlap, and `where`, in no order."""
        import pyarrow as pa

        schema = self.schema
        parts = [schema.empty_table()]
        with self.reading() as connection:
            for condition in conditions:
                found = connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(
                    sa.select(self.table).where(condition)
                )
                for rows in found.mappings().partitions():
                    part = pa.Table.from_pylist([dict(row) for row in rows], schema)
                    parts.append(part if where is None else part.filter(where))
        return pa.concat_tables(parts)

    def _indexes(self) -> list[sa.Index]:
        table = sa.Table(
            self.table.name, sa.MetaData(), *(c._copy() for c in self.table.columns), schema=self.table.schema
        )
        digest = database_writes.digest(self.table.fullname)
        indexes = [sa.Index(f"drainmark_{digest}_ids", table.c[SEQUENCE_ID])]
        if self._described.keys:
            keys = (table.c[key] for key in self._described.keys)
            indexes.append(sa.Index(f"drainmark_{digest}_keys", *keys))
        return indexes
