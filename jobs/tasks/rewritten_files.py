"""Files of a table that tasks rewrite: some of their rows, or the rows of several files together.

A task streams rows from the old files into the new ones, so a bounded number of rows is in memory, however large a file
is. If the layout has an order, a task holds and sorts all its rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.tasks.executor import Facts
from drainmark.jobs.tasks.file_shares import FileShare, RowFile
from drainmark.jobs.tasks.layout import NO_LAYOUT, Layout
from drainmark.jobs.tasks.parquet_files import WriteTask
from drainmark.jobs.tasks.places import Place

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """The rewriting of files; a share is the names of files whose rows come together.

    Attributes:
        source: the place of the files.
        place, folder: of the new files.
        schema: columns of the new files; those that an old one lacks are null.
        where: the condition for rows to stay; None for all rows.
        layout: of the table.
    """

    source: Place
    place: Place
    folder: str
    schema: pa.Schema
    where: pa.compute.Expression | None = None
    layout: Layout = NO_LAYOUT

    def work(self, share: Sequence[str]) -> Iterator[Facts]:
        """Write the rows of a share to new files, and yield the facts of these."""
        return WriteTask(self.place, self.folder, self.layout).work(self._rows(share))

    def _rows(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        kept = self._kept(names)
        if self.layout.order:
            kept = iter(self.layout.of_rows(pa.Table.from_batches(kept, self.schema)).to_batches())
        return kept

    def _kept(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        files = tuple(RowFile(path=name) for name in names)
        for batch in FileShare(files=files, place=self.source, schema=self.schema).rows():
            yield batch if self.where is None else batch.filter(self.where)
