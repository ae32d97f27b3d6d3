"""The rows that a visible table must hold, read from its history, when the table itself cannot be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.rows_by_id import row_counts
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile, TableRole
from drainmark.jobs.runtime.commit.publish.publication import newest_of
from drainmark.jobs.runtime.outside import RowsOf
from drainmark.jobs.state.keyed_parts import last_of_keys
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.resources.delta.large_tables import frame_in_columns, spread
from drainmark.resources.delta.merge import arrow_schema, of_ids, typed, up_to
from drainmark.resources.delta.staging import Staging
from drainmark.resources.delta.table_files import TableFiles
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleRows:
    """The rows of one visible table at one id; few of them are in memory at a time.

    Attributes:
        table: has one row for each key, or the rows of one id.
        history: folder of its history.
        files: all files of the history that may have such rows.
        to: the id; rows with later ids do not count.
        session: its tasks find the last row of each key; None if this process does.
    """

    table: RegionTable
    history: Folder
    files: Sequence[StagedFile]
    to: int
    session: SparkSession | None

    def written(self, opened: Any, staging: Staging) -> tuple[StagedFile, ...]:
        """Write the rows to files, in the columns of the open table, and return the facts of the files."""
        schema = arrow_schema(opened)
        if self.table.role is TableRole.OVERWRITE:
            ids, near = self._newest
            return staging.rewrite([[file] for file in near], schema, of_ids(ids), source=self.history)
        if self.session is not None:
            frame, size = self._frame(self.session, opened.schema().to_json()), sum(file.size for file in self.files)
            return staging.write_frame(spread(frame, size, self.table.keys), "rebuilt")
        found = self._last_rows(lambda rows: typed(rows, schema))
        return tuple(file for rows in found for file in staging.write(rows, "rebuilt"))

    def counts(self) -> Counter[int]:
        """Return the number of rows by id."""
        if self.table.role is TableRole.OVERWRITE:
            ids, near = self._newest
            return row_counts(rows.filter(of_ids(ids)) for rows in TableFiles(self.history).pieces(near, [SEQUENCE_ID]))
        if self.session is not None:
            found = self._frame(self.session, self.table.schema_json).groupBy(SEQUENCE_ID).count().collect()
            return Counter({row[SEQUENCE_ID]: row["count"] for row in found})
        columns = [*self.table.keys, SEQUENCE_ID]
        return row_counts(self._last_rows(lambda rows: rows.select(columns)))

    @property
    def _newest(self) -> RowsOf:
        return newest_of(TableFiles(self.history), self.files, self.to)

    def _last_rows(self, shaped: Callable[[pa.Table], pa.Table]) -> Iterator[pa.Table]:
        """Yield the last row of each key, in several tables if there are many."""

        def read() -> Iterator[pa.Table]:
            return (shaped(rows).filter(up_to(self.to)) for rows in TableFiles(self.history).pieces(self.files))

        return last_of_keys(read, sum(file.rows for file in self.files), self.table.keys)

    def _frame(self, session: SparkSession, schema_json: str) -> DataFrame:
        rows = frame_in_columns(session, schema_json, self.history, [file.path for file in self.files])
        return RowsPerKey(tuple(self.table.keys)).current(rows.where(F.col(SEQUENCE_ID) <= self.to))
