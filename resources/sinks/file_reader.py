"""What is read from a folder or a prefix that is a sink: the rows of its files, and the ids that have one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.resources.sinks.sink_files import SinkFiles

if TYPE_CHECKING:
    import pyarrow as pa


class FileReader:
    """The files of one sink."""

    def __init__(self, files: SinkFiles) -> None:
        self._files = files
        self._place = files.place

    def row_count(self) -> int | None:
        """Return None: the rows are not counted."""
        return None

    def rows_above(self, to: int) -> int:
        """Return the number of rows in the files of ids above `to` (exclusive); it reads one file at a time."""
        return sum(self._files.rows([number]).num_rows for number in self._files.ids() if number > to)

    def newest_id(self) -> int:
        """Return the largest id that has a file, 0 without one."""
        return max(self._files.ids(), default=INITIAL_ID)

    def counts(self) -> dict[int, int | None]:
        """Return None by id for each id that has a file: its rows are not counted.

        A file that a rewind noted as withdrawn, and could not delete before it was killed, does not count.
        """
        is_withdrawn = self._place.withdrawn()
        return {number: None for number in self._files.ids() if not is_withdrawn(self._files.name(number))}

    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pa.compute.Expression | None = None,
        *,
        upto: int | None = None,
    ) -> pa.Table:
        """Return the rows for which `where` holds, sorted by id; the names of the files have the ids.

        Args:
            columns: all by default.
            where: a condition on any of the columns.
            upto: the last id (inclusive) whose file is read.
        """
        rows = self._files.rows(number for number in self._files.ids() if upto is None or number <= upto)
        rows = rows if where is None else rows.filter(where)
        return rows if columns is None else rows.select(list(columns))

    def read_ids(self, ids: Collection[int]) -> pa.Table:
        """Return the rows of some ids, sorted by id; it reads no other files."""
        return self._files.rows(set(ids).intersection(self._files.ids()))
