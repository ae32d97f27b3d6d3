"""The interfaces of a run to the world outside the process; `resources` implements them.

They are structural on purpose: the adapters can be used and tested without a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from drainmark.jobs.operators.sources.contract import Reach
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile
from drainmark.jobs.protocol.records.newest_rows import NewestRows
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.protocol.repairs import TableDamage, TableRepair, TableVersions
from drainmark.jobs.state.checkpointed_state import StagingFolder
from drainmark.jobs.state.handlers.data_store import DataStore
from drainmark.jobs.state.state_rows import StateFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
    from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
    from drainmark.jobs.tasks.buckets import StoredObject
    from drainmark.jobs.tasks.places import Place

Report = Callable[[str, Mapping[str, Any]], None]
"""Called once for each step, with its name and its numbers."""


class Engine(Protocol):
    """A Spark session with jobs that can be tagged, cancelled, and put into pools that share the cores fairly."""

    @property
    def master(self) -> str: ...
    @property
    def is_local(self) -> bool: ...
    @property
    def shares_disk(self) -> bool: ...
    @property
    def is_ours(self) -> bool: ...
    @property
    def session(self) -> SparkSession: ...
    def tagged(self, tag: str) -> AbstractContextManager[None]: ...
    def pooled(self, pool: str) -> AbstractContextManager[None]: ...
    def cancel(self, tag: str) -> None: ...
    def require_outputs(self, folders: Sequence[Path]) -> None: ...
    def require_inputs(self, folders: Sequence[Path]) -> None: ...


class StagingArea(StagingFolder, Protocol):
    """A folder of one attempt below a table's root, which no reader looks into."""

    def write_frame(self, frame: DataFrame, subdirectory: str) -> tuple[StagedFile, ...]: ...
    def discard(self) -> None: ...


