"""Files of a table that tasks rewrite: some of their rows, or the rows of several files together.

A task streams rows from the old files into the new ones, so a bounded number of rows is in memory, however large a file
is. If the layout has an order, a task holds and sorts all its rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.tasks.file_shares import FileShare, RowFile
from drainmark.jobs.tasks.layout import NO_LAYOUT, Layout
from drainmark.jobs.tasks.parquet_files import WriteTask
from drainmark.jobs.tasks.places import Place

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """The work of one task: it writes the rows of some files to new files, and returns the facts of the new files.

    Attributes:
        source: the place of the files.
        place, folder: of the new files.
        parts: names of the files to combine, by number of the task.
        schema: columns of the new files; those that an old one lacks are null.
        where: the condition for rows to stay; None for all rows.
        layout: of the table.
    """

    source: Place
    place: Place
    folder: str
    parts: tuple[tuple[str, ...], ...]
    schema: pa.Schema
    where: pa.compute.Expression | None = None
    layout: Layout = NO_LAYOUT

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        write = WriteTask(self.place, self.folder, self.layout)
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            yield from write(self._rows(self.parts[number]))

    def _rows(self, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        kept = self._kept(names)
        if self.layout.order:
            kept = iter(self.layout.of_rows(pa.Table.from_batches(kept, self.schema)).to_batches())
        return kept

    def _kept(self, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        files = tuple(RowFile(path=name) for name in names)
        for batch in FileShare(files=files, place=self.source, schema=self.schema).rows():
            yield batch if self.where is None else batch.filter(self.where)
