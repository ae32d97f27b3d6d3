"""All tables of one region, by name: below DRAINMARK_HOME or the setting `tables_url` (design.md §6)."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from drainmark.jobs.errors import ForeignTable, SchemaMismatch, UsageError
from drainmark.jobs.failpoints import reach
from drainmark.jobs.protocol.in_flight import is_part
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile
from drainmark.jobs.protocol.repairs import TableDamage, TableRepair
from drainmark.jobs.runtime.adapters import Engine, External
from drainmark.resources.checkpoints.checkpoint_table import CHECKPOINTS, CheckpointTable
from drainmark.resources.delta import commits
from drainmark.resources.delta.adopted.adopted_table import AdoptedTable
from drainmark.resources.delta.autonomous_tables import AutonomousTable
from drainmark.resources.delta.commit_log import SoleWriter
from drainmark.resources.delta.commits import Published
from drainmark.resources.delta.damaged_tables import damage_of, put_right
from drainmark.resources.delta.garbage import Garbage, garbage_of, is_channels
from drainmark.resources.delta.log_retention import KEPT_SECONDS, removed_since
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.overwritten_tables import OverwrittenTable
from drainmark.resources.delta.staging import STAGING_FOLDER, Staging, verify
from drainmark.resources.sinks.external_sinks import Externals
from drainmark.resources.storage.folder import Folder, LocalFolder

_EVOLVE = (
    'let the sink evolve where columns only came (on_schema_change="evolve"); an aggregate\'s state keeps its columns:'
    " one of another name starts with none"
)


class DirectoryStore:
    """A region's tables in folders; one object a run.

    Every Delta commit passes the fail points `<step>.before_commit` and `<step>.after_commit`.

    Args:
        home: DRAINMARK_HOME, which has the links to a group's inputs.
        region: `APP/START`.
        tables: the folder of `checkpoints/`, `state/` and `lake/`; home by default.
        engine: gives the session that publishes to adopted tables; called for the first time when one is needed.
        externals: opens sinks outside Delta; without it there are none.
    """

    def __init__(
        self,
        home: Path,
        region: str,
        tables: Folder | None = None,
        engine: Callable[[], Engine] | None = None,
        externals: Externals | None = None,
    ) -> None:
        self.home = home
        self.region = region
        self._copies = home / "copies" / region / uuid.uuid4().hex  # two owners never share them
        self.tables = (tables or LocalFolder(home)).copied_to(self._copies)
        self.checkpoint = CheckpointTable(self.tables / CHECKPOINTS / region, region, faults=reach_step)
        self._tables: dict[str, ManagedTable] = {}
        self._engine = engine or _only_reads
        self._externals = externals

    def table(self, name: str) -> ManagedTable:
        if name not in self._tables:
            self._tables[name] = ManagedTable(self.tables / name, self.region, faults=reach_step)
        return self._tables[name]

    def adopted(self, name: str) -> AdoptedTable:
        return AdoptedTable(self.tables / name, self.region, self._engine, faults=reach_step)

    def overwritten(self, name: str) -> OverwrittenTable:
        return OverwrittenTable(self.tables / name, self.region, faults=reach_step, writer=self.table(name).writer)

    def external(self, table: RegionTable, epoch: int = 0) -> External:
        """Return a sink outside Delta; for an owner, open under its epoch."""
        if self._externals is None:
            raise UsageError(f"this process has no settings by which it could open {table.name}")
        return self._externals.open(table, self.region, self.checkpoint.identity, epoch, reach_step)

    def open(self, table: RegionTable) -> Any:
        """Return a table as its region knows it: a `ManagedTable`, an `AdoptedTable`, or a sink outside Delta."""
        if table.external:
            return self.external(table)
        return self.adopted(table.name) if table.adopted else self.table(table.name)

    def autonomous(self, name: str) -> AutonomousTable:
        """Return a table that is written outside of the region; its application owns it."""
        application = self.region.partition("/")[0]
        return AutonomousTable(self.tables / name, application, faults=reach_step)

    def is_own(self, table: RegionTable) -> bool:
        """Say whether a table is there, and the region's: not deleted since, nor given to somebody else.

        Raises:
            UsageError, StoreUnavailable: a sink outside Delta cannot be asked.
        """
        if not table.external:
            return self.adopted(table.name).is_own() if table.adopted else self.table(table.name).is_own()
        try:
            self.external(table).examine(table.schema_json)
        except ForeignTable:
            return False
        return self.external(table).exists()

    def create(self, table: RegionTable) -> None:
        """Create a managed table, adopt an adopted one, prepare a sink outside; one that is as it should be stays so.

        Raises:
            ForeignTable, AdoptionRefused, SchemaMismatch: what is there cannot be the region's, or has other columns.
        """
        if table.external:
            self.external(table).create(table.schema_json)
        elif table.adopted:
            self.adopted(table.name).create(table.schema_json)
        else:
            self._create_managed(table)

    def _create_managed(self, table: RegionTable) -> None:
        try:
            self.table(table.name).create(table.schema_json, evolves=table.evolves)
        except SchemaMismatch as error:
            if not table.evolves:
                error.remedy = f"{error.remedy}, or {_EVOLVE}"
            error.operator = table.operator
            raise

    def widen(self, table: RegionTable) -> None:
        """Add the columns that the code added to a table that evolves; under a claim."""
        if table.evolves:
            self.table(table.name).widen(table.schema_json)

    # --- who else writes -------------------------------------------------------------------------------------------

    def require_sole_writer(self, name: str) -> None:
        """Check that nobody else changed rows of a managed table since the region's last commit to it.

        Costs one look at one file where nothing was committed since this object looked last.

        Raises:
            SplitBrain: somebody did, or nobody can tell; see `SoleWriter.require`.
        """
        writer = self._writer(name)
        if writer.has_moved():
            writer.require(int(commits.open_table(self.tables / name).version()))

    def trust(self, name: str, version: int) -> None:
        """Take a version of a table as sound: its rows were compared, since its log does not tell any more."""
        self._writer(name).through = version

    def damage(self, name: str, *, whatever: bool = False) -> TableDamage | None:
        """Return what others did to a table since its last repair; None where it is sound, unless asked `whatever`."""
        return damage_of(self.tables / name, self.region, whatever=whatever)

    def put_right(
        self, repair: TableRepair, *, epoch: int, version: int | None = None, rows: Callable[[], Any] | None = None
    ) -> Published:
        """Carry out a repair in one commit; see `damaged_tables.put_right`."""
        folder = self.tables / repair.table
        return put_right(
            folder, self.region, repair, version=version, rows=rows, faults=reach_step,
            staging=Staging(folder, epoch, uuid.uuid4().hex), writer=self._writer(repair.table),
        )  # fmt: skip

    def _writer(self, name: str) -> SoleWriter:
        writer = self.checkpoint.writer if name == self.checkpoint_name else self.table(name).writer
        return writer or SoleWriter(self.tables / name, self.region)

    @property
    def checkpoint_name(self) -> str:
        """Return what the checkpoint table is called among the tables."""
        return f"{CHECKPOINTS}/{self.region}"

    def staging(self, name: str, epoch: int, attempt: str) -> Staging:
        return Staging(self.table(name).folder, epoch, attempt)

    def verify(self, name: str, files: Sequence[StagedFile]) -> None:
        verify(self.table(name).folder, files)

    def inbox(self, epoch: int, attempt: str) -> Path:
        """Return the folder of links of one attempt; not made yet."""
        return self.home / "inbox" / self.region / f"{epoch}-{attempt}"

    def keep_copies(self, files: Mapping[str, Sequence[StagedFile]]) -> None:
        """Delete the local copies of files on an object store, but for these, by table; called between groups."""
        for name, table in self._tables.items():
            table.folder.copies.keep([file.path for file in files.get(name, ())])

    def drop_copies(self) -> None:
        """Delete all local copies of this owner; called at its end."""
        shutil.rmtree(self._copies, ignore_errors=True)

    def collect_orphans(self, names: Sequence[str], below_epoch: int) -> int:
        """Delete staging folders and inboxes of dead epochs that neither a row nor the table names; return how many.

        A row names what its attempt staged, and nothing else is staged under the attempt's name; what the attempts of
        stages left is for `gc`, which goes by the files that rows name. All that is committed must have been
        published: a table of which something goes is fenced first.

        Probes, of epoch 0, and copies of other owners may be at work beside us: they are for `dead_spools`.
        """
        removed = 0
        for name in names:
            if not self._orphans(name, below_epoch):
                continue
            self.table(name).fence(below_epoch)  # else a compaction that was stopped lands, and names what goes here
            for attempt in self._orphans(name, below_epoch):
                self.table(name).folder.delete(attempt)
                removed += 1
        inboxes = LocalFolder(self.home / "inbox" / self.region)
        for attempt in _dead(inboxes, "", below_epoch):
            if not attempt.startswith("0-"):
                inboxes.delete(attempt)
        return removed

    def _orphans(self, name: str, below_epoch: int) -> list[str]:
        """Return the staging folders of dead epochs that neither a row nor the table names."""
        folder = self.table(name).folder
        dead = [each for each in _dead(folder, STAGING_FOLDER, below_epoch) if not is_part(_attempt_of(each))]
        if not dead:
            return []
        # A reader may still hold a version of the table with files that have left it since.
        removed = removed_since(folder, time.time() - KEPT_SECONDS)
        shown = {file.path for file in self.table(name).live_files()} | removed
        used = {path.rpartition("/")[0] for path in shown}
        named = self.checkpoint.attempts([_attempt_of(attempt) for attempt in dead])
        unnamed = [attempt for attempt in dead if _attempt_of(attempt) not in named]
        return [
            attempt for attempt in unnamed
            if not any(path == attempt or path.startswith(f"{attempt}/") for path in used)
        ]  # fmt: skip

    def fence(self, names: Iterable[str], epoch: int) -> None:
        """Let tables take nothing more of older epochs, by name; the checkpoint table's claim has done it there."""
        for name in names:
            if not name.startswith(f"{CHECKPOINTS}/") and not is_channels(name):
                self.table(name).fence(epoch)

    def garbage(self, name: str, named: Set[str], *, below_epoch: int, now: float) -> Garbage:
        """Return what can be deleted of a table; the checkpoint table is `checkpoints/<region>`."""
        return garbage_of(self.tables / name, name, named=named, below_epoch=below_epoch, now=now)

    def dead_spools(self, *, below_epoch: int, before: float) -> tuple[Path, ...]:
        """Return inboxes of dead epochs and copies of other owners that nobody changed since a time.

        The time is for what runs without a claim: a probe has no epoch of its own.
        """
        inboxes = LocalFolder(self.inbox(0, "").parent)
        found = [inboxes.path / name for name in _dead(inboxes, "", below_epoch)]
        copies = self._copies.parent
        found += [copies / name for name in LocalFolder(copies).names() if name != self._copies.name]
        return tuple(path for path in found if path.stat().st_mtime < before)

    def discard(self, garbage: Garbage) -> None:
        """Delete what `garbage` found."""
        (self.tables / garbage.table).remove(garbage.files)

    def discard_staged(self, name: str, paths: Sequence[str]) -> None:
        """Delete files that an owner staged and needs no more; no row, and no table, may name them."""
        self.table(name).folder.remove(paths)

    def discard_spools(self, spools: Sequence[Path]) -> None:
        """Delete what `dead_spools` found."""
        for folder in spools:
            shutil.rmtree(folder, ignore_errors=True)


def _dead(folder: Folder, path: str, below_epoch: int) -> list[str]:
    """Return the folders `<epoch>-<attempt>` below a path that are of epochs that are over."""
    epochs = ((name, name.partition("-")[0]) for name in folder.names(path))
    return [f"{path}/{name}".lstrip("/") for name, epoch in epochs if epoch.isdigit() and int(epoch) < below_epoch]


def _attempt_of(folder: str) -> str:
    """Return the uuid in the name of a staging folder."""
    return folder.rpartition("/")[2].partition("-")[2]


def _only_reads() -> Engine:
    raise UsageError("this process only reads tables: it has no Spark session to write to an adopted one")


def reach_step(step: str) -> None:
    """Pass the fail point of a commit."""
    reach(step)