class Published(Protocol):
    """The outcome of a commit to a state or sink table."""

    @property
    def delta_version(self) -> int: ...
    @property
    def done_before(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A rule of an adopted table, or of a sink outside Delta, that rows break.

    Attributes:
        rule: e.g. `constraint positive`.
        condition: the condition that must be true, as SQL text.
        rows: number of rows that break it.
        first_id: smallest `_sequence_id` among them.
    """

    rule: str
    condition: str
    rows: int
    first_id: int


class Table(Protocol):
    """A Delta table of a region: every verb is one transaction under a txnVersion."""

    def exists(self) -> bool: ...
    def publish(self, version: int, files: Sequence[StagedFile]) -> Published: ...
    def merge(self, version: int, rows: pa.Table, keys: Sequence[str]) -> Published: ...
    def rewind_rows(self, version: int, to: int, staging: Any) -> Published: ...
    def rewind_upsert(
        self,
        version: int,
        to: int,
        history: Any,
        keys: Sequence[str],
        columns: Sequence[str],
        *,
        images: Sequence[str] = (),
        since: int | None = None,
    ) -> Published: ...
    def read(self, columns: Sequence[str] | None = None, where: Any = None) -> pa.Table: ...
    def row_count(self) -> int: ...
    def newest_id(self) -> int: ...
    def txn_version(self) -> int | None: ...


class Adopted(Table, Protocol):
    """A table that others made: the same verbs, and a check of rows before they are committed."""

    def examine(self, schema_json: str, *, merged: bool) -> Any: ...
    def breach(self, rows: DataFrame) -> Breach | None: ...
    def rows_above(self, to: int) -> int: ...


class OutsideTable(Protocol):
    """A table that no region writes: rows that are appended twice are there twice."""

    def create(self, schema_json: str) -> None: ...
    def append(self, rows: pa.Table, schema_json: str) -> int: ...
    def staged(self, frame: DataFrame) -> tuple[StagedFile, ...]: ...
    def gathered(self, files: Sequence[StagedFile], staging: Any = None) -> Sequence[StagedFile]: ...
    def append_files(self, files: Sequence[StagedFile], schema_json: str) -> int: ...
    def add(self, files: Sequence[StagedFile], *, whole: bool = False) -> int: ...
    def upsert(self, rows: pa.Table, keys: Sequence[str], schema_json: str) -> int: ...
    def upsert_files(
        self, session: SparkSession, files: Sequence[StagedFile], keys: Sequence[str], schema_json: str
    ) -> int: ...
    def exists(self) -> bool: ...
    def read(self) -> pa.Table: ...


RowsOf = tuple[Collection[int], Sequence[StagedFile]]
"""The rows of some ids in some files, which may hold rows of other ids, too."""


class LargeTable(Table, Protocol):
    """A large visible table of one row a key: Spark tasks rewrite it from the files of its history."""

    def merge_files(
        self, version: int, history: Any, files: Sequence[StagedFile], keys: Sequence[str], *, above: int = 0
    ) -> Published: ...


class VisibleRows(Protocol):
    """The rows that a visible table should have, according to its history."""

    def counts(self) -> Counter[int]: ...


CopyFiles = Callable[[int, Collection[int], Sequence[StagedFile]], Published]
"""Copies rows of some ids to a sink of files, from the files of its history, a bounded number at a time."""


class TableFiles(StateFiles, Protocol):
    """The files of a managed table: the visible ones, and others that a checkpoint row names."""

    def live(self) -> tuple[StagedFile, ...]: ...
    def up_to(self, through: int) -> tuple[StagedFile, ...]: ...
    def copied(self, ids: Collection[int], staging: Any) -> tuple[StagedFile, ...]: ...
    def pieces(self, files: Sequence[StagedFile], columns: Sequence[str] | None = None) -> Iterator[pa.Table]: ...
    def rows_above(self, to: int) -> int: ...
    def read(self, paths: Sequence[str]) -> pa.Table: ...


class Upkeep(Protocol):
    """The maintenance of a managed table: it makes the table smaller, and changes no row that is needed."""

    def compact(self, version: int, staging: Any, *, files_at_least: int = 64, horizon_id: int = 0) -> bool: ...
    def drop(self, version: int, through: int) -> bool: ...
    def maintain(self) -> None: ...


class RowsTable(Table, Protocol):
    """A managed table, with files of our own: the rows of single ids can be withdrawn from it, and restored."""

    @property
    def files(self) -> TableFiles: ...
    @property
    def upkeep(self) -> Upkeep: ...
    def is_own(self) -> bool: ...
    def replace(self, version: int, files: Sequence[StagedFile], ids: Collection[int], staging: Any) -> Published: ...
    def rewind_rows(self, version: int, to: int, staging: Any, *, restored: Sequence[RowsOf] = ()) -> Published: ...


class Overwritten(Table, Protocol):
    """A managed table that holds the rows of one id."""

    def overwrite(self, version: int, history: Any, newest: RowsOf, staging: Any) -> Published: ...
    def rewind_overwrite(
        self, version: int, to: int, history: Any, newest: Callable[[], RowsOf], staging: Any
    ) -> Published: ...


class External(Protocol):
    """A sink outside Delta: it keeps the txnVersion of its last commit beside its rows, or just as safely.

    It has the verbs of a table: if its version is at or above that of a call, the call is done, so late or repeated
    calls change nothing. Rows come from the sink's history, never from the application. A sink that an owner opens gets
    the owner's epoch, which fences off older owners if the outside system has no transactions.
    """

    judges_by_itself: bool
    """Whether it accepts or refuses a row by the row alone; then tasks can check the rows."""

    def exists(self) -> bool: ...
    def examine(self, schema_json: str) -> None:
        """Raise if the sink outside cannot take the schema; change nothing."""

    def create(self, schema_json: str) -> None:
        """Create the target of the rows, or check that the existing one belongs to the region."""

    def breach(self, rows: Iterable[pa.Table], *, replaced: Collection[int] = ()) -> Breach | None:
        """Return the rule that uncommitted rows break, as far as that can be known before the commit."""

    def copy(
        self, version: int, ids: Collection[int], rows: Iterable[pa.Table], *, replaced: Collection[int] = ()
    ) -> Published: ...
    def merge(self, version: int, rows: Iterable[pa.Table], keys: Sequence[str]) -> Published: ...
    def rewind_rows(self, version: int, to: int, *, restored: Iterable[pa.Table] = ()) -> Published: ...
    def rewind_upsert(
        self,
        version: int,
        to: int,
        history: Any,
        keys: Sequence[str],
        columns: Sequence[str],
        *,
        images: Sequence[str] = (),
        since: int | None = None,
    ) -> Published: ...
    def put_right(
        self,
        version: int,
        rows: Callable[[Collection[int]], Iterable[pa.Table]],
        *,
        written: Collection[int],
        leaving: Collection[int],
        keys: Sequence[str] = (),
    ) -> Published: ...
    def counts(self) -> Mapping[int, int | None]: ...
    def newest_epoch(self) -> int: ...
    def read(self, columns: Sequence[str] | None = None, where: Any = None, *, upto: int | None = None) -> pa.Table: ...
    def read_ids(self, ids: Collection[int]) -> pa.Table: ...
    def row_count(self) -> int | None: ...
    def rows_above(self, to: int) -> int: ...
    def newest_id(self) -> int: ...
    def txn_version(self) -> int | None: ...


class CheckpointStore(Protocol):
    """The checkpoint table, which decides what is committed."""

    def exists(self) -> bool: ...
    def create(self) -> None: ...
    def history(self) -> RegionHistory: ...
    def rows(self, since: int = 0) -> tuple[CheckpointRow, ...]: ...
    def newest(self, *, rows: int, states: int) -> NewestRows: ...
    def attempts(self, among: Collection[str]) -> set[str]: ...
    def claim(self, row: CheckpointRow) -> None: ...
    def append(self, rows: Sequence[CheckpointRow], *, sequence_id: int) -> None: ...
    def compact(self) -> bool: ...
    def maintain(self) -> None: ...


class Inputs(Protocol):
    """The files of triggers, in folders and in buckets.

    Attributes:
        range_bytes: tasks read a larger file by ranges of so many bytes.
    """

    range_bytes: int

    def place(self, wanted: Sequence[tuple[Trigger, Path]], *, follow_links: bool = False) -> None:
        """Make each trigger's file, as it was scanned, readable at a path that does not exist yet.

        Args:
            follow_links: a file may be a symbolic link; otherwise a link counts as a missing file.

        Raises:
            InputMissing, InputChanged: the error names the triggers with missing or replaced files.
        """

    def stored(self, triggers: Sequence[Trigger]) -> Mapping[int, StoredObject]:
        """Return the inputs that tasks can fetch by themselves: index in `triggers` -> object, as it was scanned."""

    def check(self, triggers: Sequence[Trigger], *, follow_links: bool = False) -> None:
        """Compare inputs with their identities at the scan.

        Raises:
            InputMissing, InputChanged: as `place`.
        """


class DisposableInputs(Inputs, Protocol):
    """Input files that we may move and delete."""

    def dispose(self, files: Sequence[tuple[str, Mapping[str, Any], int]], scan: DirectoryScan) -> int:
        """Move or delete input files, as the scan declares; missing and replaced files are left alone.

        Args:
            files: uri, identity at the scan, sequence id.

        Returns:
            the number of files that were moved or deleted.
        """


class Garbage(Protocol):
    """The files of one table that can be deleted."""

    @property
    def table(self) -> str: ...
    @property
    def files(self) -> tuple[str, ...]: ...
    @property
    def size(self) -> int: ...


class RegionTables(Protocol):
    """The tables of a region, by name and by role."""

    region: str

    @property
    def checkpoint(self) -> CheckpointStore: ...
    @property
    def checkpoint_name(self) -> str: ...
    def table(self, name: str) -> RowsTable: ...
    def open(self, table: RegionTable) -> Table: ...
    def large(self, table: RegionTable, epoch: int, changed: Sequence[StagedFile]) -> LargeTable | None: ...
    def visible_rows(self, table: RegionTable, files: Sequence[StagedFile], to: int) -> VisibleRows: ...
    def large_files(self, table: RegionTable, epoch: int, files: Sequence[StagedFile]) -> CopyFiles | None: ...
    def adopted(self, name: str) -> Adopted: ...
    def overwritten(self, name: str) -> Overwritten: ...
    def external(self, table: RegionTable, epoch: int = 0) -> External: ...
    def autonomous(self, name: str) -> OutsideTable: ...
    def is_own(self, table: RegionTable) -> bool: ...
    def create(self, table: RegionTable) -> None: ...
    def widen(self, table: RegionTable) -> None: ...


class TaskFiles(Protocol):
    """A folder for the files that tasks write for their own attempt."""

    @property
    def place(self) -> Place: ...
    def source(self, path: str) -> Any: ...
    def delete(self, path: str) -> None: ...


class AttemptFiles(Protocol):
    """The files of an attempt outside of the tables: staged files, links to its inputs, files of tasks."""

    def staging(self, table: RegionTable | str, epoch: int, attempt: str) -> StagingArea: ...
    def verify(self, name: str, files: Sequence[StagedFile]) -> None: ...
    def discard_staged(self, name: str, paths: Sequence[str]) -> None: ...
    def inbox(self, epoch: int, attempt: str) -> Path: ...
    def task_files(self, epoch: int, attempt: str, *, on_disk: bool) -> TaskFiles: ...


class ForeignCommits(Protocol):
    """Commits of others to a region's tables, and their repair."""

    def require_place(self, name: str) -> None: ...
    def require_sole_writer(self, name: str, check: Callable[[TableVersions], None] = ...) -> None: ...

    def versions(self, name: str) -> TableVersions: ...
    def trust(self, name: str, version: int) -> None: ...
    def damage(self, name: str, *, whatever: bool = False) -> TableDamage | None: ...
    def put_right(
        self,
        repair: TableRepair,
        *,
        epoch: int,
        version: int | None = None,
        rows: Any = None,
        table: RegionTable | None = None,
    ) -> Published: ...


class Leftovers(Protocol):
    """Files that owners of a region left behind and that nobody needs any more."""

    def collect_orphans(self, names: Sequence[str], below_epoch: int) -> int: ...
    def fence(self, names: Iterable[str], epoch: int) -> None: ...
    def garbage(self, name: str, named: Set[str], *, below_epoch: int, now: float) -> Garbage: ...
    def discard(self, garbage: Any) -> None: ...
    def dead_spools(self, *, below_epoch: int, before: float) -> tuple[Path, ...]: ...
    def discard_spools(self, spools: Sequence[Path]) -> None: ...


class RegionStore(RegionTables, AttemptFiles, Protocol):
    """All tables and files of a region, on disk or in a bucket."""

    @property
    def foreign_commits(self) -> ForeignCommits: ...
    @property
    def leftovers(self) -> Leftovers: ...


class Lookups(Protocol):
    """Lookup tables of operators, by the names that `lookup` takes."""

    def version(self, table: str) -> int: ...
    def folder(self, table: str) -> Path | None: ...
    def read(self, session: SparkSession, table: str, version: int | None) -> DataFrame: ...


class RegionTriggers(Protocol):
    """The triggers of a region, in one order; every write is guarded by the epoch."""

    def pending(
        self, region: str, limit: int, max_bytes: int | None = None, *, after: int = 0
    ) -> Sequence[Trigger]: ...
    def settle(self, region: str, epoch: int, states: Sequence[tuple[int, int]]) -> None: ...
    def requeue_above(self, region: str, epoch: int, sequence_id: int) -> int: ...
    def mark(self, region: str, epoch: int, trigger_ids: Sequence[int], status: Any, reason: str | None) -> None: ...
    def mark_skipped(self, region: str, epoch: int, trigger_id: int, sequence_id: int, reason: str) -> None: ...


class RegionProgress(Protocol):
    """The progress of a region; every write is guarded by the epoch."""

    def set_epoch(self, region: str, epoch: int) -> None: ...
    def set_next_id(self, region: str, epoch: int, value: int) -> None: ...
    def take_ids(self, region: str, epoch: int, count: int) -> int: ...
    def set_state(self, region: str, epoch: int, state: str) -> None: ...
    def record_error(self, region: str, epoch: int, error: Mapping[str, Any]) -> None: ...
    def clear_error(self, region: str, epoch: int) -> None: ...
    def clear_halt_request(self, region: str, epoch: int) -> None: ...
    def get_probed(self, region: str) -> Mapping[str, str]: ...
    def set_probed(self, region: str, fingerprints: Mapping[str, str]) -> None: ...


class RegionRegistry(Protocol):
    """The registry, as far as one region's run uses it."""

    @property
    def triggers(self) -> RegionTriggers: ...
    @property
    def progress(self) -> RegionProgress: ...
    def region_info(self, region: str) -> Any: ...
    def pending_count(self, region: str) -> int: ...
    def by_order(self, region: str, orders: Sequence[int]) -> Sequence[Trigger]: ...
    def save_cursor(self, region: str, source: str, cursor: str) -> None: ...
    def load_cursor(self, region: str, source: str) -> str | None: ...
    def clock(self) -> float: ...


class RegionLease(Protocol):
    """The right to work on a region; safety never depends on it."""

    def acquire(self, region: str, run_id: str) -> None: ...
    def release(self, *, clean: bool) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Everything outside the process that a run uses, joined by the control plane.

    Attributes:
        state_store: the store for the chunks of handlers' checkpoints; None if they go to their state's tables.
        on_halt: called once a halt is committed and its row is in the history; may take seconds, never raises.
        take_feed: moves the cursor of an autonomous source, for one reader of it, over the new files, and returns them:
            (reader, source, sequence id for which they are taken). No later call returns them again.
        register: gives a table its declared name in a catalogue of Spark; from any thread, may take long.
    """

    engine: Engine
    store: RegionStore
    inputs: DisposableInputs
    reach: Reach
    registry: RegionRegistry
    lease: RegionLease
    clock: Callable[[], float]
    statement: Callable[[str], str]
    lookups: Lookups
    state_store: DataStore | None = None
    on_halt: Callable[[RegionHistory], None] = lambda history: None
    take_feed: Callable[[str, DirectorySource, int], Sequence[Trigger]] = lambda reader, source, sequence_id: ()
    register: Callable[[RegionTable], None] = lambda table: None
