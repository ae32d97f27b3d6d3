"""The changed keys of a table with one row for each key, and the row that each of them gets: in files, or in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from drainmark.jobs.frames.arrow import typed
from drainmark.jobs.frames.tags import GONE
from drainmark.jobs.state.keyed_parts import in_part
from drainmark.jobs.state.keyed_rows import last_per_key, present
from drainmark.jobs.tasks.keyed_files import last_rows, with_gone
from drainmark.jobs.tasks.parquet_shares import RowFile, wanted
from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.delta.merge import arrow_schema, as_table, require_unique
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.resources.delta.table_files import TableFiles

Pair = tuple["pa.Table", "pa.Table"]
"""A row for each changed key, and a row for each of them that has a row from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRows:
    """Rows in memory, one for each key: they replace the rows of their keys, or are added.

    Attributes:
        keys: key columns; nulls are equal.
        are_new: the keys get these rows; if not, only the rows that they have leave.
        size: bytes of files with the rows: there are none.
        above: as for `KeyedChanges`: it is not known.
    """

    rows: pa.Table
    keys: tuple[str, ...]
    are_new: bool = True
    size: ClassVar[int] = 0
    above: ClassVar[None] = None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.rows.column_names)

    def at_once(self, schema: pa.Schema, table: Folder) -> Pair:
        """Return the rows in the columns of a table.

        Raises:
            AccountingError: two rows have the same key: both would be added.
            SchemaMismatch: a column is missing, unknown, or of another type.
        """
        rows = require_unique(as_table(self.rows, schema, table), self.keys, table)
        return rows, rows if self.are_new else rows.slice(0, 0)

    def without_rows(self) -> GivenRows:
        """Return the same changed keys, which get no rows."""
        return replace(self, are_new=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedChanges:
    """Rows in files of a history, which has one row for each id and key that it changed.

    Attributes:
        folder: of the history.
        keys: key columns; nulls are equal.
        later: files; a key has changed if it is in one of their rows.
        columns: those that are visible, if the table has more.
        earlier: files with the rows that come back. A changed key gets its last row among them; if it has none, its row
            leaves. None if changed keys get their last rows in `later`.
        deletes: rows of the history may be gone; a key with such a last row gets none.
        above: the changes have ids above this one; None if that is not known.
    """

    folder: Folder
    keys: tuple[str, ...]
    later: tuple[RowFile, ...]
    columns: tuple[str, ...] = ()
    earlier: tuple[RowFile, ...] | None = None
    deletes: bool = False
    above: int | None = None

    @property
    def size(self) -> int:
        """Return the bytes of the files with changed keys."""
        return sum(file.size for file in self.later)

    def without_rows(self) -> KeyedChanges:
        """Return the same changed keys, which get no rows."""
        return replace(self, earlier=())

    def at_once(self, schema: pa.Schema, table: Folder) -> Pair:
        """Return all changed rows; they are in memory, with one row group of earlier rows at a time."""
        return self.part(schema, 0, 1)

    def part(self, schema: pa.Schema, number: int, count: int) -> Pair:
        """Return the changed rows in part `number` of `count` of the keys, in the columns of `schema`."""
        import pyarrow as pa

        names, schema = schema.names, self.kept(schema)
        later = [in_part(rows, self.keys, number, count) for rows in self._rows(self.later, schema)]
        changed = rows = last_per_key(pa.concat_tables([schema.empty_table(), *later]), self.keys)
        if self.earlier is not None:
            rows = last_rows(self._rows(self.earlier, schema), changed, self.keys)
        return changed.select(names), present(rows).select(names)

    def kept(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns to read from the history for a table of these columns."""
        return with_gone(schema) if self.deletes else schema

    def _rows(self, files: Sequence[RowFile], schema: pa.Schema) -> Iterator[pa.Table]:
        for file in files:
            for rows in self.folder.read_pieces(file.path, file.size, schema.names):
                yield wanted(file, typed(rows, schema))


class History(Protocol):
    """The table of one row for each id and key that it changed."""

    @property
    def folder(self) -> Folder: ...
    @property
    def files(self) -> TableFiles: ...


@dataclass(frozen=True, slots=True)
class Restored:
    """The keys of a visible table that changed after an id: each gets its last row up to an id back, if any.

    Attributes:
        to: the id that stays the last.
        history: it must not be rewound yet.
        keys: key columns.
        columns: the columns of the history that are visible in the table.
        images: Parquet files below the history's folder, with one row for each key and its `_sequence_id`; they stand
            for changes that were dropped.
        since: an id (exclusive), above which keys changed; `to` by default.
    """

    to: int
    history: History
    keys: Sequence[str]
    columns: Sequence[str]
    images: Sequence[str] = ()
    since: int | None = None

    @property
    def after(self) -> int:
        return self.to if self.since is None else self.since

    def changes(self) -> KeyedChanges:
        """Return the changed keys and their rows."""
        folder = self.history.folder
        opened = delta_tables.open_table(folder)
        live = [(file, RowFile.of(file)) for file in file_lists.live_files(opened, folder)]
        more = [RowFile(path=path, size=folder.size(path)) for path in self.images]
        later = [*(rows for file, rows in live if (file.last_id or 0) > self.after), *more]
        earlier = [*(rows for file, rows in live if (file.first_id or 0) <= self.to), *more]
        return KeyedChanges(
            folder=folder,
            keys=tuple(self.keys),
            columns=tuple(self.columns),
            later=tuple(replace(rows, above=self.after) for rows in later),
            earlier=tuple(replace(rows, through=self.to) for rows in earlier),
            deletes=GONE in arrow_schema(opened).names,
            above=self.after,
        )

    def everything(self) -> KeyedChanges:
        """Return all keys of the history, each with its last row up to `to`."""
        found = self.changes()
        return replace(found, later=found.earlier or (), earlier=None)


def schema_of(history: Folder, columns: Sequence[str]) -> pa.Schema:
    """Return some columns of a history."""
    import pyarrow as pa

    schema = arrow_schema(delta_tables.open_table(history))
    return pa.schema([schema.field(name) for name in columns])
