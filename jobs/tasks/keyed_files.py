"""A merge by key as work of tasks: files of a table are rewritten without the rows of changed keys, and with new rows.

If few keys have changed, each task has all of them, and streams the files. If many have, tasks first split all rows
into parts of the keys, and then merge one part after the other: so the rows of one part are in memory, however many
keys have changed.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from drainmark.jobs.frames.tags import GONE
from drainmark.jobs.protocol.records.deletion_vectors import encoded
from drainmark.jobs.state.keyed_rows import has_keys, last_per_key, present
from drainmark.jobs.tasks.executor import Facts
from drainmark.jobs.tasks.key_bounds import Bounds, KeyParts, KeySample, bounds_of, groups_with, joined
from drainmark.jobs.tasks.layout import NO_LAYOUT, Layout
from drainmark.jobs.tasks.parquet_files import WriteTask, row_groups, write_groups
from drainmark.jobs.tasks.parquet_shares import ROW_NUMBER, FileShare, RowFile, dead_rows, numbered_rows
from drainmark.jobs.tasks.places import Place

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_SPLIT_AT_ONCE_BYTES = 32 * 2**20
_SORTED_AT_ONCE_BYTES = 256 * 2**20

_SAMPLED_BYTES, _SAMPLED_AT_LEAST, _SAMPLED_GROUPS = 128 * 2**10, 16, 16
"""Of so many bytes of a file, one key is in a sample; the least number of keys; the most row groups to read."""


def with_gone(schema: pa.Schema) -> pa.Schema:
    """Return columns of a table, and the tag that tells which rows of its history are gone."""
    import pyarrow as pa

    return schema.append(pa.field(GONE, pa.bool_()))


# --- few changed keys ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTask:
    """The search for files with changed keys; a share is a file.

    Attributes:
        place: of the files.
        changed: has the key columns of the changed keys, in the types of the table.
        marks: also find the rows, for a deletion vector.
    """

    place: Place
    changed: pa.Table
    marks: bool = False

    def work(self, share: RowFile) -> Iterator[Facts]:
        """Yield a finding about the file if it has rows of changed keys: the arguments of a `FoundRows`."""
        import numpy as np

        keys, dead = self.changed.schema, dead_rows(share.vector, self.place.opened)
        found = np.zeros(0, np.int64)
        for rows in row_groups(numbered_rows(share, self.place, keys, partial(groups_with, self.changed))):
            numbers = rows.column(ROW_NUMBER).to_numpy()[has_keys(rows, self.changed, keys.names)]
            found = np.append(found, np.setdiff1d(numbers, dead, assume_unique=True))
            if found.size and not self.marks:
                break
        if found.size:
            data = encoded(np.append(dead, found)) if self.marks else b""
            yield {"path": share.path, "rows": int(found.size), "vector": base64.b64encode(data).decode()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows:
    """The rows of changed keys that a file has.

    Attributes:
        path: of the file.
        rows: number of these rows; of some of them if the task did not look for all.
        vector: these rows and those that had left before, as a deletion vector, in base 64; "" if none is wanted.
    """

    path: str
    rows: int
    vector: str

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRewrite:
    """Files that are rewritten together, and the new rows that are written with them, if any."""

    files: tuple[RowFile, ...]
    rows: pa.Table | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceTask:
    """The rewriting of files without the rows of changed keys.

    Attributes:
        place: of the files, old and new.
        schema: columns of the new files.
        changed: as for `FindTask`.
        layout: of the new files.
    """

    place: Place
    schema: pa.Schema
    changed: pa.Table
    layout: Layout

    def work(self, share: FileRewrite) -> Iterator[Facts]:
        """Write the rows that stay, and the new ones; yield the facts of the new files."""
        return _written(self._rows(share), self.place, self.layout)

    def _rows(self, share: FileRewrite) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        batches = FileShare(files=share.files, place=self.place, schema=self.schema).rows()
        for rows in row_groups(batches, _SPLIT_AT_ONCE_BYTES):  # each time all changed keys are compared
            is_changed = has_keys(rows, self.changed, self.changed.column_names)
            yield rows.filter(pa.array(np.logical_not(is_changed))) if is_changed.any() else rows
        if share.rows is not None:
            yield share.rows


# --- many changed keys --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFile:
    """A file with the rows of a share, split by key.

    Attributes:
        path: below its place.
        parts: the part of the keys that each row group has rows of.
        counts: the number of rows in each row group.
        bounds: of the keys.
    """

    path: str
    parts: Sequence[int]
    counts: Sequence[int]
    bounds: Bounds

    def rows(self, place: Place, part: int) -> Iterator[pa.Table]:
        """Yield the rows of one part of the keys, a bounded number at a time."""
        import pyarrow.parquet as pq

        groups = [group for group, number in enumerate(self.parts) if number == part]
        if groups:
            with pq.ParquetFile(place.opened(self.path)) as file:
                for group in groups:
                    yield file.read_row_group(group)


@dataclass(frozen=True, slots=True)
class SampleTask:
    """The sampling of keys; a share is the key columns of some files. Also rows that have left a file are sampled."""

    def work(self, share: FileShare) -> Iterator[Facts]:
        """Yield the facts of a `KeySample` for each file that has rows."""
        import numpy as np
        import pyarrow as pa

        for file in share.files:
            batches = list(numbered_rows(file, share.place, share.schema, _some_groups))
            if batches:
                found = pa.Table.from_batches(batches)
                count = min(found.num_rows, _SAMPLED_AT_LEAST + file.size // _SAMPLED_BYTES)
                some = found.take(pa.array(np.linspace(0, found.num_rows - 1, count).astype(np.int64)))
                yield asdict(KeySample.of(some.select(share.schema.names), file.size))


def _some_groups(metadata: pq.FileMetaData) -> range:
    """Return row groups from everywhere in a file."""
    return range(0, metadata.num_row_groups, -(-metadata.num_row_groups // _SAMPLED_GROUPS) or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTask:
    """The splitting of rows by key; a share is some files.

    Attributes:
        place: of the files with the split rows.
        parts: of the keys.
    """

    place: Place
    parts: KeyParts

    def work(self, share: FileShare) -> Iterator[Facts]:
        """Write a file of the rows of a share, and yield the facts of a `SplitFile`."""
        counts, bounds = list[tuple[int, int]](), list[Bounds]()
        written = write_groups(self._groups(share, counts, bounds), self.place)
        if written is not None:
            parts, rows = zip(*counts, strict=True)
            yield {"path": written.name, "parts": parts, "counts": rows, "bounds": joined(bounds)}

    def _groups(self, share: FileShare, counts: list[tuple[int, int]], bounds: list[Bounds]) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        for rows in row_groups(share.rows(), _SPLIT_AT_ONCE_BYTES):
            number_of = self.parts.numbers(rows)
            order = np.argsort(number_of, kind="stable")
            ordered = rows.take(pa.array(order))
            edges = np.searchsorted(number_of[order], np.arange(self.parts.count + 1)).tolist()
            for number, (first, end) in enumerate(itertools.pairwise(edges)):
                if end > first:
                    counts.append((number, end - first))
                    yield ordered.slice(first, end - first)
            if rows.num_rows:
                bounds.append(bounds_of(rows, self.parts.keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask:
    """The merging of parts of the keys; a share is the numbers of some parts, whose rows come into one file.

    Attributes:
        place: of all files.
        schema: columns of the new files.
        keys: key columns.
        layout: of the new files.
        later: have the changed keys.
        earlier: have the rows that come back; None if a key gets its last row in `later`.
        others: have the rows of the files that leave the table.
        deletes: rows of `later` and `earlier` may be gone; a key with such a last row gets none.
        keep: name of a column that marks the new rows, and others do not stay: a key without a new row then has a row
            that is not marked. "" for none.
    """

    place: Place
    schema: pa.Schema
    keys: tuple[str, ...]
    layout: Layout
    later: tuple[SplitFile, ...]
    earlier: tuple[SplitFile, ...] | None
    others: tuple[SplitFile, ...] = ()
    deletes: bool = False
    keep: str = ""

    def work(self, share: Sequence[int]) -> Iterator[Facts]:
        """Merge parts, and yield the facts of the new files."""
        return _written((rows for part in share for rows in self._merged(part)), self.place, self.layout)

    def _merged(self, part: int) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        kept = with_gone(self.schema) if self.deletes else self.schema
        changed = pa.concat_tables([kept.empty_table(), *self._rows(self.later, part, kept)])
        changed = rows = last_per_key(changed, self.keys)
        if self.earlier is not None:
            rows = last_rows(self._rows(self.earlier, part, kept), changed, self.keys)
        changed, rows = changed.select(self.schema.names), present(rows).select(self.schema.names)
        if self.keep:
            yield marked(changed, rows, self.keys, self.keep)
            return
        for others in self._rows(self.others, part, self.schema):
            yield others.filter(pa.array(np.logical_not(has_keys(others, changed, self.keys))))
        yield rows

    def _rows(self, files: Sequence[SplitFile], part: int, schema: pa.Schema) -> Iterator[pa.Table]:
        return (rows.cast(schema) for file in files for rows in file.rows(self.place, part))


def last_rows(pieces: Iterable[pa.Table], changed: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last row of each changed key in some rows; one piece of them is in memory, and the rows found."""
    import pyarrow as pa

    found = changed.slice(0, 0)
    for rows in pieces if changed.num_rows else ():
        mine = rows.filter(pa.array(has_keys(rows, changed, keys)))
        found = last_per_key(pa.concat_tables([found, mine]), keys) if mine.num_rows else found
    return found


