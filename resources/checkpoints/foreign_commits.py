"""Commits of others to a region's tables: how to find, examine and repair them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from drainmark.jobs import world
from drainmark.jobs.errors import SplitBrain
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.repairs import TableDamage, TableRepair, TableVersions
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable, checkpoint_name
from drainmark.resources.delta import commits, delta_tables
from drainmark.resources.delta.commits import Published
from drainmark.resources.delta.health.damaged_tables import damage_of, put_right
from drainmark.resources.delta.health.visible_rows import VisibleRows
from drainmark.resources.delta.log.commit_log import SoleWriter
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.storage.folder import Folder


class ForeignCommits:
    """Commits of others to the tables of one region, which only the region may write.

    Args:
        tables: the folder of all tables.
        region: the region of these tables.
        checkpoint: its checkpoint table.
        table: returns a managed table by its name; the same object each time, since it knows the checked commits.
        staging: returns the staging folder of a table; see `RegionTables.staging`.
    """

    def __init__(
        self,
        tables: Folder,
        region: str,
        checkpoint: CheckpointTable,
        table: Callable[[str], ManagedTable],
        staging: Callable[[RegionTable | str, int, str], Staging],
    ) -> None:
        self._tables = tables
        self._region = region
        self._checkpoint = checkpoint
        self._table = table
        self._staging = staging

    def require_place(self, name: str) -> None:
        """Check that a managed table is this region's, or that its place is free.

        Raises:
            ForeignTable: there is a table or a folder that this region did not make.
        """
        folder = self._tables / name
        if delta_tables.is_table(folder):
            delta_tables.require_own(delta_tables.open_table(folder), folder, self._region)
        else:
            delta_tables.refuse_foreign_files(folder)

    def require_sole_writer(self, name: str, check: Callable[[TableVersions], None] = lambda versions: None) -> None:
        """Check that nobody else changed rows of a managed table since the region's last commit to it.

        It costs one look at one file if nothing was committed since the last check of this object.

        Args:
            check: a further check of the table's versions; it raises SplitBrain.

        Raises:
            SplitBrain: somebody did, or this is unknown; see `SoleWriter.require`.
        """
        writer = self._writer(name)
        if not writer.has_moved():
            return
        versions, sound = self.versions(name), writer.through
        writer.require(versions.delta)
        try:
            check(versions)
        except SplitBrain:
            writer.through = sound  # the next look has to find it again
            raise

    def versions(self, name: str) -> TableVersions:
        """Return the versions that an existing table has."""
        with delta_tables.newest(self._tables / name, self._writer(name)) as table:
            return TableVersions(delta=int(table.version()), txn=commits.txn_version(table, self._region))

    def trust(self, name: str, version: int) -> None:
        """Take a version of a table as sound: its rows were compared, since its log no longer shows all commits."""
        self._writer(name).through = version

    def damage(self, name: str, *, whatever: bool = False) -> TableDamage | None:
        """Return the changes by others since a table's last repair; None if it is sound, unless `whatever` is set."""
        return damage_of(self._tables / name, self._region, whatever=whatever)

    def put_right(
        self,
        repair: TableRepair,
        *,
        epoch: int,
        version: int | None = None,
        rows: VisibleRows | None = None,
        table: RegionTable | None = None,
    ) -> Published:
        """Carry out a repair in one commit; see `damaged_tables.put_right`.

        Args:
            table: the record of the table; None for the checkpoint table.
        """
        staging = self._staging(table or repair.table, epoch, world.token())
        staging.layout = replace(staging.layout, most_partitions=None)  # a table may have more than a group
        return put_right(
            self._tables / repair.table,
            self._region,
            repair,
            version=version,
            rows=rows,
            staging=staging,
            writer=self._writer(repair.table),
        )

    def _writer(self, name: str) -> SoleWriter:
        writer = self._checkpoint.writer if name == checkpoint_name(self._region) else self._table(name).writer
        return writer or SoleWriter(self._tables / name, self._region)
