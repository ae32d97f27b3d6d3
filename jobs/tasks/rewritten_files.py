"""Files of a table that tasks write anew: some of their rows, or those of several files together.

A task streams what it reads into what it writes, so a bounded number of rows is in memory, however large a file is;
only where a layout asks for an order all rows of a task are sorted at once.
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
    """What one task does: it writes the rows of some files anew, and gives the facts of the files that have them.

    Attributes:
        source: where the files are.
        place, folder: where the new ones go.
        parts: names of the files whose rows go together, by number of the task.
        schema: columns of the new files; those that an old one lacks are null.
        where: which rows stay; None for all.
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
