"""Parquet files of rows, written by a task of Spark or by this process.

A task writes a file under a name that no other attempt has, and yields the file's facts. Spark gives the driver the
facts of one attempt of each task. So no file is renamed or listed, and no output committer is needed: the files of
repeated and speculative attempts are in no list.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import TooManyPartitions
from drainmark.jobs.errors.environment import SHARE_FOLDERS, FilesLost, damaged
from drainmark.jobs.frames.arrow import relaxed, relaxed_type
from drainmark.jobs.frames.tags import SEQUENCE_ID, arrow_schema
from drainmark.jobs.tasks.column_statistics import ColumnStatistics, floating_leaves
from drainmark.jobs.tasks.executor import Facts, OnSpark
from drainmark.jobs.tasks.judged_rows import Giver, require_text
from drainmark.jobs.tasks.layout import NO_LAYOUT, Layout
from drainmark.jobs.tasks.parquet_shares import FileShare, RowFile
from drainmark.jobs.tasks.places import LocalPlace, MemoryPlace, Place

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROW_GROUP_BYTES = 8 * 2**20
_SHARE_BYTES, _MOST_SHARES = 8 * 2**20, 4000
"""The bytes of files that one task reads at least, and the most tasks that read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """The facts of one file that a task wrote.

    Attributes:
        name: of the file, below the place that the task was given.
        size: bytes.
        rows: number of rows that the task wrote, one at least.
        footer_rows: number of rows by the file's footer.
        first_id, last_id: bounds of `_sequence_id`; None if there is no such column or no value.
        without_id: number of rows with `_sequence_id` null.
        mark: a digest that another file of this name would not have; "" if the place has its own, such as ETags.
        partition, statistics: see `StagedFile`.
    """

    name: str
    size: int
    rows: int
    footer_rows: int
    first_id: int | None
    last_id: int | None
    without_id: int
    mark: str
    partition: str = ""
    statistics: str = ""


def write_files(
    frame: DataFrame, place: Place, folder: str = "", *, layout: Layout = NO_LAYOUT, giver: Giver | None = None
) -> list[WrittenFile]:
    """Compute a frame and write its rows, one file for each task that has rows; return the files, sorted by name.

    The files are durable when this returns, if the place is kept.

    Args:
        folder: of the files, below the place; it is created if it is missing.
        layout: of the table; a task writes one file for each partition that it has rows of.
        giver: the operator of the rows, if they are read again by others than Spark: see `require_text`.

    Raises:
        OperatorFailed: a text of the operator is not UTF-8.
        OSError, StoreUnavailable: a task could not write.
        TooManyPartitions: the rows are in more partitions than one group may write to.
    """
    task = WriteTask(place, folder, layout, giver)
    written = written_files(OnSpark(frame.sparkSession).run_over(layout.of_frame(frame), task))
    require_few(layout, {file.partition for file in written})
    return written


def require_few(layout: Layout, partitions: Collection[str]) -> None:
    """Refuse more partitions than a group may write to.

    Raises:
        TooManyPartitions: there are more.
    """
    if layout.most_partitions is not None and len(partitions) > layout.most_partitions:
        raise _too_many(layout.most_partitions, layout.partition_by)


def _too_many(most: int, partition_by: Sequence[str]) -> TooManyPartitions:
    by = ", ".join(partition_by)
    msg = f"rows of one group are of more than {most} partitions by {by}"
    remedy = f"partition by a column with fewer values (the day of a time, a country), or cluster_by=[{by}] instead"
    return TooManyPartitions(msg, remedy=remedy, columns=tuple(partition_by))


