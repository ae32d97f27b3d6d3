"""Visible tables of one row a key that are too large for one process: tasks of Spark write files of them anew.

What has changed is in files of the table's history, so no row passes through this process. On one machine this process
does the same with a quarter of the work (`keyed_rewrite`), and holds all that has changed several times: there tables
are large where much has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.row_types import arrow_schema
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.jobs.tasks.file_shares import FILE
from drainmark.jobs.tasks.parquet_files import frame_of_files, frame_of_shares, own_shares
from drainmark.resources.delta import commits
from drainmark.resources.delta.commit_log import SoleWriter
from drainmark.resources.delta.commits import Act, Faults, Published
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging, verify
from drainmark.resources.delta.upkeep.compaction import SMALL_FILE_BYTES
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_BYTES = 128 * 2**20

_FOLDED_FILES = 8
"""So many small files are written as one with the next rows."""

_BROADCAST_BYTES = 8 * 2**20
"""Of files: rows of more are not sent to every executor by way of the driver."""

_MUCH_OF_TABLE = 8
"""Where more than this part of a table's bytes has changed, its files are not searched for the changed keys."""


class LargeTable(ManagedTable):
    """A visible table of an upsert sink, for one publish or rewind.

    Args:
        root, region, faults, writer: as for `ManagedTable`.
        session: whose tasks read and write the files.
        staging: where new files go.
    """

    def __init__(
        self,
        root: Folder,
        region: str,
        session: SparkSession,
        staging: Staging,
        *,
        faults: Faults | None,
        writer: SoleWriter | None,
    ) -> None:
        super().__init__(root, region, faults=faults, writer=writer)
        self._session = session
        self._staging = staging

    def merge_files(
        self, version: int, history: ManagedTable, files: Sequence[StagedFile], keys: Sequence[str], *, above: int = 0
    ) -> Published:
        """Bring the table up to rows of its history: the last one of each key replaces the row that is there.

        Args:
            version: of the checkpoint row that is published.
            history: table of one row a changed key and id.
            files: of it, visible or not.
            keys: key columns; nulls are equal.
            above: rows of ids up to this one do not count.
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
            made = self._rewrite(keys).replacing(table, *found, 0)  # what comes takes the place of as much
            return lambda: commits.transact(table, self.region, version, adds=made.adds, removes=made.leaving)

        return self._commit("rewind_table", version, prepare)

    def _rewrite(self, keys: Sequence[str]) -> TaskRewrite:
        return TaskRewrite(session=self._session, folder=self.folder, staging=self._staging, keys=keys)

    def _rows(self, table: Any, folder: Folder, paths: Sequence[str]) -> DataFrame:
        return frame_in_columns(self._session, table.schema().to_json(), folder, paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """What tasks wrote anew of a table.

    Attributes:
        seen: paths of the table's files by then.
        adds: files that come.
        leaving: files that leave.
    """

    seen: frozenset[str]
    adds: tuple[StagedFile, ...]
    leaving: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRewrite:
    """Has Spark's tasks write the files of a table of one row a key anew in which keys have changed.

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
        """Write files with rows, one a key, in the place of those of all changed keys.

        Args:
            opened: the table.
            size: bytes of the files with these rows.
        """
        live = commits.live_files(opened, self.folder)
        leaving = self._touched(opened, live, changed, size)
        if leaving:
            others = self._others(opened, leaving, changed)
            rows = others.unionByName(rows.select(*(F.col(f"`{name}`") for name in others.columns)))
        size += sum(file.size for file in leaving)
        return Rewriting(seen=frozenset(file.path for file in live), adds=self._written(rows, size), leaving=leaving)

    def following(self, opened: Any, before: Rewriting, changed: DataFrame) -> Rewriting | None:
        """Return what `replacing` wrote for a table that others changed meanwhile; only their files are looked through.

        None where they changed files that were to leave, or where the commit that was given up has landed after all.
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
        """Return the rows of files whose keys have not changed."""
        shown = frame_in_columns(self.session, opened.schema().to_json(), self.folder, [file.path for file in files])
        return RowsPerKey(tuple(self.keys)).others(shown, changed)

    def _written(self, rows: DataFrame, size: int) -> tuple[StagedFile, ...]:
        adds = self.staging.write_frame(spread(rows, size, self.keys), "merged")
        verify(self.folder, adds)
        return adds

    def _touched(
        self, opened: Any, live: tuple[StagedFile, ...], changed: DataFrame, size: int
    ) -> tuple[StagedFile, ...]:
        """Return the files with rows of changed keys, and the small ones where there are many; all, where so much has
        changed that few have none."""
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
    """Return the rows of files below a folder in the columns of a schema, Spark's JSON of it."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(schema_json))
    return frame_of_files(session, folder.place, paths, schema)


def merged_by_sort(rows: DataFrame, size: int) -> DataFrame:
    """Return rows which Spark does not broadcast if they are of many bytes: it takes what tasks give for small."""
    return rows.hint("merge") if size > _BROADCAST_BYTES else rows


def spread(rows: DataFrame, size: int, keys: Sequence[str]) -> DataFrame:
    """Return rows in as many partitions as there will be files of so many bytes."""
    return rows.repartition(max(1, -(-size // _FILE_BYTES)), *(F.col(f"`{key}`") for key in keys))


def frames_to_restore(
    read: Callable[[Sequence[str]], DataFrame],
    history: ManagedTable,
    images: Sequence[str],
    to: int,
    keys: Sequence[str],
    *,
    since: int | None,
) -> tuple[DataFrame, DataFrame] | None:
    """Return the keys that changed after an id, and the last row up to `to` of those that have one; None without any.

    Args:
        read: gives the rows of files of the history.
        since: that id; `to` by default.
    """
    after, live = to if since is None else since, history.files.live()
    later = [file for file in live if (file.last_id or 0) > after]
    above = [*(file.path for file in later), *images]
    below = [*(file.path for file in live if (file.first_id or 0) <= to), *images]
    if not above:
        return None
    changed = read(above).where(F.col(SEQUENCE_ID) > after).select(*(F.col(f"`{key}`") for key in keys)).distinct()
    size = sum(file.size for file in later) + (_BROADCAST_BYTES + 1 if images else 0)  # an image has all keys
    changed, per_key = merged_by_sort(changed, size), RowsPerKey(tuple(keys))
    earlier = read(below or above).where(F.col(SEQUENCE_ID) <= to)
    return changed, per_key.current(per_key.matching(earlier, changed))
