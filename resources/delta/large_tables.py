"""Visible tables with one row for each key that are too large for one process: Spark tasks rewrite their files.

The changed rows are in files of the table's history, so no row passes through this process. On one machine, this
process does the same with a quarter of the work (`keyed_rewrite`), but holds all changed rows several times in memory:
there, a table counts as large only if many rows have changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.row_types import arrow_schema
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.jobs.tasks.file_shares import FILE
from drainmark.jobs.tasks.parquet_files import frame_of_files, frame_of_shares, own_shares
from drainmark.resources.delta import commits
from drainmark.resources.delta.commit_log import SoleWriter
from drainmark.resources.delta.commits import Act, Published
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging, verify
from drainmark.resources.delta.upkeep.compaction import SMALL_FILE_BYTES
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_BYTES = 128 * 2**20

_FOLDED_FILES = 8
"""From this number on, small files are rewritten together with the next rows."""

_BROADCAST_BYTES = 8 * 2**20
"""Rows of files with more bytes than this are not sent through the driver to every executor."""

_MUCH_OF_TABLE = 8
"""If the changed bytes times this exceed the bytes of the table, its files are not searched for changed keys."""


class LargeTable(ManagedTable):
    """A visible table of an upsert sink, for one publish or rewind.

    Args:
        root, region, writer: as for `ManagedTable`.
        session: its tasks read and write the files.
        staging: where new files go.
    """

    def __init__(
        self,
        root: Folder,
        region: str,
        session: SparkSession,
        staging: Staging,
        *,
        writer: SoleWriter | None,
    ) -> None:
        super().__init__(root, region, writer=writer)
        self._session = session
        self._staging = staging

    def merge_files(
        self, version: int, history: ManagedTable, files: Sequence[StagedFile], keys: Sequence[str], *, above: int = 0
    ) -> Published:
        """Merge rows of the table's history: the last row of each key replaces its row in the table, or is added.

        Args:
            version: of the checkpoint row that is published.
            history: table of one row for each id and key that it changed.
            files: of the history, visible or not.
            keys: key columns; nulls are equal.
            above: only rows with ids above this one count.
        """

        def prepare(table: Any) -> Act:
            if not files:
                return lambda: commits.transact(table, self.region, version)
            rows = self._rows(table, history.folder, [file.path for file in files]).where(F.col(SEQUENCE_ID) > above)
            size = sum(file.size for file in files)
            last = merged_by_sort(RowsPerKey(tuple(keys)).current(rows), size)
            made = self._rewrite(keys).replacing(table, last, last, size)
            return lambda: commits.transact(table, self.region, version, adds=made.adds, removes=made.leaving)

        return self._commit("publish", version, prepare)

    def rewind_upsert(
        self,
        version: int,
        to: int,
        history: ManagedTable,
        keys: Sequence[str],
        columns: Sequence[str],
        *,
        images: Sequence[str] = (),
        since: int | None = None,
    ) -> Published:
        def prepare(table: Any) -> Act:
            def read(paths: Sequence[str]) -> DataFrame:
                return self._rows(table, history.folder, paths)

            found = frames_to_restore(read, history, images, to, keys, since=since)
            if found is None:
                return lambda: commits.transact(table, self.region, version)
            made = self._rewrite(keys).replacing(table, *found, 0)  # the rows replace about as many
            return lambda: commits.transact(table, self.region, version, adds=made.adds, removes=made.leaving)

        return self._commit("rewind_table", version, prepare)

    def _rewrite(self, keys: Sequence[str]) -> TaskRewrite:
        return TaskRewrite(session=self._session, folder=self.folder, staging=self._staging, keys=keys)

    def _rows(self, table: Any, folder: Folder, paths: Sequence[str]) -> DataFrame:
        return frame_in_columns(self._session, table.schema().to_json(), folder, paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """The result of a rewrite of some files of a table by tasks.

    Attributes:
        seen: paths of all files of the table at that time.
        adds: files to add.
        leaving: files to remove.
    """

    seen: frozenset[str]
    adds: tuple[StagedFile, ...]
    leaving: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRewrite:
    """A rewrite, by Spark's tasks, of those files of a table with one row for each key in which keys have changed.

    Attributes:
        folder: of the table.
        staging: where new files go.
        keys: key columns.
    """

    session: SparkSession
    folder: Folder
    staging: Staging
    keys: Sequence[str]

    def replacing(self, opened: Any, changed: DataFrame, rows: DataFrame, size: int) -> Rewriting:
        """Write files in which `rows`, one for each key, replace the rows of all changed keys.

        Args:
            opened: the table.
            size: bytes of the files with these rows.
        """
        live = commits.live_files(opened, self.folder)
        leaving = self._touched(opened, live, changed, size)
        if leaving:
            others = self._others(opened, leaving, changed)
            rows = others.unionByName(rows.select(*(F.col(quoted_name(name)) for name in others.columns)))
        size += sum(file.size for file in leaving)
        return Rewriting(seen=frozenset(file.path for file in live), adds=self._written(rows, size), leaving=leaving)

    def following(self, opened: Any, before: Rewriting, changed: DataFrame) -> Rewriting | None:
        """Adapt the result of `replacing` to a table that others changed meanwhile; only their new files are searched.

        Return None if others removed files that were to leave, or if the commit that failed has landed after all.
        """
        live = commits.live_files(opened, self.folder)
        paths = frozenset(file.path for file in live)
        if not paths.issuperset(file.path for file in before.leaving):
            return None
        if not paths.isdisjoint(file.path for file in before.adds):
            return None
        theirs = [file for file in live if file.path not in before.seen]
        found = self._with_keys(opened, theirs, changed)
        touched = tuple(file for file in theirs if file.path in found)
        size = sum(file.size for file in touched)
        adds = self._written(self._others(opened, touched, changed), size) if touched else ()
        return Rewriting(seen=paths, adds=(*before.adds, *adds), leaving=(*before.leaving, *touched))

    def _others(self, opened: Any, files: Sequence[StagedFile], changed: DataFrame) -> DataFrame:
        """Return the rows of files, without the rows of changed keys."""
        shown = frame_in_columns(self.session, opened.schema().to_json(), self.folder, [file.path for file in files])
        return RowsPerKey(tuple(self.keys)).others(shown, changed)

    def _written(self, rows: DataFrame, size: int) -> tuple[StagedFile, ...]:
        adds = self.staging.write_frame(spread(rows, size, self.keys), "merged")
        verify(self.folder, adds)
        return adds

    def _touched(
        self, opened: Any, live: tuple[StagedFile, ...], changed: DataFrame, size: int
    ) -> tuple[StagedFile, ...]:
        """Return the files with rows of changed keys, and the small files if there are many; return all files if so
        much has changed that nearly every file has a changed key."""
        if len(live) < 2 or size * _MUCH_OF_TABLE > sum(file.size for file in live):
            return live
        small = {file.path for file in live if file.size < SMALL_FILE_BYTES}
        touched = self._with_keys(opened, live, changed)
        if len(small) >= _FOLDED_FILES:
            touched |= small
        return tuple(file for file in live if file.path in touched)

    def _with_keys(self, opened: Any, files: Sequence[StagedFile], changed: DataFrame) -> set[str]:
        """Return the paths of the files with rows of changed keys."""
        from pyspark.sql.types import StructType

        if not files:
            return set()
        fields = StructType.fromJson(json.loads(opened.schema().to_json())).fields
        keys = StructType([field for field in fields if field.name in self.keys])
        paths, sizes = [file.path for file in files], [file.size for file in files]
        shares = own_shares(self.folder.place, paths, arrow_schema(keys), sizes)
        there = frame_of_shares(self.session, shares, keys, has_paths=True)
        found = RowsPerKey(tuple(self.keys)).matching(there, changed).select(FILE).distinct().collect()
        return {row[FILE] for row in found}


def frame_in_columns(session: SparkSession, schema_json: str, folder: Folder, paths: Sequence[str]) -> DataFrame:
    """Return the rows of files below a folder in the columns of a schema, given as Spark's JSON."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(schema_json))
    return frame_of_files(session, folder.place, paths, schema)


