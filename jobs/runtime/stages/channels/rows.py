"""The content of a channel: batches of a whole group each, with rows in this process or in staged files.

The rows of a large group are written to files at once.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import AccountingError
from drainmark.jobs.failpoints import ChannelPoint
from drainmark.jobs.frames.arrow import frame_of
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.manifest import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from drainmark.resources.delta.staging import Staging
    from drainmark.resources.delta.table_files import TableFiles


class Spool:
    """The place to which the rows of batches are staged, and from which they are read again.

    Args:
        staging: of this attempt.
        reader: of the same folder, for files of any attempt.
    """

    def __init__(self, staging: Staging, reader: TableFiles) -> None:
        self.staging = staging
        self.reader = reader


class ChannelRows(ABC):
    """Rows with a count of their holders: the code that makes them, each channel that has them, and each checkpoint
    with them. After the last holder has released them, no code may use them any more.

    Attributes:
        count: number of rows.
        bytes: their size in memory or in files, as far as it is known.
    """

    def __init__(self, count: int, size: int, files: tuple[StagedFile, ...] | None = None) -> None:
        self.count = count
        self.bytes = size
        self._files = files
        self._holders = 1
        self._lock = threading.Lock()
        self._staging = threading.Lock()

    @property
    def files(self) -> tuple[StagedFile, ...] | None:
        """Return the files that have the rows; None while the rows are in no file."""
        return self._files

    @property
    def holders(self) -> int:
        """Return the number of holders."""
        return self._holders

    def hold(self) -> None:
        """Hold the rows, too.

        Raises:
            AccountingError: all holders have released them.
        """
        with self._lock:
            if self._holders == 0:
                raise AccountingError("the rows of a batch are asked for after everybody had let go of them")
            self._holders += 1

    def release(self) -> None:
        """Release the rows for one holder.

        Raises:
            AccountingError: nobody holds them.
        """
        with self._lock:
            if self._holders == 0:
                raise AccountingError("the rows of a batch are let go of more often than they were held")
            self._holders -= 1

    def stage(self, spool: Spool, stem: str, first_id: int, last_id: int) -> tuple[StagedFile, ...]:
        """Write the rows, once for all callers and calls; they are durable when this returns.

        Raises:
            AccountingError: the files have another number of rows, or rows of other ids.
            StoreUnavailable, SchemaMismatch: see `Staging.write`.
        """
        with self._staging:
            if self._files is None:
                world.pass_point(ChannelPoint.SPOOL_BEFORE)
                files = self._write(spool.staging, stem)
                found = sum(file.rows for file in files)
                ids = [each for file in files for each in (file.first_id, file.last_id) if each is not None]
                if found != self.count or any(not first_id <= each <= last_id for each in ids):
                    raise AccountingError(
                        f"{found} rows of the ids {min(ids, default=0)}..{max(ids, default=0)} are staged for a batch"
                        f" of {self.count} rows of {first_id}..{last_id}"
                    )
                self._files = files
                world.pass_point(ChannelPoint.SPOOL_WRITTEN)
            return self._files

    @abstractmethod
    def table(self) -> pa.Table | None:
        """Return the rows in this process; None if there are none and their columns are unknown."""

    @abstractmethod
    def frame(self, session: SparkSession, schema: StructType) -> DataFrame:
        """Return the rows as a frame with these columns."""

    @abstractmethod
    def _write(self, staging: Staging, stem: str) -> tuple[StagedFile, ...]:
        """Write the rows."""


class ArrowRows(ChannelRows):
    """Rows in this process."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table.num_rows, table.nbytes)
        self._table = table

    def table(self) -> pa.Table:
        return self._table

    def frame(self, session: SparkSession, schema: StructType) -> DataFrame:
        return frame_of(session, self._table, schema) if self.count else session.createDataFrame([], schema)

    def _write(self, staging: Staging, stem: str) -> tuple[StagedFile, ...]:
        return staging.write(self._table, stem)


class FileRows(ChannelRows):
    """Rows in files that this attempt or an earlier one staged.

    Args:
        last_id: rows above this id do not belong to the batch, because a rewind has cut it.
    """

    def __init__(self, files: tuple[StagedFile, ...], *, reader: TableFiles, last_id: int) -> None:
        super().__init__(sum(file.rows for file in files), sum(file.size for file in files), files)
        self._reader = reader
        self._last_id = last_id
        self._is_cut = any((file.last_id or 0) > last_id for file in files)

    def table(self) -> pa.Table | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._files:
            return None
        tables = list(self._reader.read_each(self._files))
        whole = pa.concat_tables(tables)
        return whole.filter(pc.field(SEQUENCE_ID) <= self._last_id) if self._is_cut else whole

    def frame(self, session: SparkSession, schema: StructType) -> DataFrame:
        if not self._files:
            return session.createDataFrame([], schema)
        frame = self._reader.frame(session, self._files, schema)
        return frame.where(f"{SEQUENCE_ID} <= {self._last_id}") if self._is_cut else frame

    def _write(self, staging: Staging, stem: str) -> tuple[StagedFile, ...]:
        raise AssertionError("rows in files are written")


def stem_of(stream: str, first_id: int) -> str:
    """Return the beginning of a batch's file names; a stage that does a group again gets another one."""
    return f"{stream.replace('[', '.').replace(']', '')}-{first_id:019d}-{world.token()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The rows of one group of one stream; `_sequence_id` and `_position` are among their columns.

    Attributes:
        first_id, last_id: of the group; a group without rows is a batch, too.
        rows: perhaps shared with the other channels of the stream.
    """

    first_id: int
    last_id: int
    rows: ChannelRows

    def __post_init__(self) -> None:
        if not 0 < self.first_id <= self.last_id:
            raise ValueError(f"a batch has no ids {self.first_id}..{self.last_id}")

    @property
    def bytes(self) -> int:
        return self.rows.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePart:
    """The results of a stage for a group.

    Attributes:
        made: the results, opaque here.
    """

    stage: str
    first_id: int
    last_id: int
    made: Any
