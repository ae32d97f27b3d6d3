"""Parquet files of rows as tasks read them: in shares of some files, or of some row groups of a large file.

If a file cannot be read, an `FileErrors` selects the error to raise.
"""

from __future__ import annotations

import datetime as dt
import errno
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from drainmark.jobs.errors import ObjectMissing
from drainmark.jobs.errors.environment import FileDamaged, damaged
from drainmark.jobs.errors.spark_faults import NOT_REACHED
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.deletion_vectors import DeletionVector
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.tasks.places import Place

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

_NONE: Mapping[str, str | None] = {}
ROW_NUMBER = "row\n"
"""A column with the numbers of rows in their file, from 0. No column of a Delta table may have this name."""

_ROWS_AT_ONCE, _GROUPS_AT_ONCE = 100_000, 16
_MOST_FILES = 32
"""The most files of one share; a task opens them one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """A Parquet file of rows, or a part of one.

    Attributes:
        path: below its place.
        size: bytes, about.
        version: of the table that added it, if that is known.
        constants: values of the columns that are only in the log of its table, in the form of the log.
        above, through: the rows to read have ids above the one and up to the other (inclusive); None for no bound.
        only: a column of the schema, and the values that the rows to read have there; None for all rows.
        part, parts: the row groups of part number `part`, from 0, if the file is cut into `parts` parts.
        vector: the rows that have left, None for none; they are not read.
    """

    path: str
    size: int = 0
    version: int = 0
    constants: Mapping[str, str | None] = field(default_factory=dict)
    above: int | None = None
    through: int | None = None
    only: tuple[str, tuple[str, ...]] | None = None
    part: int = 0
    parts: int = 1
    vector: DeletionVector | None = None

    @classmethod
    def of(cls, file: StagedFile) -> RowFile:
        """Return a file of a table as tasks read it."""
        return cls(path=file.path, size=file.size, vector=file.vector, constants=file.constants)

    def cut(self, share_bytes: int) -> tuple[RowFile, ...]:
        """Return the parts of the file, of at most about `share_bytes` each, in the order of its rows."""
        parts = max(1, -(-self.size // share_bytes))
        if parts == 1:
            return (self,)
        return tuple(replace(self, part=number, parts=parts, size=self.size // parts) for number in range(parts))

    def groups_of(self, file: pq.ParquetFile) -> range:
        """Return the row groups of this part; `file` is the opened file."""
        count = file.num_row_groups
        return range(count * self.part // self.parts, count * (self.part + 1) // self.parts)


@dataclass(frozen=True, slots=True)
class FileErrors:
    """The errors to raise for a file that cannot be read; this class has those for Drainmark's own files."""

    def gone(self, file: RowFile, error: Exception) -> Exception:
        """Return the error for a file that does not exist."""
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), getattr(error, "filename", None) or file.path)

    def damaged(self, file: RowFile, said: str) -> Exception:
        """Return the error for a file that Arrow cannot read; `said` is the reason that Arrow gives."""
        return damaged(file.path, said)

    def out_of_reach(self, file: RowFile, error: OSError) -> Exception:
        """Return the error for a file that its disk or its store cannot deliver."""
        return OSError(f"{NOT_REACHED}: {file.path}: {error}")


OURS = FileErrors()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileShare:
    """The files that a task reads one after the other, or a part of one file, in the columns of a schema."""

    files: tuple[RowFile, ...]
    place: Place
    schema: pa.Schema
    owner: FileErrors = OURS

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in their order."""
        return rows_of(self.files, self.place.opened, self.schema, self.owner)


def packed(files: Iterable[RowFile], share_bytes: int) -> list[tuple[RowFile, ...]]:
    """Return files in shares of at most about so many bytes, in their order; a large file becomes several shares."""
    shares: list[tuple[RowFile, ...]] = []
    held: list[RowFile] = []
    bytes_held = 0
    for file in files:
        parts = file.cut(share_bytes)
        if len(parts) > 1 or len(held) == _MOST_FILES or bytes_held + file.size > share_bytes:
            shares.append(tuple(held))
            held, bytes_held = [], 0
        if len(parts) > 1:
            shares += [(part,) for part in parts]
        else:
            held.append(file)
            bytes_held += file.size
    shares.append(tuple(held))
    return [share for share in shares if share]


def rows_of(
    files: Iterable[RowFile], opened: Callable[[str], Any], schema: pa.Schema, owner: FileErrors = OURS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files in the columns of a schema; a column that a file lacks is null.

    Args:
        opened: returns the path or file object that pyarrow opens, for the path of a file.

    Raises:
        Exception: the error of the owner.
    """
    for file in files:
        for batch in _batches(file, opened, schema, owner):
            yield wanted(file, typed(batch, schema, file.constants))