def marked(changed: pa.Table, rows: pa.Table, keys: Sequence[str], keep: str) -> pa.Table:
    """Return the new rows of changed keys, marked in the column `keep`, and a row that is not for each key without."""
    import numpy as np
    import pyarrow as pa

    gone = changed.filter(pa.array(np.logical_not(has_keys(changed, rows, keys))))
    each = ((rows, True), (gone, False))
    return pa.concat_tables([some.append_column(keep, pa.repeat(is_kept, some.num_rows)) for some, is_kept in each])


def _written(tables: Iterator[pa.Table], place: Place, layout: Layout) -> Iterator[Facts]:
    """Write rows, in one file for each partition; if the layout has an order, so many rows at a time as are sorted."""
    batches = (batch for rows in tables for batch in rows.to_batches())
    write = WriteTask(place, "", layout)
    if not layout.order:
        yield from write.work(batches)
        return
    for rows in row_groups(batches, _SORTED_AT_ONCE_BYTES):
        yield from write.work(iter(layout.of_rows(rows).to_batches()))


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """The rewriting of files; a share is files whose rows come together.

    A task streams rows from the old files into the new ones, so a bounded number of rows is in memory, however large a
    file is. If the layout has an order, a task holds and sorts all its rows at once.

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

    def work(self, share: Sequence[RowFile]) -> Iterator[Facts]:
        """Write the rows of a share to new files, and yield the facts of these."""
        return WriteTask(self.place, self.folder, self.layout).work(self._rows(share))

    def _rows(self, files: Sequence[RowFile]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        kept = self._kept(files)
        if self.layout.order:
            kept = iter(self.layout.of_rows(pa.Table.from_batches(kept, self.schema)).to_batches())
        return kept

    def _kept(self, files: Sequence[RowFile]) -> Iterator[pa.RecordBatch]:
        for batch in FileShare(files=tuple(files), place=self.source, schema=self.schema).rows():
            yield batch if self.where is None else batch.filter(self.where)
