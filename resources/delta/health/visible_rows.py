"""The rows that a visible table must hold, read from its history, when the table itself cannot be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.row_order import row_counts
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile, TableRole
from drainmark.jobs.state.keyed_parts import last_of_keys
from drainmark.jobs.state.keyed_rows import kept_columns, present
from drainmark.jobs.tasks.parquet_shares import RowFile
from drainmark.resources.delta.keyed.keyed_changes import KeyedChanges
from drainmark.resources.delta.keyed.keyed_merge import KeyedMerge
from drainmark.resources.delta.merge import arrow_schema, of_ids, up_to
from drainmark.resources.delta.staging import Executors, Staging
from drainmark.resources.delta.table_files import TableFiles
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.protocol.records.manifest import RowsOf


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleRows:
    """The rows of one visible table at one id; few of them are in memory at a time.

    Attributes:
        table: has one row for each key, or the rows of one id.
        history: folder of its history.
        files: all files of the history that may have such rows.
        to: the id; rows with later ids do not count.
        executors: who finds the last row of each key.
    """

    table: RegionTable
    history: Folder
    files: Sequence[StagedFile]
    to: int
    executors: Executors

    def written(self, opened: Any, staging: Staging) -> tuple[StagedFile, ...]:
        """Write the rows to files, in the columns of the open table, and return the facts of the files."""
        schema = arrow_schema(opened)
        if self.table.role is TableRole.OVERWRITE:
            ids, near = self._newest
            return staging.rewrite([[file] for file in near], schema, of_ids(ids), source=self.history)
        later = tuple(replace(RowFile.of(file), through=self.to) for file in self.files)
        changes = KeyedChanges(folder=self.history, keys=self.table.keys, later=later, deletes=self.table.deletes)
        merge = KeyedMerge(folder=staging.folder, layout=staging.layout, executors=self.executors)
        return merge.rebuilt(opened, changes)

    def counts(self) -> Counter[int]:
        """Return the number of rows by id."""
        if self.table.role is TableRole.OVERWRITE:
            ids, near = self._newest
            return row_counts(rows.filter(of_ids(ids)) for rows in TableFiles(self.history).pieces(near, [SEQUENCE_ID]))
        columns = kept_columns(self.table, [*self.table.keys, SEQUENCE_ID])

        def read() -> Iterator[pa.Table]:
            return (rows.filter(up_to(self.to)) for rows in TableFiles(self.history).pieces(self.files, columns))

        return row_counts(map(present, last_of_keys(read, sum(file.rows for file in self.files), self.table.keys)))

    @property
    def _newest(self) -> RowsOf:
        return TableFiles(self.history).newest(self.files, self.to, deletes=self.table.deletes)
