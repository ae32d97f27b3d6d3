"""Runs of a keyed state, written by tasks: the last rows of each key, sorted by the hash of the key.

A flush gives a task sorted rows of changes. A merge gives it a range of hashes, and the task reads that range from all
files: a bounded number of rows is in memory, however large the state is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.jobs.state.run_files import KEY_HASH, ROWS_A_GROUP, RunIndex, key_hash, notes_of
from drainmark.jobs.tasks.executor import Facts, OnSpark
from drainmark.jobs.tasks.parquet_files import ROW_GROUP_BYTES, WrittenFile, write_groups, written_files
from drainmark.jobs.tasks.places import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_GROUPS_AT_ONCE = 32
_FILE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWriter:
    """A writer of the files of one run.

    Attributes:
        place, folder: of the files.
        per_key: selects the rows of a key that are kept.
        hashed: the columns that are hashed; the rows are sorted by that hash.
        is_oldest: there is no older run, so deleted keys need no row.
    """

    place: Place
    folder: str
    per_key: RowsPerKey
    hashed: tuple[str, ...]
    is_oldest: bool

    def flush(self, rows: DataFrame, size: int) -> list[WrittenFile]:
        """Write the rows of changes, in any order, as a run.

        Args:
            size: bytes of the files that the rows come from.

        Raises:
            OSError, StoreUnavailable: a task could not write.
        """
        count = -(-size // _FILE_BYTES)
        keyed = rows.select("*", key_hash(self.hashed))
        parts = keyed.repartitionByRange(count, KEY_HASH) if count > 1 else keyed.coalesce(1)
        sorted_rows = parts.sortWithinPartitions(KEY_HASH)
        return written_files(OnSpark(rows.sparkSession).run_over(sorted_rows, FlushTask(self)))

    def merge(self, session: SparkSession, names: Sequence[str], size: int) -> list[WrittenFile]:
        """Write the rows of files of runs as one run.

        Args:
            names: of the files, below the place.
            size: bytes of all files together.

        Raises:
            OSError, StoreUnavailable: a task could not read or write.
        """
        task, tasks = MergeTask(self, tuple(names)), OnSpark(session)
        bounds = (None, *self._cuts(names, -(-size // _FILE_BYTES)), None)
        # One job of one task each: the other cores are for the groups.
        return [file for share in itertools.pairwise(bounds) for file in written_files(tasks.run(task, [share]))]

    def _cuts(self, names: Sequence[str], count: int) -> tuple[int, ...]:
        """Return the hashes that cut files into about equal parts."""
        import numpy as np

        if count < 2:
            return ()  # the footers need not be read
        firsts = np.sort(np.concatenate([self.index(name).first for name in names]))
        cuts = {int(firsts[len(firsts) * part // count]) for part in range(1, count)}
        return tuple(sorted(cuts))

    def index(self, name: str) -> RunIndex:
        """Return the index of a file: the bounds of the hashes in each row group."""
        index = RunIndex.read(self.place.opened(name), self.hashed)
        if index is None:
            raise ValueError(f"{name} is not sorted by the hash of {', '.join(self.hashed)}")
        return index

    def write(self, sorted_rows: Iterable[pa.Table]) -> WrittenFile | None:
        """Write one file of rows that come in the order of their hashes; no file if no row is kept."""
        return write_groups(self._groups(sorted_rows), self.place, self.folder, notes=notes_of(self.hashed))

    def _groups(self, sorted_rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the rows that are kept, as row groups."""
        import pyarrow as pa

        left: pa.Table | None = None
        for rows in with_whole_keys(sorted_rows, ROWS_A_GROUP):
            kept = self.per_key.last(rows) if self.is_oldest else self.per_key.newest(rows)
            left = kept if left is None else pa.concat_tables([left, kept], promote_options="permissive")
            size = min(ROWS_A_GROUP, max(1, left.num_rows * ROW_GROUP_BYTES // max(1, left.nbytes)))
            while left.num_rows >= size:
                yield left.slice(0, size)
                left = left.slice(size)
        if left is not None and left.num_rows:
            yield left


@dataclass(frozen=True, slots=True)
class FlushTask:
    """The writing of sorted rows to one file."""

    writer: RunWriter

    def work(self, share: Iterator[pa.RecordBatch]) -> Iterator[Facts]:
        """Write the rows of a share, and yield the facts of the file, if a row is kept."""
        import pyarrow as pa

        file = self.writer.write(pa.Table.from_batches([batch]) for batch in share)
        if file is not None:
            yield asdict(file)


@dataclass(frozen=True, slots=True)
class MergeTask:
    """The merge of runs; a share is a range of hashes, from the first (inclusive) to the second (exclusive).

    Attributes:
        names: of the files of the runs.
    """

    writer: RunWriter
    names: tuple[str, ...]

    def work(self, share: tuple[int | None, int | None]) -> Iterator[Facts]:
        """Write the rows of a share to one file, and yield the facts of the file, if a row is kept."""
        file = self.writer.write(self._rows(*share))
        if file is not None:
            yield asdict(file)

    def _rows(self, first: int | None, below: int | None) -> Iterator[pa.Table]:
        """Yield the rows of a range of hashes, in the order of the hashes."""
        import pyarrow as pa

        indexes = {name: self.writer.index(name) for name in self.names}
        longest = max((index.first[index.groups_within(first, below)] for index in indexes.values()), key=len)
        steps = [int(each) for each in longest[_GROUPS_AT_ONCE::_GROUPS_AT_ONCE]]
        for start, end in zip([first, *steps], [*steps, below], strict=True):
            found = [self._within(name, index, start, end) for name, index in indexes.items()]
            yield pa.concat_tables(found, promote_options="permissive").sort_by(KEY_HASH)

    def _within(self, name: str, index: RunIndex, first: int | None, below: int | None) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.writer.place.opened(name), metadata=index.metadata) as file:
            rows = file.read_row_groups(list(index.groups_within(first, below)))
        is_in = pa.repeat(True, rows.num_rows)
        for bound, compare in ((first, pc.greater_equal), (below, pc.less)):
            if bound is not None:
                is_in = pc.and_(is_in, compare(rows[KEY_HASH], bound))
        return rows.filter(is_in)


def with_whole_keys(sorted_rows: Iterable[pa.Table], count: int) -> Iterator[pa.Table]:
    """Yield rows in the order of their hashes, `count` or more at a time; rows of one hash are in one table."""
    import pyarrow as pa

    held: pa.Table | None = None
    for rows in sorted_rows:
        if not rows.num_rows:
            continue
        held = rows if held is None else pa.concat_tables([held, rows], promote_options="permissive")
        if held.num_rows >= count and held[KEY_HASH][0] != held[KEY_HASH][-1]:
            ends = _first_of_last(held[KEY_HASH])
            yield held.slice(0, ends)
            held = held.slice(ends)
    if held is not None:
        yield held


def _first_of_last(hashes: Any) -> int:
    """Return the index of the first row with the last hash."""
    import numpy as np

    values = hashes.to_numpy()
    return int(np.searchsorted(values, values[-1], side="left"))
