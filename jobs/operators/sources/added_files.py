"""Files that versions of a Delta table added, as this process reads them and as tasks do: share by share.

What the log says of a file is looked up once, by this process; a task is told the names of files, and where they are.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import InputChanged, InputMissing, ObjectMissing
from drainmark.jobs.errors.environment import SHARE_FOLDERS, ClusterRefused
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.tasks.parquet_files import facts_of_failure, failure_of, row_groups_of
from drainmark.jobs.tasks.places import LocalPlace, Place

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 65_536
_MOST_FILES = 32
"""Files of one share, which a task opens one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A file that a version added.

    Attributes:
        path: below the table.
        size: bytes.
        constants: values of the columns that the table is partitioned by, as the log has them.
        part, parts: which of its row groups are meant: the share of this number, from 0, where there are so many.
    """

    version: int
    path: str
    size: int
    constants: Mapping[str, str | None]
    part: int = 0
    parts: int = 1

    def rows(self, opened: Callable[[str], Any], schema: pa.Schema, table: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the columns of the table, in the order of the file; a column that it lacks is null.

        Args:
            opened: returns what pyarrow opens to read a file.
            table: what messages call the table.

        Raises:
            InputMissing: it is gone.
            InputChanged: it is no Parquet file any more.
            StoreUnavailable, OSError: it cannot be read.
        """
        import pyarrow as pa

        for batch in self._batches(opened, schema, table):
            yield pa.record_batch(_columns(batch, self.constants, schema), schema=schema)

    def shares(self, share_bytes: int) -> tuple[AddedFile, ...]:
        """Return the file in parts of about so many bytes, in the order of its rows."""
        parts = max(1, -(-self.size // share_bytes))
        if parts == 1:
            return (self,)
        return tuple(replace(self, part=number, parts=parts, size=self.size // parts) for number in range(parts))

    def missing(self, table: str) -> InputMissing:
        """Return the error for this file where it is gone."""
        return missing_version(table, self.version, f"its file {self.path} is gone")

    def _batches(self, opened: Callable[[str], Any], schema: pa.Schema, table: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(opened(self.path), coerce_int96_timestamp_unit="us") as file:
                known = [name for name in file.schema_arrow.names if name in schema.names]
                for group in row_groups_of(file, self.part, self.parts):  # one by one: their bytes have a bound
                    yield from file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=known or None)
        except (FileNotFoundError, ObjectMissing) as error:
            raise self.missing(table) from error
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise failure_of(facts_of_failure(error)) from error
            raise InputChanged(  # Arrow's own word
                f"the file {self.path} of version {self.version} of {table} is damaged: {str(error).splitlines()[0]}",
                remedy="put it back from a backup; or read a copy of the table by another name of the source",
                trigger=f"delta:{table}#{self.version}",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesShare(Slice):
    """What a task reads of a slice: some files, one after the other, or some row groups of a large one."""

    files: tuple[AddedFile, ...]
    place: Place
    schema: pa.Schema

    def rows(self, table: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all files; see `AddedFile.rows`."""
        for file in self.files:
            try:
                yield from file.rows(self.place.opened, self.schema, table)
            except InputMissing as error:
                if not isinstance(self.place, LocalPlace):
                    raise
                msg = f"a worker does not find {file.path} of {table}, which the run saw below {self.place.folder}"
                raise ClusterRefused(msg, remedy=SHARE_FOLDERS) from error


def shares_of(
    piece: Slice, files: Iterable[AddedFile], place: Place, schema: pa.Schema, share_bytes: int
) -> list[FilesShare]:
    """Return the files of a slice in shares; see `packed`."""
    return [
        FilesShare(
            start=piece.start,
            end=piece.end,
            size_bytes=sum(file.size for file in some),
            files=some,
            place=place,
            schema=schema,
        )
        for some in packed(files, share_bytes)
    ]


def packed(files: Iterable[AddedFile], share_bytes: int) -> list[tuple[AddedFile, ...]]:
    """Return files in shares of at most about so many bytes, in their order; a large file is several."""
    shares: list[tuple[AddedFile, ...]] = []
    held: list[AddedFile] = []
    bytes_held = 0
    for file in files:
        parts = file.shares(share_bytes)
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


def missing_version(table: str, version: int, why: str) -> InputMissing:
    """Return the error for a version that the log, or the folder, does not have any more."""
    msg = f"version {version} of {table} cannot be read any more: {why}"
    remedy = "keep the log and the files longer than a run is away; to begin behind it: starting_version=… under a new "
    return InputMissing(msg, remedy=f"{remedy}name of the source", triggers=(), trigger=f"delta:{table}#{version}")


def _columns(rows: pa.RecordBatch, constants: Mapping[str, str | None], schema: pa.Schema) -> list[pa.Array]:
    """Return a file's columns in the types of the table; partition values stand in the log, a later column is null."""
    import pyarrow as pa

    columns = []
    for field in schema:
        if field.name in constants:
            columns.append(pa.repeat(constant_of(constants[field.name], field.type), rows.num_rows))
        elif field.name in rows.schema.names:
            # Spark cuts nanoseconds off, too, instead of refusing the file.
            columns.append(rows.column(field.name).cast(field.type, safe=not pa.types.is_timestamp(field.type)))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return columns


def constant_of(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return a partition's value, which stands in the log as it is: only paths are encoded. A time without a zone is
    one of UTC."""
    import pyarrow as pa

    if text in (None, ""):
        return pa.scalar(None, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        moment = dt.datetime.fromisoformat(text)
        return pa.scalar(moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC), kind)
    return pa.scalar(text, pa.string()).cast(kind)
