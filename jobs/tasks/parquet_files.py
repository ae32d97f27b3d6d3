"""Parquet files of rows, as a task of Spark writes them and as this process does.

A task writes one file under a name that no other attempt has, and returns its facts as its only row. Spark gives the
driver the row of one attempt of each task. So nothing is renamed or listed, and no output committer is asked: what
repeated and speculative attempts leave is a file that nobody names.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import AccountingError
from drainmark.jobs.errors.environment import SHARE_FOLDERS
from drainmark.jobs.frames.tags import SEQUENCE_ID

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame

FACTS = "name string, size long, rows long, first_id long, last_id long, without_id long, mark string"
"""Columns of what a task returns; see `WrittenFile`."""

MARK_BYTES = 256 * 1024
"""From a file's end, which its mark is made of: all of a small file; of a larger one the footer, which has the places,
sizes and bounds of all pages and who wrote it, and what is before it."""

_ROW_GROUP_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """The facts of one file that a task wrote.

    Attributes:
        name: of the file, in the folder that the task was given.
        size: bytes.
        rows: number of rows, one at least.
        first_id, last_id: bounds of `_sequence_id`, None where there is no such column or no value.
        without_id: rows whose `_sequence_id` is null.
        mark: `mark_of` its end.
    """

    name: str
    size: int
    rows: int
    first_id: int | None
    last_id: int | None
    without_id: int
    mark: str


def write_files(frame: DataFrame, folder: str) -> list[WrittenFile]:
    """Compute a frame and write its rows below a folder, a file a task that has rows; return their facts by name.

    The files are durable when this returns.

    Args:
        folder: as the executors reach it; made where it is missing.
    """
    found = frame.mapInArrow(WriteTask(folder), FACTS).collect()
    return sorted((WrittenFile(**row.asDict()) for row in found), key=lambda file: file.name)


@dataclass(frozen=True, slots=True)
class WriteTask:
    """What one task does: it takes the rows of a partition, and gives the facts of the file that has them.

    Args:
        folder: of the file.
    """

    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        groups = _row_groups(batches)
        first = next(groups, None)
        if first is None:
            return
        written = _write(itertools.chain([first], groups), first.schema, self.folder)
        facts = {column: [value] for column, value in asdict(written).items()}
        yield pa.RecordBatch.from_pydict(facts, schema=_facts_schema())


def write_file(rows: pa.Table, folder: Path) -> WrittenFile:
    """Write rows below a folder, which is made where it is missing, under a name that no other file has.

    The file need not outlive the machine.
    """
    size = rows_per_group(rows)
    groups = (rows.slice(start, size) for start in range(0, rows.num_rows, size))
    return _write(groups, rows.schema, str(folder), durable=False)


@dataclass(slots=True)
class IdBounds:
    """The bounds of `_sequence_id` in some rows, exact, and how many rows have none."""

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


def require_here(folder: Path, files: Iterable[WrittenFile]) -> None:
    """Check that what tasks wrote is in a folder of this process, with the rows that they counted.

    Raises:
        AccountingError: it is not.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in files:
        place = folder / file.name
        try:
            rows = pq.read_metadata(place).num_rows if stamp_of(place) == (file.size, file.mark) else 0
        except (FileNotFoundError, pa.ArrowInvalid):
            rows = 0
        if rows != file.rows:
            msg = f"a task wrote {file.rows} rows to {place}, and this process finds {rows} of them there"
            raise AccountingError(msg, remedy=SHARE_FOLDERS, path=str(place), rows=rows, expected=file.rows)


# --- one file -----------------------------------------------------------------------------------------------------


def parquet_writer(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of rows; timestamps are stored as microseconds, finer ones are cut off, as Spark does."""
    import pyarrow.parquet as pq

    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        store_schema=False,
        coerce_timestamps="us",
        allow_truncated_timestamps=True,
    )


def rows_per_group(rows: pa.Table) -> int:
    """Return how many rows a row group has: who reads some ids of a large file, as a rewind, skips the others."""
    return max(1, int(rows.num_rows) * _ROW_GROUP_BYTES // max(1, int(rows.nbytes)))


def stamp_of(path: str | os.PathLike[str]) -> tuple[int, str]:
    """Return a file's bytes and its mark, which another file in its place would not have.

    Raises:
        FileNotFoundError: there is none.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MARK_BYTES))
        return size, mark_of(file.read(MARK_BYTES))


def mark_of(tail: Any) -> str:
    """Return the mark of a file of which `tail` is the end: at most `MARK_BYTES`."""
    return hashlib.blake2b(tail, digest_size=16).hexdigest()


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(groups: Iterable[pa.Table], schema: pa.Schema, folder: str, *, durable: bool = True) -> WrittenFile:
    """Write tables as the row groups of one file."""
    os.makedirs(folder, exist_ok=True)
    name, bounds, rows = _own_name(), IdBounds(), 0
    path = os.path.join(folder, name)
    with open(path, "xb") as sink:
        with parquet_writer(sink, schema) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=group.num_rows)
                bounds.add(group)
                rows += group.num_rows
        if durable:
            sink.flush()
            os.fsync(sink.fileno())
    if durable:
        sync_folder(folder)
    size, mark = stamp_of(path)
    return WrittenFile(name=name, size=size, rows=rows, mark=mark, **asdict(bounds))


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of batches, in their order, in tables that become a row group each; none is empty."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _own_name() -> str:
    """Return a name that only this attempt of this task has."""
    from pyspark import TaskContext

    task = TaskContext.get()
    place = f"{task.partitionId():05d}-{task.taskAttemptId()}" if task is not None else "00000-0"
    return f"{place}-{uuid.uuid4().hex}.parquet"


def _facts_schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"string": pa.string(), "long": pa.int64()}
    return pa.schema([(name, kinds[kind]) for name, kind in (column.split() for column in FACTS.split(", "))])
