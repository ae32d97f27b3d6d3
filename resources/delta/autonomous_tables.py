"""Tables that are written outside of every region: no id is a fence here, so the same rows may come twice.

The commits are the guarded ones of `resources/delta/commits.py`, each read back until it is found, but without a
`txnVersion`. No rewind touches these tables, and no checkpoint row names them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import SchemaMismatch, StoreUnavailable
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.tasks.executor import Here
from drainmark.jobs.tasks.layout import NO_LAYOUT
from drainmark.jobs.tasks.parquet_shares import RowFile
from drainmark.resources.delta import commits, file_lists
from drainmark.resources.delta.commits import Act
from drainmark.resources.delta.keyed.keyed_changes import GivenRows, KeyedChanges
from drainmark.resources.delta.keyed.keyed_merge import Changes, KeyedMerge, Rewriting
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Executors, Staging, verify
from drainmark.resources.delta.turns import Turn
from drainmark.resources.delta.upkeep.upkeep import Upkeep, small_neighbours
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_EVERY_COMMITS = 50
"""Upkeep of the log follows each commit with a Delta version that is a multiple of this."""


class AutonomousTable(ManagedTable):
    """A Delta table of an application's autonomous operators; created with the first rows.

    Args:
        root: folder of the table.
        owner: name of the application that owns the table.
        executors: as for `Staging`.
    """

    def __init__(self, root: Folder, owner: str, *, executors: Executors = lambda size: Here()) -> None:
        super().__init__(root, owner)
        self.writer = None  # commits here have no transaction, so their author is unknown
        self.upkeep = Upkeep(self.folder, owner, writer=None)
        self._executors = executors
        self._is_made: set[str] = set()

    def append(self, rows: pa.Table, schema_json: str) -> int:
        """Add rows in one commit; return Delta's version.

        Args:
            schema_json: Spark's JSON of the rows' schema.

        Raises:
            ForeignTable: the table is not the application's.
            SchemaMismatch: it has other columns.
            CommitOutcomeUnknown, StoreUnavailable: see `commits.commit`.
        """
        self._make(schema_json)
        return self.add(self._staging().write(rows, "rows"))

    def staged(self, frame: DataFrame) -> tuple[StagedFile, ...]:
        """Have Spark's tasks write rows to files, at least one for each task with rows; see `Staging.write_frame`."""
        return self._staging().write_frame(frame, "rows")

    def gathered(self, files: Sequence[StagedFile], staging: Staging | None = None) -> Sequence[StagedFile]:
        """Return the files with the staged rows of one frame, after small ones are rewritten together.

        Args:
            staging: where new files go; it has the layout of the table, if there is one.
        """
        import pyarrow.parquet as pq

        runs = [run for run in small_neighbours(files) if len(run) > 1]
        if not runs:
            return files
        schema = pq.read_schema(self.folder.source(runs[0][0].path))
        together = (staging or self._staging()).rewrite(runs, schema)
        old = {file.path for run in runs for file in run}
        self._forget(sorted(old))
        return (*(file for file in files if file.path not in old), *together)

    def append_files(self, files: Sequence[StagedFile], schema_json: str) -> int:
        """Add the rows of staged files in one commit; see `append`."""
        self._make(schema_json)
        return self.add(files)

    def add(self, files: Sequence[StagedFile], *, whole: bool = False) -> int:
        """Make staged files visible in one commit, once; return Delta's version.

        Args:
            whole: the files become the whole table, also if there are none: all earlier files leave.
        """
        paths = {file.path for file in files}

        def prepare(table: Any) -> Act | None:
            verify(self.folder, files)
            leaving = file_lists.live_files(table, self.folder) if whole else ()
            if not files and not leaving:
                return None
            return lambda: commits.transact(self.folder, table, self.region, None, adds=files, removes=leaving)

        def landed(table: Any) -> bool:
            live = file_lists.live_paths(table)
            return paths == live if whole else paths <= live

        return self._sent(prepare, landed)

    def upsert(self, rows: pa.Table, keys: Sequence[str], schema_json: str) -> int:
        """Merge rows, one for each key: they replace the rows of their keys, or are added; return Delta's version.

        This is idempotent, so a commit that was refused, or lost its answer, is made again.

        Raises:
            AccountingError: two rows have the same key.
            ForeignTable, SchemaMismatch, CommitOutcomeUnknown, StoreUnavailable: as `append`.
        """
        return self._upsert(GivenRows(rows=rows, keys=tuple(keys)), schema_json)

    def upsert_files(self, files: Sequence[StagedFile], keys: Sequence[str], schema_json: str) -> int:
        """Merge rows of staged files, one for each key; see `upsert`."""
        verify(self.folder, files)
        changes = KeyedChanges(folder=self.folder, keys=tuple(keys), later=tuple(map(RowFile.of, files)))
        version = self._upsert(changes, schema_json)
        self._forget([file.path for file in files])
        return version

    def _upsert(self, changes: Changes, schema_json: str) -> int:
        self._make(schema_json)
        made: list[Rewriting] = []
        merge = KeyedMerge(folder=self.folder, layout=NO_LAYOUT, executors=self._executors)

        def prepare(table: Any) -> Act | None:
            again = merge.following(table, made[-1], changes) if made else None
            made.append(again or merge.replacing(table, changes))
            return made[-1].commit(table, self.region, None) if made[-1].adds else None

        return self._sent(prepare, lambda table: {file.path for file in made[-1].adds} <= file_lists.live_paths(table))

    def _staging(self) -> Staging:
        return Staging(self.folder, 0, world.token(), executors=self._executors)

    def _forget(self, paths: Sequence[str]) -> None:
        """Delete files after their rows were written to other files; if this fails, `gc` deletes them later."""
        with suppress(OSError, StoreUnavailable):
            self.folder.remove(paths)

    def _sent(self, prepare: Callable[[Any], Act | None], landed: Callable[[Any], bool]) -> int:
        with Turn(self.folder) as turn:
            done = commits.commit(self.folder, verb="send", prepare=prepare, landed=landed, writer=None, turn=turn)
        if not done.done_before and done.delta_version % _EVERY_COMMITS == 0:
            self.upkeep.maintain()
        return done.delta_version

    def _make(self, schema_json: str) -> None:
        """Create the table, or compare its columns; once for each schema."""
        if schema_json in self._is_made:
            return
        try:
            self.create(schema_json)
        except SchemaMismatch as error:
            error.remedy = "cast the columns, or write to a table of another name"
            raise
        self._is_made.add(schema_json)
