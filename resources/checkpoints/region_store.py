"""All tables of one region, by name: below DRAINMARK_HOME or the setting `tables_url`; and who works on their files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from drainmark.jobs.errors import ForeignTable, LayoutChanged, SchemaMismatch, UsageError
from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile, TableRole
from drainmark.jobs.tasks.executor import Executor, Here, OnSpark
from drainmark.jobs.tasks.layout import NO_LAYOUT, layout_of, statistics_properties
from drainmark.jobs.tasks.parquet_shares import RowFile
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable, checkpoint_name
from drainmark.resources.checkpoints.foreign_commits import ForeignCommits
from drainmark.resources.checkpoints.leftovers import Leftovers
from drainmark.resources.delta import commits
from drainmark.resources.delta.adopted.adopted_table import AdoptedTable
from drainmark.resources.delta.autonomous_tables import AutonomousTable
from drainmark.resources.delta.commits import Published
from drainmark.resources.delta.health.visible_rows import VisibleRows
from drainmark.resources.delta.keyed.keyed_changes import KeyedChanges
from drainmark.resources.delta.managed_table import KeyedTable, ManagedTable, OverwrittenTable, examine_table
from drainmark.resources.delta.staging import STAGING_FOLDER, Staging, verify
from drainmark.resources.sinks.external_sinks import External, Externals
from drainmark.resources.spark.session import Engine
from drainmark.resources.storage.folder import Folder, LocalFolder

_EVOLVE = (
    'let the sink evolve where columns only came (on_schema_change="evolve"); an aggregate\'s state keeps its columns:'
    " one of another name starts with none"
)

CopyFiles = Callable[[int, Collection[int], Sequence[StagedFile]], Published]
"""Copies rows of some ids to a sink of files, from the files of its history, a bounded number at a time."""


class RegionTables:
    """A region's tables in folders; one object for each run.

    Every Delta commit passes the fail points `<step>.before_commit` and `<step>.after_commit`.

    Args:
        home: DRAINMARK_HOME, which has the links to a group's inputs.
        region: `APP/START`.
        tables: the folder of `checkpoints/`, `state/` and `lake/`; home by default.
        engine: gives the session that publishes to adopted tables; called for the first time when one is needed.
        externals: opens sinks outside Delta; without it they cannot be opened.
        here_bytes: tasks rewrite files of more bytes than this, if executors are elsewhere; else this process does.

    Attributes:
        checkpoint: the region's checkpoint table.
        foreign_commits: commits of others to the tables.
        leftovers: files that former owners left and that are no longer needed.
    """

    def __init__(
        self,
        home: Path,
        region: str,
        tables: Folder | None = None,
        engine: Callable[[], Engine] | None = None,
        externals: Externals | None = None,
        *,
        here_bytes: int = 0,
    ) -> None:
        self.home = home
        self.region = region
        self.tables = tables or LocalFolder(home)
        self.checkpoint = CheckpointTable(self.tables / checkpoint_name(region), region)
        self._tables: dict[str, ManagedTable] = {}
        self._engine = engine or _only_reads
        self._choice = TaskChoice(engine, here_bytes)
        self._externals = externals
        self._seen: dict[str, int] = {}
        self.foreign_commits = ForeignCommits(self.tables, region, self.checkpoint, self.table, self.staging)
        self.leftovers = Leftovers(self.tables, home / "inbox" / region, self.checkpoint, self.table)

    def table(self, name: str) -> ManagedTable:
        if name not in self._tables:
            self._tables[name] = ManagedTable(self.tables / name, self.region)
        return self._tables[name]

    def adopted(self, name: str) -> AdoptedTable:
        return AdoptedTable(self.tables / name, self.region, self._engine, executors=self._choice.executor)

    def overwritten(self, name: str) -> OverwrittenTable:
        return OverwrittenTable(self.tables / name, self.region, writer=self.table(name).writer)

    def external(self, table: RegionTable, epoch: int = 0) -> External:
        """Return a sink outside Delta; an owner opens it with its epoch."""
        if self._externals is None:
            raise UsageError(f"this process has no settings by which it could open {table.name}")
        identity = self.checkpoint.identity
        return self._externals.open(table, self.region, identity, epoch=epoch, seen=self._seen)

    def open(self, table: RegionTable) -> ManagedTable | AdoptedTable | External:
        """Return a table or a sink outside Delta, to look at it."""
        return self.external(table) if table.external else self.delta(table)

    def delta(self, table: RegionTable) -> ManagedTable | AdoptedTable:
        """Return a Delta table."""
        if table.adopted:
            return self.adopted(table.name)
        plain = self.table(table.name)
        if table.role is not TableRole.UPSERT:
            return plain
        return KeyedTable(
            plain.folder, self.region, writer=plain.writer, layout=layout_of(table), executors=self._choice.executor
        )

    def changes(self, table: RegionTable, files: Sequence[StagedFile], *, above: int = INITIAL_ID) -> KeyedChanges:
        """Return the rows of some files of a table's history: its keys get their last rows of ids above `above`."""
        first = min((file.first_id or INITIAL_ID for file in files), default=INITIAL_ID)  # stages bring some rows late
        return KeyedChanges(
            folder=self.table(table.history or "").folder,
            keys=table.keys,
            later=tuple(replace(RowFile.of(file), above=above if above > INITIAL_ID else None) for file in files),
            columns=table.columns,
            deletes=table.deletes,
            above=max(above, first - 1),
        )

    def visible_rows(self, table: RegionTable, files: Sequence[StagedFile], to: int) -> VisibleRows:
        """Return the rows that a visible table must hold at an id.

        Args:
            files: all files of its history that may have such rows.
        """
        history, executors = self.table(table.history or "").folder, self._choice.executor
        return VisibleRows(table=table, history=history, files=files, to=to, executors=executors)

    def large_files(self, table: RegionTable, epoch: int, files: Sequence[StagedFile]) -> CopyFiles | None:
        """Return the function that copies a group of many bytes to a sink of files; None if few, or another sink.

        Args:
            epoch: of the owner that does it.
            files: files of the sink's history that have the rows.
        """
        size = sum(file.size for file in files)
        if table.external != "file" or self._choice.stays_here(size):
            return None
        from drainmark.resources.sinks.file_tables import FileTable

        target = self.external(table, epoch)
        if not isinstance(target, FileTable):
            return None
        source, executor = self.table(table.history or "").folder.place, self._choice.executor(size, target.folder)
        return partial(target.copy_files, source=source, executor=executor)

    def autonomous(self, name: str) -> AutonomousTable:
        """Return a table that is written outside of the region; its application owns it."""
        application = self.region.partition("/")[0]
        return AutonomousTable(self.tables / name, application, executors=self._choice.executor)

    def is_own(self, table: RegionTable) -> bool:
        """Say whether a table exists and is the region's: it was not deleted, and not given to somebody else.

        Raises:
            UsageError, StoreUnavailable: a sink outside Delta cannot be opened or does not answer.
        """
        if not table.external:
            return self.adopted(table.name).is_own() if table.adopted else self.table(table.name).is_own()
        try:
            self.external(table).examine(table.schema_json)
        except ForeignTable:
            return False
        return self.external(table).exists()

    def create(self, table: RegionTable) -> None:
        """Create a managed table, adopt an adopted one, prepare a sink outside Delta; keep one that fits unchanged.

        Raises:
            ForeignTable, AdoptionRefused, SchemaMismatch: the table cannot be the region's, or has other columns.
        """
        if table.external:
            self.external(table).create(table.schema_json)
        elif table.adopted:
            self.adopted(table.name).create(table.schema_json)
        else:
            self._create_managed(table)

    def _create_managed(self, table: RegionTable) -> None:
        with _about(table):
            self.table(table.name).create(
                table.schema_json,
                evolves=table.may_widen,
                partition_by=layout_of(table).partition_by,
                properties=statistics_properties(table),
            )

    def widen(self, table: RegionTable) -> None:
        """Add columns that the code, or a retraction, added to a table, and merge it as the code says; in a claim."""
        if table.role is TableRole.UPSERT and table.is_managed:
            found = self.table(table.name)
            commits.take_vectors(found.folder, self.region, wanted=table.is_merged_on_read, writer=found.writer)
        if table.may_widen:
            self.table(table.name).widen(table.schema_json)

    @property
    def checkpoint_name(self) -> str:
        """Return the name of the checkpoint table among the tables."""
        return checkpoint_name(self.region)

    # --- the files of attempts -------------------------------------------------------------------------------------

    def staging(self, table: RegionTable | str, epoch: int, attempt: str) -> Staging:
        """Return the staging folder of an attempt for a table; a table of no sink is given by its name alone."""
        name, layout = (table, NO_LAYOUT) if isinstance(table, str) else (table.name, layout_of(table))
        return Staging(self.table(name).folder, epoch, attempt, layout, executors=self._choice.executor)

    def verify(self, name: str, files: Sequence[StagedFile]) -> None:
        verify(self.table(name).folder, files)

    def inbox(self, epoch: int, attempt: str) -> Path:
        """Return the folder of links of one attempt; not made yet."""
        return self.home / "inbox" / self.region / f"{epoch}-{attempt}"

    def task_files(self, epoch: int, attempt: str, *, on_disk: bool) -> Folder:
        """Return the folder for files that tasks leave for their own attempt; not made yet.

        Args:
            on_disk: executors reach the inbox. If not, and tables are in a bucket, the folder is below the checkpoint
                table, where `gc` finds it.
        """
        if on_disk or isinstance(self.tables, LocalFolder):
            return LocalFolder(self.inbox(epoch, attempt))
        return self.tables / self.checkpoint_name / f"{STAGING_FOLDER}/{epoch}-{attempt}"


