"""`sink(stream, DatabaseAppend(…))` and `DatabaseUpsert(…)`: database tables from which a rewind takes rows back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from drainmark.jobs.graph.ports import Input
from drainmark.jobs.operators.sinks.sink import Sink, made_for
from drainmark.jobs.printable import markdown_code
from drainmark.jobs.protocol.records.manifest import TableRole

__all__ = ["DatabaseAppend", "DatabaseUpsert"]

_CONDITION = (
    "as long as the database keeps what it has acknowledged, and others leave drainmark_applied and rows with a"
    " _sequence_id alone; rows without one are theirs, and no rewind touches them"
)
_SETTING = re.compile(r"[a-z][a-z0-9_]*")
_TABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*")
_LENGTH_MAX = 63  # PostgreSQL cuts longer names
_OWN = "drainmark_"


def _label(database: str, table: str) -> str:
    """Return the name of a sink; a database's "name" that is refused may be a URL with a password, and is left out."""
    return f"{database}_{table}" if _SETTING.fullmatch(database) else table


@dataclass(frozen=True)
class DatabaseAppend:
    """A table of a PostgreSQL or SQLite database that gets every row of a stream, with its `_sequence_id`.

    The rows of a group and the new version of the table are one transaction: `drainmark_applied` beside the
    table has a row for each sink, which every transaction locks and checks first. So rows arrive exactly once, no
    matter which process publishes, and a paused process that comes late changes nothing. A rewind to N deletes rows
    of ids above N.

    The table is created if it is absent. A table that others made must have a column `_sequence_id` (a 64-bit integer,
    nullable). A column that would round or cut values is refused at the start, such as `numeric(5,2)` for
    `decimal(10,4)` or `real` for `double`. Drainmark tries the table's constraints and triggers on the rows of each
    group before it commits the group; a row that breaks one halts the region, and the error names it. A value that the
    database cannot hold also halts it: NaN in SQLite (which would make it null), a null in an `INTEGER PRIMARY KEY` of
    SQLite (which would make it a number), in PostgreSQL a text with a NUL, or with blanks at its end that are too many
    for a `varchar(n)` (which would cut them off), a year after 9999 in both.

    The sink's history keeps the rows, too, as far as the rewind horizon reaches: `dm.read(at=N)` reads the history,
    and older rows in the database. `backfill --again` replaces the rows of a file.

    Attributes:
        database: name of the database in the setting `databases`, which has its SQLAlchemy URL with the credentials.
            The credentials are never in the code, in checkpoint rows, or in messages.
        table: name in the database, or `schema.name`: letters, digits and `_`, at most 63 characters. Names that begin
            with `drainmark_` are Drainmark's own.

    Example:
        # drainmark.toml: [databases]
        #                 crm = "sqlite:///crm.db"
        dm.sink(orders, dm.DatabaseAppend("crm", "orders"))
    """

    database: str
    table: str

    @property
    def label(self) -> str:
        return _label(self.database, self.table)

    def operator(self, *, name: str, inputs: tuple[Input, ...]) -> DatabaseAppendSink:
        return made_for(DatabaseAppendSink, self, name, inputs)


@dataclass(frozen=True)
class DatabaseUpsert:
    """A table of a PostgreSQL or SQLite database with one row for each key.

    This is the last row by (sequence id, position in the file).

    It differs from `DatabaseAppend` in this: a row replaces the row of its key. A rewind to N gives each key that
    changed after N its last row of ids up to and including N, or deletes it. Null keys are keys. Texts are one key only
    if they are identical: a key column of PostgreSQL that treats other texts as equal (`citext`, `char(n)`, a collation
    that is not deterministic) is refused; in SQLite the collation of a key column is ignored. Columns of the table that
    the stream lacks keep their values. If the stream has the key of a row that others wrote, the region takes it over.

    Attributes:
        database, table: as for `DatabaseAppend`.
        keys: key columns.

    Example:
        # drainmark.toml: [databases]
        #                 crm = "sqlite:///crm.db"
        dm.sink(orders, dm.DatabaseUpsert("crm", "orders_by_id", keys=["id"]))
    """

    database: str
    table: str
    keys: Sequence[str]

    @property
    def label(self) -> str:
        return _label(self.database, self.table)

    def operator(self, *, name: str, inputs: tuple[Input, ...]) -> DatabaseUpsertSink:
        return made_for(DatabaseUpsertSink, self, name, inputs)


@dataclass(frozen=True, kw_only=True)
class DatabaseSink(Sink):
    """The base of the sinks in databases."""

    because: ClassVar[str] = "rows and the version of the checkpoint row that has them are one transaction"
    external: ClassVar[str] = "database"

    database: str
    table: str

    @property
    def tables(self) -> tuple[str, ...]:
        return (f"database/{self.database if _SETTING.fullmatch(self.database) else '?'}/{self.table}",)

    @property
    def format(self) -> str:
        return "database"

    @property
    def condition(self) -> str | None:
        return _CONDITION

    @property
    def options(self) -> Mapping[str, Any]:
        return {"database": self.database, "table": self.table}

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), **self.options}

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if "://" in self.database or not _SETTING.fullmatch(self.database):
            message = "the first argument is no name of a database"  # not shown: it may be a URL with a password
            yield "DATABASE_NAME", message, "name one of the setting `databases`: lower case letters, digits, _"
        if not _TABLE.fullmatch(self.table) or any(len(part) > _LENGTH_MAX for part in self.table.split(".")):
            message = f"{self.table!r} is no name of a database table"
            allowed = f"letters, digits and _, at most {_LENGTH_MAX}; before it the schema and a point if need be"
            yield "TABLE_NAME", message, allowed
        if self.table.rpartition(".")[2].lower().startswith(_OWN):
            message = f"{self.table!r} is called as tables of Drainmark are"
            yield "TABLE_NAME", message, f"a name that does not begin with {_OWN}"


@dataclass(frozen=True, kw_only=True)
class DatabaseAppendSink(DatabaseSink):
    """A sink that inserts the rows of a group; a rewind deletes the rows of later ids."""

    kind: ClassVar[str] = "database-append"
    summary: ClassVar[str] = "database table of all rows"
    role: ClassVar[TableRole] = TableRole.COPY


@dataclass(frozen=True, kw_only=True)
class DatabaseUpsertSink(DatabaseSink):
    """A sink that updates and inserts the last row of each key; the history may be the state before it."""

    kind: ClassVar[str] = "database-upsert"
    summary: ClassVar[str] = "database table of one row a key"
    role: ClassVar[TableRole] = TableRole.UPSERT

    @property
    def takes_changes(self) -> bool:
        return True

    def described(self) -> str:
        return f"One row for each value of {', '.join(map(markdown_code, self.keys))}: the last one."

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if not self.keys:
            yield "NO_KEYS", "an upsert sink has no keys", "name the key columns, or use DatabaseAppend"
        yield from super().problems()
