"""A merge by key: the files that hold a changed key are rewritten, few rows at a time.

A merge of `deltalake` has all rows of these files in memory, orders them in its own way, and writes some wrong bounds.
Here the files get the layout of the sink. They are written beside the log, where `gc` finds files that merges replaced.
If a row moves to another partition, the same commit removes it from the old one, since rows are found by key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.keyed_rows import is_among, key_codes
from drainmark.jobs.tasks.layout import Layout
from drainmark.resources.delta import commits
from drainmark.resources.delta.commits import Act
from drainmark.resources.delta.merge import KEEP_COLUMN, arrow_schema, typed
from drainmark.resources.delta.staging import Staging, verify
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

_SMALL_BYTES = 8 * 2**20
"""A file below this size is worth folding: files written here are larger, unless they have few rows."""

_FOLDED_FILES, _FOLDED_BYTES = 8, 64 * 2**20
"""From this number on, small files of a partition are rewritten with its next rows, at most so many bytes of them."""

_HELD_BYTES = 64 * 2**20
"""Rows in memory are written when they have more bytes than this."""


@dataclass(frozen=True, slots=True)
class KeyedRewrite:
    """One merge on a table object that was checked, and that is not refreshed before it commits.

    Attributes:
        opened: the table.
        folder: of the table.
        region: the region that commits.
        version: `txnVersion` of the commit.
        keys: key columns.
        layout: of the files.
    """

    opened: Any
    folder: Folder
    region: str
    version: int
    keys: Sequence[str]
    layout: Layout

    def upsert(self, rows: pa.Table) -> Act:
        """Write files in which rows replace the rows of their keys, or are added; return their commit."""
        return self._replacing(rows, rows)

    def restore(self, rows: pa.Table) -> Act:
        """Write files in which the rows marked keep replace the rows of their keys, and the keys of the other `rows`
        are gone; return their commit."""
        return self._replacing(rows, typed(rows.filter(rows[KEEP_COLUMN]), arrow_schema(self.opened)))

    def _replacing(self, changed: pa.Table, rows: pa.Table) -> Act:
        """Replace the rows of all changed keys by `rows`.

        Args:
            changed: one row for each changed key.
            rows: with the table's columns.
        """
        rewriting = _Rewriting(self.folder, self.layout, arrow_schema(self.opened), changed, self.keys)
        live = commits.live_files(self.opened, self.folder)
        near = _near(self.opened, changed, self.keys)
        for file in live:
            if file.path in near:
                rewriting.take(file)
        if rows.num_rows:
            gone = {file.path for file in rewriting.leaving}
            rewriting.fold([file for file in live if file.path not in gone], rows)
        adds, removes = rewriting.written(rows), rewriting.leaving
        verify(self.folder, adds)
        return lambda: commits.transact(self.opened, self.region, self.version, adds=adds, removes=removes)


class _Rewriting:
    """The files of a table that are rewritten, and the new files that replace them."""

    def __init__(
        self, folder: Folder, layout: Layout, schema: pa.Schema, changed: pa.Table, keys: Sequence[str]
    ) -> None:
        self.leaving: list[StagedFile] = []
        self._folder = folder
        self._schema = schema
        self._changed = changed
        self._keys = keys
        self._staging = Staging.beside_log(folder, layout)
        self._held: list[pa.Table] = []
        self._adds: list[StagedFile] = []

    def take(self, file: StagedFile) -> None:
        """Rewrite a file without the rows of changed keys, if it has any."""
        if any(self._is_changed(rows).any() for rows in self._pieces(file, self._keys)):
            self._keep(file)

    def fold(self, others: Sequence[StagedFile], rows: pa.Table) -> None:
        """Rewrite the small files of a partition together with its new rows, if these files are many."""
        layout = self._staging.layout
        targets = {partition for partition, _ in layout.parts(layout.of_rows(rows))}
        for partition in sorted(targets):
            small = [file for file in others if file.partition == partition and file.size < _SMALL_BYTES]
            if len(small) >= _FOLDED_FILES:
                for file in _up_to_bytes(sorted(small, key=lambda file: file.size)):
                    self._keep(file)

    def written(self, rows: pa.Table) -> tuple[StagedFile, ...]:
        """Write the rows that are still in memory, and `rows`; return all files that were written."""
        self._held.append(rows)
        self._write()
        return tuple(self._adds)

    def _keep(self, file: StagedFile) -> None:
        import numpy as np
        import pyarrow as pa

        self.leaving.append(file)
        for rows in self._pieces(file, self._schema.names):
            is_changed = self._is_changed(rows)
            self._held.append(rows.filter(pa.array(np.logical_not(is_changed))) if is_changed.any() else rows)
            if sum(held.nbytes for held in self._held) > _HELD_BYTES:
                self._write()

    def _pieces(self, file: StagedFile, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield some columns of a file in the types of the table, few rows at a time."""
        import pyarrow as pa

        schema = pa.schema([self._schema.field(name) for name in columns])
        for rows in self._folder.read_pieces(file.path, file.size, columns):
            yield typed(rows, schema)

    def _is_changed(self, rows: pa.Table) -> Any:
        """Return a flag for each row: its key is one of the changed keys. With several key columns, a row that matches
        in each column alone is then checked by its whole key."""
        import numpy as np
        import pyarrow as pa

        flags = np.ones(rows.num_rows, dtype=bool)
        for key in self._keys:
            flags &= is_among(rows.column(key), self._changed.column(key)).to_numpy()
        places = np.flatnonzero(flags)
        if len(self._keys) > 1 and len(places):
            of_rows, of_changed = key_codes([rows.select(self._keys).take(pa.array(places)), self._changed], self._keys)
            flags[places] = np.isin(of_rows, of_changed)
        return flags

    def _write(self) -> None:
        import pyarrow as pa

        self._adds += self._staging.write(pa.concat_tables(self._held), "merged")
        self._held = []


def _up_to_bytes(files: Sequence[StagedFile]) -> Iterator[StagedFile]:
    size = 0
    for file in files:
        size += file.size
        if size > _FOLDED_BYTES:
            return
        yield file


def _near(table: Any, changed: pa.Table, keys: Sequence[str]) -> Collection[str]:
    """Return the paths of the files that may have some of the changed keys, by their statistics."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not changed.num_rows:
        return ()
    actions = commits.actions_of(table)
    near = pa.repeat(True, actions.num_rows)
    for key in keys:
        column = changed.column(key)
        names = (f"min.{key}", f"max.{key}")
        has_bounds = set(names) <= set(actions.column_names) and "." not in key
        if not has_bounds or column.null_count or not _is_ordered(column.type):
            continue
        wanted = pc.min_max(column)
        low, high = (actions.column(name).combine_chunks() for name in names)
        apart = pc.or_kleene(pc.greater(low, wanted["max"]), pc.less(high, wanted["min"]))
        near = pc.and_(near, pc.invert(pc.fill_null(apart, False)))
    return set(actions.column("path").filter(near).to_pylist())


def _is_ordered(kind: pa.DataType) -> bool:
    """Say whether every engine orders the values of a key's type in the same way."""
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind) or kinds.is_date32(kind) or kinds.is_string(kind))
