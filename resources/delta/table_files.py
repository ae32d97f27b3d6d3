"""The files of a managed table: the visible ones, and other files below its folder that a checkpoint row names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames import tags
from drainmark.jobs.frames.arrow import relaxed_type
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RowsOf, StagedFile
from drainmark.jobs.protocol.rewind_steps import cut_at
from drainmark.jobs.state.keyed_rows import present
from drainmark.jobs.tasks.parquet_files import frame_of_files, frame_of_shares
from drainmark.jobs.tasks.parquet_shares import FileShare, RowFile
from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.delta.log import marked_files
from drainmark.resources.delta.log.commit_log import SoleWriter
from drainmark.resources.delta.merge import arrow_schema, of_ids, up_to
from drainmark.resources.delta.staging import Staging
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class TableFiles:
    """A reader of the files of one table; it holds no open file between calls.

    Args:
        folder: of the table.
        writer: keeps the table object between calls; None to open the table each time.
    """

    def __init__(self, folder: Folder, writer: SoleWriter | None = None) -> None:
        self._folder = folder
        self._writer = writer

    def live(self) -> tuple[StagedFile, ...]:
        """Return the visible files in the order of their ids."""
        with delta_tables.newest(self._folder, self._writer) as table:
            return file_lists.live_files(table, self._folder)

    def up_to(self, through: int) -> tuple[StagedFile, ...]:
        """Return the visible files in which all ids are at most `through`."""
        return tuple(file for file in self.live() if file.last_id is not None and file.last_id <= through)

    def last_of(self, files: Iterable[StagedFile]) -> int:
        """Return the largest id of the rows in visible files, 0 if there is none.

        It is in the statistics; but those of a file with a deletion vector may have the id of a row that has left.
        """
        newest = INITIAL_ID
        for file in sorted(files, key=lambda file: file.vector is not None):
            if (file.last_id or INITIAL_ID) > newest:
                newest = max(newest, self._last_id(file, file.last_id))
        return newest

    def rows_above(self, to: int) -> int:
        """Return the number of rows with ids above `to`, from statistics; only files that straddle `to` are read."""
        cut = cut_at(self.live(), to)
        whole = sum(file.rows for file in cut.whole)
        straddling = self.pieces(cut.straddling, [SEQUENCE_ID])
        return whole + sum(int(rows.filter(~up_to(to)).num_rows) for rows in straddling)

    def read(self, files: Sequence[StagedFile], where: pa.compute.Expression | None = None) -> pa.Table:
        """Return the rows of files below the table's folder, visible or not, in the table's columns."""
        with delta_tables.newest(self._folder, self._writer) as table:
            schema = arrow_schema(table)
        return marked_files.read(self._folder, files, schema, None, where)

    def read_each(self, files: Sequence[StagedFile], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of each file, visible or not, in the order given and in the columns of the file."""
        return self._folder.read_each([file.path for file in files], columns)

    def pieces(self, files: Sequence[StagedFile], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield rows as `read_each` does, but a large file one row group at a time, so that few are in memory."""
        for file in files:
            yield from marked_files.pieces(self._folder, file, columns)

    def newest(self, files: Sequence[StagedFile], to: int | None = None, *, deletes: bool = False) -> RowsOf:
        """Return the last id up to `to` (inclusive) with rows in some files, and the files that may hold it.

        Args:
            deletes: an id may have a row that is gone instead of rows; if it is the last, no id is returned.
        """
        newest = INITIAL_ID
        for file in sorted(files, key=lambda file: file.last_id or 0, reverse=True):
            if (file.last_id or 0) > newest and (to is None or (file.first_id or 0) <= to):
                newest = max(newest, self._last_id(file, to))
        ids = (newest,) if newest > INITIAL_ID else ()
        near = [file for file in files if file.may_hold(ids)]
        return ((), []) if deletes and self._is_gone(ids, near) else (ids, near)

    def _is_gone(self, ids: Collection[int], files: Sequence[StagedFile]) -> bool:
        rows = (rows.filter(of_ids(ids)) for rows in self.pieces(files, [SEQUENCE_ID, GONE]))
        return any(present(some).num_rows < some.num_rows for some in rows)

    def _last_id(self, file: StagedFile, to: int | None) -> int:
        """Return the largest id up to `to` (inclusive) with rows in a file, which is read only if it has others."""
        import pyarrow.compute as pc

        if to is None or (file.vector is None and (file.last_id or 0) <= to):
            return file.last_id or INITIAL_ID
        found = (rows.filter(pc.field(SEQUENCE_ID) <= to) for rows in self.pieces([file], [SEQUENCE_ID]))
        return max((pc.max(rows[SEQUENCE_ID]).as_py() or INITIAL_ID for rows in found), default=INITIAL_ID)

    def newest_rows(
        self, files: Sequence[StagedFile], to: int | None = None, *, deletes: bool = False
    ) -> pa.Table | None:
        """Return the rows of the last id up to `to` (inclusive) with rows in some files; None without any."""
        import pyarrow as pa

        ids, near = self.newest(files, to, deletes=deletes)
        found = [rows.filter(of_ids(ids)) for rows in self.pieces(near)] if ids else []
        return pa.concat_tables(found, promote_options="permissive") if found else None

    def copied(self, ids: Collection[int], staging: Staging) -> tuple[StagedFile, ...]:
        """Stage a copy of the visible rows of some ids, by tasks if they are many; see `Staging.rewrite`."""
        table = delta_tables.open_table(self._folder)
        near = [[file] for file in file_lists.live_files(table, self._folder) if file.may_hold(ids)]
        return staging.rewrite(near, arrow_schema(table), of_ids(ids))

    def source(self, file: StagedFile) -> Any:
        """Return the path or file object that pyarrow opens to read a file, visible or not."""
        return self._folder.source(file.path)

    def holds(self, files: Sequence[StagedFile]) -> bool:
        """Say whether all files exist, visible or not: `gc` deletes images that no rewind reaches any more."""
        try:
            return all(self._folder.size(file.path) == file.size for file in files)
        except FileNotFoundError:
            return False

    def frame(self, session: SparkSession, files: Sequence[StagedFile], schema: StructType) -> DataFrame:
        """Return the rows of one or more files, visible or not, as a frame."""
        place, plain = self._folder.place, [file for file in files if marked_files.is_plain(file)]
        sizes = [file.size for file in plain]
        frames = [frame_of_files(session, place, [file.path for file in plain], schema, sizes)] if plain else []
        if len(plain) < len(files):
            kind = relaxed_type(schema)
            columns, others = tags.arrow_schema(kind), (file for file in files if not marked_files.is_plain(file))
            shares = [FileShare(files=(RowFile.of(file),), place=place, schema=columns) for file in others]
            frames.append(frame_of_shares(session, shares, kind))
        return reduce(lambda left, right: left.unionByName(right), frames)