def merged_by_sort(rows: DataFrame, size: int) -> DataFrame:
    """Return rows that Spark does not broadcast if they have many bytes: it takes all output of tasks for small."""
    return rows.hint("merge") if size > _BROADCAST_BYTES else rows


def spread(rows: DataFrame, size: int, keys: Sequence[str]) -> DataFrame:
    """Return rows in partitions by key, one partition for each file to write; `size` is the bytes of all rows."""
    return rows.repartition(max(1, -(-size // _FILE_BYTES)), *(F.col(quoted_name(key)) for key in keys))


def frames_to_restore(
    read: Callable[[Sequence[str]], DataFrame],
    history: ManagedTable,
    images: Sequence[str],
    to: int,
    keys: Sequence[str],
    *,
    since: int | None,
) -> tuple[DataFrame, DataFrame] | None:
    """Return the keys that changed after `since`, and their last rows up to `to`, if any; None if no key changed.

    Args:
        read: returns the rows of files of the history.
        since: an id (exclusive); `to` by default.
    """
    after, live = to if since is None else since, history.files.live()
    later = [file for file in live if (file.last_id or 0) > after]
    above = [*(file.path for file in later), *images]
    below = [*(file.path for file in live if (file.first_id or 0) <= to), *images]
    if not above:
        return None
    changed = (
        read(above).where(F.col(SEQUENCE_ID) > after).select(*(F.col(quoted_name(key)) for key in keys)).distinct()
    )
    size = sum(file.size for file in later) + (_BROADCAST_BYTES + 1 if images else 0)  # an image has all keys
    changed, per_key = merged_by_sort(changed, size), RowsPerKey(tuple(keys))
    earlier = read(below or above).where(F.col(SEQUENCE_ID) <= to)
    return changed, per_key.current(per_key.matching(earlier, changed))