def written_files(facts: Iterable[Facts]) -> list[WrittenFile]:
    """Return the files that tasks told of, sorted by name."""
    return sorted((WrittenFile(**each) for each in facts), key=lambda file: file.name)


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The writing of rows: one file for each partition of the table that they are in, in the order of the rows.

    Args:
        folder: of the files, below the place.
        giver: see `write_files`.
    """

    place: Place
    folder: str
    layout: Layout = NO_LAYOUT
    giver: Giver | None = None

    def work(self, share: Iterator[pa.RecordBatch]) -> Iterator[Facts]:
        """Write the rows of a share, and yield the facts of the files.

        Raises:
            OperatorFailed, TooManyPartitions: as `write_files`, of this share alone.
        """
        if (giver := self.giver) is not None:
            share = (require_text(giver, batch) for batch in share)
        runs = itertools.groupby(self._parts(share), key=itemgetter(0))
        for number, (partition, parts) in enumerate(runs):
            if number == self.layout.most_partitions:  # stop early: there may be as many partitions as rows
                raise _too_many(number, self.layout.partition_by)
            groups = (rows for _, rows in parts)
            file = write_groups(groups, self.place, self.folder, layout=self.layout, partition=partition)
            if file is not None:
                yield asdict(file)

    def _parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
        for group in row_groups(batches):
            for partition, rows in self.layout.parts(group):
                size = self.layout.rows_a_group or rows.num_rows
                yield from ((partition, rows.slice(start, size)) for start in range(0, rows.num_rows, size))


def frame_of_files(
    session: SparkSession, place: Place, names: Sequence[str], schema: StructType, sizes: Sequence[int] | None = None
) -> DataFrame:
    """Return the rows of files as a frame; columns that a file lacks are null.

    Spark's own reader reads files in a folder. For a bucket it would need the S3A bundle, so Drainmark's tasks read.

    Args:
        sizes: bytes of the files, if they are known; then several tasks read a large file of a bucket.
    """
    schema = relaxed_type(schema)
    if isinstance(place, LocalPlace):
        return session.read.schema(schema).parquet(*(place.opened(name) for name in names))
    return frame_of_shares(session, own_shares(place, names, arrow_schema(schema), sizes), schema)


def own_shares(place: Place, names: Sequence[str], schema: pa.Schema, sizes: Sequence[int] | None) -> list[FileShare]:
    """Return shares of Drainmark's own files, in the order of their rows.

    Each file is at least one share: so as many tasks process the rows as wrote them.
    """
    files = [RowFile(path=name, size=size) for name, size in zip(names, sizes or [0] * len(names), strict=True)]
    least = max(_SHARE_BYTES, sum(file.size for file in files) // _MOST_SHARES)
    parts = (part for file in files for part in file.cut(least))
    return [FileShare(files=(part,), place=place, schema=schema) for part in parts]


def frame_of_shares(session: SparkSession, shares: Sequence[FileShare], schema: StructType) -> DataFrame:
    """Return the rows of shares as a frame; one task reads each share."""
    return OnSpark(session).frame(shares, FileShare.rows, schema)


def write_batches(batches: Iterator[pa.RecordBatch], place: Place, folder: str = "") -> WrittenFile | None:
    """Write rows to a folder of a place, under a name that no other file has; no file for no rows."""
    return write_groups(row_groups(batches), place, folder)


def write_groups(
    groups: Iterator[pa.Table],
    place: Place,
    folder: str = "",
    *,
    layout: Layout = NO_LAYOUT,
    partition: str = "",
    notes: Mapping[str, str] | None = None,
) -> WrittenFile | None:
    """Write tables as the row groups of one file, under a name that no other file has; no file for no tables.

    Args:
        layout: of the table that the file is for.
        partition: values of the partition that all rows are in, in the form of the log.
        notes: key-value metadata for the footer.
    """
    groups = map(relaxed, groups)
    first = next(groups, None)
    if first is None:
        return None
    known = ColumnStatistics(first.schema) if layout.has_statistics else None
    rows = itertools.chain([first], groups)
    written = _write(rows, first.schema, place, folder, known, notes=notes, unique=layout.unique)
    return replace(written, partition=partition)


def write_file(rows: pa.Table, place: Place, folder: str = "") -> WrittenFile:
    """Write rows to a folder of a place, under a name that no other file has."""
    rows, size = relaxed(rows), rows_per_group(rows)
    return _write((rows.slice(start, size) for start in range(0, rows.num_rows, size)), rows.schema, place, folder)


@dataclass(slots=True)
class IdBounds:
    """The exact bounds of `_sequence_id` in some rows, and the number of rows without one."""

    first_id: int | None = None
    last_id: int | None = None
    without_id: int = 0

    def add(self, rows: pa.Table) -> None:
        import pyarrow.compute as pc

        if SEQUENCE_ID not in rows.column_names:
            return
        ids = rows.column(SEQUENCE_ID)
        self.without_id += ids.null_count
        found = pc.min_max(ids)
        first, last = found["min"].as_py(), found["max"].as_py()
        if first is not None:
            self.first_id = first if self.first_id is None else min(self.first_id, first)
            self.last_id = last if self.last_id is None else max(self.last_id, last)


@contextmanager
def as_written(path: object) -> Iterator[None]:
    """Tell what Arrow finds wrong inside of the block as damage of the Parquet file of ours that it reads there.

    Raises:
        FileDamaged: it cannot be read.
    """
    import pyarrow as pa

    try:
        yield
    except pa.ArrowInvalid as error:
        raise damaged(path, error) from error
    except OSError as error:
        if error.errno is not None or isinstance(error, FileNotFoundError):  # of the disk, not of the content
            raise
        raise damaged(path, error) from error


def require_as_written(path: object, source: Any) -> None:
    """Read a Parquet file of ours to its end.

    Raises:
        FileDamaged: it cannot be read.
    """
    import pyarrow.parquet as pq

    with as_written(path), pq.ParquetFile(source) as file:
        for _ in file.iter_batches():
            pass


def require_here(stamp: Callable[[str], tuple[int, str]], where: str, files: Sequence[WrittenFile]) -> None:
    """Check that this process finds the files that tasks wrote.

    Args:
        stamp: returns the size in bytes and the mark of a file by its name, or raises FileNotFoundError.

    Raises:
        FilesLost: a file is missing or is another one, or its footer has not as many rows as the task counted.
    """
    missing = [file for file in files if not _is_here(stamp, file)]
    if missing:
        expected, lost = sum(file.rows for file in files), sum(file.rows for file in missing)
        first = missing[0].name
        msg = f"tasks wrote {expected} rows to {where}, and this process does not find {lost} of them; first: {first}"
        raise FilesLost(msg, remedy=SHARE_FOLDERS, path=first, rows=expected - lost, expected=expected)


def _is_here(stamp: Callable[[str], tuple[int, str]], file: WrittenFile) -> bool:
    try:
        size, mark = stamp(file.name)
    except FileNotFoundError:
        return False
    return size == file.size and file.mark in ("", mark) and file.footer_rows == file.rows


# --- one file -----------------------------------------------------------------------------------------------------


def parquet_writer(
    sink: Any, schema: pa.Schema, *, is_kept: bool = True, is_shown: bool = False, unique: Collection[str] = ()
) -> pq.ParquetWriter:
    """Return a writer of rows; it stores timestamps in microseconds and cuts finer digits off, as Spark does.

    Args:
        is_kept: false for a file that is read once or twice as a whole and then deleted: it is written fast, not small,
            and without bounds.
        is_shown: other engines read the file.
        unique: columns in which no value repeats.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Numbers seldom repeat, and trying a dictionary for them takes a third of the time.
    texts = [field.name for field in schema if pa.types.is_string(field.type) or field.name == SEQUENCE_ID]
    texts = [name for name in texts if name not in unique]

    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd" if is_kept else "none",
        use_dictionary=texts if is_kept else False,
        store_schema=False,
        coerce_timestamps="us",
        allow_truncated_timestamps=True,
        write_statistics=_with_bounds(schema) if is_shown else is_kept,
    )


