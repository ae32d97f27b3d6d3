"""Visible tables of one row a key that have partitions, or an order: merged by us.

What `deltalake` merges has its own order, and statistics of its own. Here the files that hold a changed key are written
anew as the sink asks, beside the log, where `gc` knows what merges replaced. A row whose partition changes leaves its
old one in the same commit, for it is found by its key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.keyed_rows import key_codes
from drainmark.jobs.tasks.layout import Layout
from drainmark.resources.delta import commits
from drainmark.resources.delta.commit_log import SoleWriter
from drainmark.resources.delta.commits import Act, Faults, Published
from drainmark.resources.delta.compaction import SMALL_FILE_BYTES
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.merge import KEEP_COLUMN, arrow_schema, as_table, require_unique, rows_to_restore
from drainmark.resources.delta.staging import Staging, verify
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

_FOLDED_FILES, _FOLDED_BYTES = 8, 64 * 2**20
"""So many small files of a partition are written as one with its next rows, up to so many bytes of them."""

_HELD_BYTES = 256 * 2**20
"""Rows in memory are written when there are so many of them."""


class LaidOutTable(ManagedTable):
    """A visible table of an upsert sink with `partition_by` or `cluster_by`.

    Args:
        root, region, faults, writer: as for `ManagedTable`.
        layout: of its files.
    """

    def __init__(
        self, root: Folder, region: str, layout: Layout, *, faults: Faults | None, writer: SoleWriter | None
    ) -> None:
        super().__init__(root, region, faults=faults, writer=writer)
        self.layout = layout

    def merge(self, version: int, rows: pa.Table, keys: Sequence[str]) -> Published:
        def prepare(table: Any) -> Act:
            source = as_table(rows, arrow_schema(table), self.folder)
            require_unique(source, keys, self.folder)
            return self._replacing(table, version, source, source, keys)

        return self._commit("publish", version, prepare)

    def rewind_upsert(
        self,
        version: int,
        to: int,
        history: ManagedTable,
        keys: Sequence[str],
        columns: Sequence[str],
        *,
        images: Sequence[str] = (),
        since: int | None = None,
    ) -> Published:
        def prepare(table: Any) -> Act:
            changed = rows_to_restore(history.folder, images, to, keys, columns, since=since)
            back = _typed(changed.filter(changed[KEEP_COLUMN]), arrow_schema(table))
            return self._replacing(table, version, changed, back, keys)

        return self._commit("rewind_table", version, prepare)

    def _replacing(self, table: Any, version: int, changed: pa.Table, rows: pa.Table, keys: Sequence[str]) -> Act:
        """Put rows in the place of those of all changed keys.

        Args:
            changed: has a row a key.
            rows: with the table's columns.
        """
        rewriting = _Rewriting(self.folder, self.layout, arrow_schema(table), changed, keys)
        live = commits.live_files(table, self.folder)
        near = _near(table, changed, keys)
        for file in live:
            if near is None or file.path in near:
                rewriting.take(file)
        if rows.num_rows:
            rewriting.fold([file for file in live if file not in rewriting.leaving], rows)
        adds = rewriting.written(rows)
        verify(self.folder, adds)
        return lambda: commits.transact(table, self.region, version, adds=adds, removes=rewriting.leaving)


class _Rewriting:
    """The files of a table that are written anew, and those that take their place."""

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
        """Write a file anew without the rows of changed keys, if it has any."""
        found = self._folder.read([file.path], self._schema, list(self._keys))
        if not self._is_changed(found).any():
            return
        self._keep(file)

    def fold(self, others: Sequence[StagedFile], rows: pa.Table) -> None:
        """Write small files anew together with the rows that come to their partition, where there are many."""
        layout = self._staging.layout
        targets = {partition for partition, _ in layout.parts(layout.of_rows(rows))}
        for partition in sorted(targets):
            small = [file for file in others if file.partition == partition and file.size < SMALL_FILE_BYTES]
            if len(small) >= _FOLDED_FILES:
                for file in _up_to_bytes(sorted(small, key=lambda file: file.size)):
                    self._keep(file)

    def written(self, rows: pa.Table) -> tuple[StagedFile, ...]:
        """Write what is left, and rows; return all files that were written."""
        self._held.append(rows)
        self._write()
        return tuple(self._adds)

    def _keep(self, file: StagedFile) -> None:
        import numpy as np
        import pyarrow as pa

        rows = self._folder.read([file.path], self._schema)
        self.leaving.append(file)
        self._held.append(rows.filter(pa.array(np.logical_not(self._is_changed(rows)))))
        if sum(held.nbytes for held in self._held) > _HELD_BYTES:
            self._write()

    def _is_changed(self, rows: pa.Table) -> Any:
        import numpy as np

        of_rows, of_changed = key_codes([rows, self._changed], self._keys)
        return np.isin(of_rows, of_changed)

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


def _near(table: Any, changed: pa.Table, keys: Sequence[str]) -> Collection[str] | None:
    """Return the paths of the files whose statistics do not say that they have none of some keys; None for all."""
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
    """Say whether a key has an order that does not depend on who asks."""
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind) or kinds.is_date32(kind) or kinds.is_string(kind))


def _typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows in the columns of a table, which may have got some since; those are null."""
    import pyarrow as pa

    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
