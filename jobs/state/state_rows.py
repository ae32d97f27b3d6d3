"""The rows in the files of a keyed state: read as a whole, looked up by key, or as a frame for Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from drainmark.jobs.frames.arrow import arrow_of, frame_of
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state import due_rows
from drainmark.jobs.state.due_rows import DueRows, DueSpan, hashes_due
from drainmark.jobs.state.keyed_rows import rows_of_keys
from drainmark.jobs.state.run_files import KEY_HASH, RunIndex, hashes_here, key_hash, rows_of_hashes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_ROW = "__row"


class StateFiles(Protocol):
    """The files of a CHANGES table; only the store knows their places."""

    def read_each(self, files: Sequence[StagedFile], columns: Sequence[str] | None = None) -> Iterator[pa.Table]: ...
    def frame(self, session: SparkSession, files: Sequence[StagedFile], schema: StructType) -> DataFrame: ...
    def holds(self, files: Sequence[StagedFile]) -> bool: ...
    def source(self, file: StagedFile) -> Any: ...


@dataclass(slots=True, kw_only=True)
class StateRows:
    """A reader of the files of one state: runs, and changes after them.

    Attributes:
        stored: the table's files.
        schema: Spark's type of the rows.
        hashed: the key columns by which rows are looked up; runs are sorted by the hash of these columns.
    """

    stored: StateFiles
    schema: Any
    hashed: tuple[str, ...] = ()
    _indexes: dict[str, RunIndex | None] = field(default_factory=dict)

    def read(self, files: Sequence[StagedFile], after: int = 0) -> pa.Table | None:
        """Return the rows of files with ids above `after`; None if there are no files.

        A compacted file of changes may also hold ids at or below the image's id.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        found = []
        for rows in self.stored.read_each(files):
            own = rows.drop_columns([KEY_HASH]) if KEY_HASH in rows.column_names else rows
            found.append(own.filter(pc.greater(own[SEQUENCE_ID], after)) if after else own)
        return pa.concat_tables(found, promote_options="permissive") if found else None

    def look_up(
        self, files: Iterable[StagedFile], young: pa.Table | None, keys: pa.Table, due: DueRows | None = None
    ) -> pa.Table | None:
        """Return the rows of some keys, from files of runs and from changes in memory; None for no rows.

        In a sorted file, only the row groups that can hold the keys are read.

        Args:
            keys: the columns `hashed` and their `KEY_HASH`; a key may be there twice.
            due: further rows to look up. With it, the result may have rows of other keys with the same hash.
        """
        import numpy as np
        import pyarrow as pa

        hashes = np.unique(keys[KEY_HASH].to_numpy())
        asked = [keys]
        if due is not None:
            hashes = np.union1d(hashes, due.hashes)
            asked += [due.young] if due.young is not None else []
        found = [rows for file in files for rows in self._near(file, hashes) if rows.num_rows]
        if due is None:
            found = [rows_of_keys(rows, keys, self.hashed) for rows in found]
        else:
            asked += found  # the rows that replaced these may be young
        if young is not None:
            types = {name: young.schema.field(name).type for name in self.hashed}
            of = [pa.table({name: rows[name].cast(types[name]) for name in self.hashed}) for rows in asked]
            found.append(rows_of_keys(young, pa.concat_tables(of), self.hashed))
        chosen = [rows for rows in found if rows.num_rows]
        return pa.concat_tables(chosen, promote_options="permissive") if chosen else None

    def due(self, files: Iterable[StagedFile], young: pa.Table | None, span: DueSpan) -> DueRows | None:
        """Return the places of rows that may be due; None if they are too many, or if a file of runs is unsorted."""
        import numpy as np

        due_young = span.of(young) if young is not None else None
        count, found = due_young.num_rows if due_young is not None else 0, [np.array([], np.int64)]
        for file in files:
            if (index := self._index(file)) is None:
                return None
            for hashes in hashes_due(partial(self.stored.source, file), index, span):
                found.append(hashes.to_numpy())
                count += len(hashes)
                if count > due_rows.FEW_ROWS:
                    return None
        return DueRows(np.concatenate(found), due_young) if count <= due_rows.FEW_ROWS else None

    def _near(self, file: StagedFile, hashes: Any) -> Iterator[pa.Table]:
        """Return the rows of a file that may have one of some hashes; all rows if the file is unsorted."""
        index = self._index(file)
        return (
            self.stored.read_each([file])
            if index is None
            else rows_of_hashes(partial(self.stored.source, file), index, hashes)
        )

    def are_sorted(self, files: Iterable[StagedFile]) -> bool:
        """Say whether the rows of all files are sorted by hash."""
        return all(self._index(file) is not None for file in files)

    def forget_others(self, files: Iterable[StagedFile]) -> None:
        """Keep the indexes of some files, and drop all others."""
        kept = {file.path for file in files}
        self._indexes = {path: index for path, index in self._indexes.items() if path in kept}

    def frame(
        self, session: SparkSession, runs: Sequence[StagedFile], changes: Sequence[StagedFile], at: int
    ) -> DataFrame:
        """Return the rows of runs and of the changes after an id (exclusive); at least one file must be given."""
        frames = [self.stored.frame(session, runs, self.schema)] if runs else []
        if changes:
            frames.append(self.stored.frame(session, changes, self.schema).where(F.col(SEQUENCE_ID) > at))
        return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])

    def local(self, session: SparkSession, rows: pa.Table) -> DataFrame:
        """Return rows of the state that are in memory as a frame of one partition."""
        from pyspark.sql.types import StructType

        return frame_of(session, rows, StructType([self.schema[name] for name in rows.column_names])).coalesce(1)

    def with_hashes(self, session: SparkSession, rows: pa.Table) -> pa.Table:
        """Return rows that are in memory with the hash by which they are looked up; at most the keys go to Spark."""
        import numpy as np
        import pyarrow as pa
        from pyspark.sql.types import LongType, StructField, StructType

        here = hashes_here(rows, self.hashed)
        if here is not None:
            return rows.append_column(KEY_HASH, pa.array(here))
        numbered = rows.select(self.hashed).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
        types = StructType([*(self.schema[name] for name in self.hashed), StructField(_ROW, LongType())])
        found = arrow_of(frame_of(session, numbered, types).select(_ROW, key_hash(self.hashed))).sort_by(_ROW)
        return rows.append_column(KEY_HASH, found[KEY_HASH])

    def _index(self, file: StagedFile) -> RunIndex | None:
        if file.path not in self._indexes:
            self._indexes[file.path] = RunIndex.read(self.stored.source(file), self.hashed)
        return self._indexes[file.path]