def _with_bounds(schema: pa.Schema) -> bool | list[str]:
    """Return the leaves with bounds in the footer, True for all: floats have none, since bounds would ignore a NaN.

    For Spark a NaN is above all numbers: with `> 5` it would skip a row group with a NaN and an upper bound of 3.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not floating_leaves(schema):
        return True
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema, store_schema=False, coerce_timestamps="us").close()
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    columns = (leaves.column(number) for number in range(len(leaves)))
    return [leaf.path for leaf in columns if leaf.physical_type not in ("FLOAT", "DOUBLE")]


def rows_per_group(rows: pa.Table) -> int:
    """Return the rows for each row group: small groups let a reader of some ids, such as a rewind, skip the others."""
    return max(1, int(rows.num_rows) * ROW_GROUP_BYTES // max(1, int(rows.nbytes)))


def _write(
    groups: Iterable[pa.Table],
    schema: pa.Schema,
    place: Place,
    folder: str = "",
    known: ColumnStatistics | None = None,
    *,
    notes: Mapping[str, str] | None = None,
    unique: Collection[str] = (),
) -> WrittenFile:
    """Write tables as the row groups of one file.

    Args:
        known: statistics to which all rows are added; None for a file that no other engine reads.
        notes: key-value metadata for the footer.
        unique: see `parquet_writer`.
    """
    import pyarrow.parquet as pq

    if isinstance(place, MemoryPlace):
        return _held(groups, place, folder)
    name, bounds, rows = os.path.join(folder, new_name()), IdBounds(), 0
    new_writer = partial(parquet_writer, is_kept=place.is_kept, is_shown=known is not None, unique=unique)
    with place.new_file(name) as sink, new_writer(sink, schema) as writer:
        for group in groups:
            if known is not None:
                known.add(group)
            writer.write_table(group, row_group_size=group.num_rows)
            bounds.add(group)
            rows += group.num_rows
        if notes:
            writer.add_key_value_metadata(notes)
    size, mark = place.stamp(name)
    found = pq.read_metadata(place.opened(name)).num_rows
    statistics = known.to_json() if known is not None else ""
    return WrittenFile(
        name=name, size=size, rows=rows, footer_rows=found, mark=mark, statistics=statistics, **asdict(bounds)
    )


def _held(groups: Iterable[pa.Table], place: MemoryPlace, folder: str) -> WrittenFile:
    name, bounds, rows = os.path.join(folder, new_name()), IdBounds(), 0
    for group in groups:
        place.add(name, group)
        bounds.add(group)
        rows += group.num_rows
    size, mark = place.stamp(name)
    return WrittenFile(name=name, size=size, rows=rows, footer_rows=rows, mark=mark, **asdict(bounds))


def row_groups(batches: Iterator[pa.RecordBatch], size_of_group: int = ROW_GROUP_BYTES) -> Iterator[pa.Table]:
    """Yield the rows of batches, in their order, as tables of about so many bytes in memory; no table is empty."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= size_of_group:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def new_name(ending: str = "parquet") -> str:
    """Return a name that only this attempt of this task has."""
    from pyspark import TaskContext

    task = TaskContext.get()
    place = f"{task.partitionId():05d}-{task.taskAttemptId()}" if task is not None else "00000-0"
    return f"{place}-{uuid.uuid4().hex}.{ending}"