def wanted(file: RowFile, rows: Rows) -> Rows:
    """Return the rows that are to be read of some rows of a file, in the types of their table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if file.only is not None:
        column, values = file.only
        rows = rows.filter(pc.is_in(rows.column(column), value_set=pa.array(values, pa.string())))
    if file.above is not None:
        rows = rows.filter(pc.greater(rows.column(SEQUENCE_ID), file.above))
    return rows if file.through is None else rows.filter(pc.less_equal(rows.column(SEQUENCE_ID), file.through))


def _batches(
    file: RowFile, opened: Callable[[str], Any], schema: pa.Schema, owner: FileErrors
) -> Iterator[pa.RecordBatch]:
    with _opened(file, opened, owner) as found:
        dead, groups = dead_rows(file.vector, opened), file.groups_of(found)
        first = sum(found.metadata.row_group(group).num_rows for group in range(groups.start)) if dead.size else 0
        yield from without(batches_of_groups(found, groups, schema), dead, first)


def numbered_rows(
    file: RowFile, place: Place, schema: pa.Schema, chosen: Callable[[pq.FileMetaData], Iterable[int]]
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a file of a table, also those that have left it, with their numbers in the column `ROW_NUMBER`.

    Args:
        schema: columns of the rows, beside their number.
        chosen: returns the row groups to read.

    Raises:
        OSError: see `FileErrors`.
    """
    import numpy as np
    import pyarrow as pa

    with _opened(file, place.opened, OURS) as found:
        sizes = [found.metadata.row_group(group).num_rows for group in range(found.num_row_groups)]
        firsts = list(itertools.accumulate(sizes, initial=0))
        columns = _known(found, schema)
        for groups in _up_to_rows(chosen(found.metadata), sizes):
            numbers = np.concatenate([np.arange(firsts[group], firsts[group + 1]) for group in groups])
            for batch in found.read_row_groups(groups, columns, use_threads=False).combine_chunks().to_batches():
                of_batch, numbers = numbers[: batch.num_rows], numbers[batch.num_rows :]
                yield typed(batch, schema, file.constants).append_column(ROW_NUMBER, pa.array(of_batch))


def _up_to_rows(groups: Iterable[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield row groups that are read at once: each call costs as much as some thousand rows."""
    held, rows = list[int](), 0
    for group in groups:
        if held and (rows + sizes[group] > _ROWS_AT_ONCE or len(held) == _GROUPS_AT_ONCE):
            yield held
            held, rows = [], 0
        held.append(group)
        rows += sizes[group]
    if held:
        yield held


@contextmanager
def _opened(file: RowFile, opened: Callable[[str], Any], owner: FileErrors) -> Iterator[pq.ParquetFile]:
    """Yield an opened file; errors inside of the block are those of the owner."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = opened(file.path)
        if owner == OURS and isinstance(source, str):  # an error names the whole path
            file = replace(file, path=source)
        with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as found:
            yield found
    except (FileNotFoundError, ObjectMissing) as error:
        raise owner.gone(file, error) from error
    except FileDamaged as error:  # of its vector
        raise error if owner == OURS else owner.damaged(file, error.message) from error
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise owner.out_of_reach(file, error) from error
        raise owner.damaged(file, str(error).strip().partition("\n")[0]) from error  # the first line of Arrow's message


def batches_of_groups(file: pq.ParquetFile, groups: Iterable[int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups, with the columns that file and schema share; if there are none, with all."""
    columns = _known(file, schema)
    for group in groups:  # one at a time: its bytes are bounded, however large a row is
        yield from file.iter_batches(row_groups=[group], columns=columns)


def _known(file: pq.ParquetFile, schema: pa.Schema) -> list[str] | None:
    return [name for name in file.schema_arrow.names if name in schema.names] or None


def dead_rows(vector: DeletionVector | None, opened: Callable[[str], Any]) -> Numbers:
    """Return the numbers of the rows that have left a file, in their order.

    Raises:
        OSError, FileDamaged: the file of the vector is gone or damaged.
    """
    import numpy as np

    if vector is None:
        return np.zeros(0, np.int64)
    try:
        source = opened(vector.path)
        return np.array(vector.of_part(_bytes_of(source, *vector.span)).to_array(), np.int64)
    except ValueError as error:
        raise damaged(source if isinstance(source, str) else vector.path, error) from error


def _bytes_of(source: Any, start: int, end: int) -> bytes:
    """Return some bytes of a file: a merge writes the vectors of all its files to one, so that it may be large."""
    with open(source, "rb") if isinstance(source, str) else source as file:
        file.seek(start)
        return bytes(file.read(end - start))


def content_of(source: Any) -> bytes:
    """Return the bytes of a file: a path, or a file object as pyarrow opens it."""
    if isinstance(source, str):
        with open(source, "rb") as file:
            return file.read()
    return bytes(source.read())


Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Rows = TypeVar("Rows", "pa.RecordBatch", "pa.Table")


def without(pieces: Iterable[Rows], dead: Numbers, first: int = 0) -> Iterator[Rows]:
    """Yield the rows of a file that have not left it.

    Args:
        pieces: neighbouring rows of the file, in their order.
        dead: numbers of the rows that have left, in their order.
        first: number of the first row.
    """
    import numpy as np
    import pyarrow as pa

    for rows in pieces:
        end = first + rows.num_rows
        start, stop = np.searchsorted(dead, (first, end))
        if start < stop:
            stays = np.ones(rows.num_rows, dtype=bool)
            stays[dead[start:stop] - first] = False
            yield rows.filter(pa.array(stays))
        else:
            yield rows
        first = end


def typed(rows: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, str | None] = _NONE) -> pa.RecordBatch:
    """Return rows in the columns of a schema; a column that is neither constant nor in the rows is null."""
    import pyarrow as pa

    columns = []
    for column in schema:
        if column.name in constants:
            columns.append(pa.repeat(constant_of(constants[column.name], column.type), rows.num_rows))
        elif column.name in rows.schema.names:
            # Cut nanoseconds off instead of refusing the file, as Spark does.
            columns.append(rows.column(column.name).cast(column.type, safe=not pa.types.is_timestamp(column.type)))
        else:
            columns.append(pa.nulls(rows.num_rows, column.type))
    return pa.record_batch(columns, schema=schema)


def constant_of(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return a partition's value from its text in the log, which is not encoded. A time without a zone is in UTC."""
    import pyarrow as pa

    if text in (None, ""):
        return pa.scalar(None, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        moment = dt.datetime.fromisoformat(text)
        return pa.scalar(moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC), kind)
    return pa.scalar(text, pa.string()).cast(kind)