def examine(store: RegionTables, table: RegionTable) -> None:
    """Check that `create` would keep or make a table; changes nothing, and raises what `create` raises."""
    if table.external:
        store.external(table).examine(table.schema_json)
    elif table.adopted:
        store.adopted(table.name).examine(table.schema_json, merged=False)
    else:
        with _about(table):
            by = layout_of(table).partition_by
            examine_table(store.table(table.name), table.schema_json, evolves=table.evolves, partition_by=by)


@contextmanager
def _about(table: RegionTable) -> Iterator[None]:
    """Add to an error whose table it is, and to that about other columns what lets them be added."""
    try:
        yield
    except ForeignTable as error:
        error.operator = table.operator
        raise
    except SchemaMismatch as error:
        if not table.evolves and not isinstance(error, LayoutChanged):
            error.remedy = f"{error.remedy}, or {_EVOLVE}"
        error.operator = table.operator
        raise


def _only_reads() -> Engine:
    raise UsageError("this process only reads tables: it has no Spark session to write to an adopted one")


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """The choice for one region.

    On one machine, tasks use the same disk and cores as this process, take several times as long, and need Spark to be
    started.

    Attributes:
        engine: gives the session; None for a process that only reads.
        here_bytes: tasks do work on more bytes of files than this, if executors are elsewhere.
    """

    engine: Callable[[], Engine] | None
    here_bytes: int

    def stays_here(self, size: int) -> bool:
        return size <= self.here_bytes

    def executor(self, size: int, folder: Path | None = None) -> Executor:
        """Return who does work that needs few rows in memory at once.

        Args:
            size: bytes of the files that are read.
            folder: folder of this machine for the output; tasks must reach it.
        """
        if self.engine is None or self.stays_here(size) or self.engine().is_local:
            return Here()
        if folder is not None:
            try:
                self.engine().require_outputs([folder])
            except ClusterRefused:
                return Here()
        return OnSpark(self.engine().session)
