"""Commits of others to a region's tables: how to find, examine and repair them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from drainmark.jobs.errors import SplitBrain
from drainmark.jobs.protocol.records.ids import split_txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.repairs import KnownVersions, TableDamage, TableRepair
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable, checkpoint_name
from drainmark.resources.delta import commits
from drainmark.resources.delta.commit_log import SoleWriter
from drainmark.resources.delta.commits import Faults, Published
from drainmark.resources.delta.health.damaged_tables import damage_of, put_right
from drainmark.resources.delta.health.visible_rows import VisibleRows
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.storage.folder import Folder

_RESTORE = "restore all folders of the region from the same backup, never one alone"


class ForeignCommits:
    """Commits of others to the tables of one region, which only the region may write.

    Args:
        tables: the folder of all tables.
        region: the region of these tables.
        checkpoint: its checkpoint table.
        table: returns a managed table by its name; the same object each time, since it knows the checked commits.
        staging: returns the staging folder of a table; see `RegionTables.staging`.
        faults: as for `ManagedTable`; called with `repair` and `.before_commit` or `.after_commit`.
    """

    def __init__(
        self,
        tables: Folder,
        region: str,
        checkpoint: CheckpointTable,
        table: Callable[[str], ManagedTable],
        staging: Callable[[RegionTable | str, int, str], Staging],
        *,
        faults: Faults,
    ) -> None:
        self._tables = tables
        self._region = region
        self._checkpoint = checkpoint
        self._table = table
        self._staging = staging
        self._faults = faults

    def require_sole_writer(self, name: str, known: KnownVersions | None = None) -> None:
        """Check that nobody else changed rows of a managed table since the region's last commit to it.

        It costs one look at one file if nothing was committed since the last check of this object.

        Args:
            known: to check, too, that the table is the copy that the checkpoint table knows.

        Raises:
            SplitBrain: somebody did, or this is unknown (see `SoleWriter.require`); or it is another copy.
        """
        writer = self._writer(name)
        if writer.has_moved():
            table = commits.open_table(self._tables / name)
            if known is not None and (why := _other_copy(table, writer.folder, self._region, known)):
                msg = f"{self._tables / name} {why}"
                raise SplitBrain(msg, remedy=_RESTORE, table=(self._tables / name).uri, is_cut=False)
            writer.require(int(table.version()))

    def other_copy(self, name: str, known: KnownVersions) -> str:
        """Say why a table is not the copy that the checkpoint table knows; "" if it is."""
        folder = self._tables / name
        return _other_copy(commits.open_table(folder), folder, self._region, known)

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
        staging = self._staging(table or repair.table, epoch, uuid.uuid4().hex)
        staging.layout = replace(staging.layout, most_partitions=None)  # a table may have more than a group
        return put_right(
            self._tables / repair.table,
            self._region,
            repair,
            version=version,
            rows=rows,
            faults=self._faults,
            staging=staging,
            writer=self._writer(repair.table),
        )

    def _writer(self, name: str) -> SoleWriter:
        writer = self._checkpoint.writer if name == checkpoint_name(self._region) else self._table(name).writer
        return writer or SoleWriter(self._tables / name, self._region)


def _other_copy(table: Any, folder: Folder, region: str, known: KnownVersions) -> str:
    version = int(table.version())
    if known.noted is not None and version < known.noted:
        return f"is at version {version}, and {region} committed version {known.noted}: was an older copy restored?"
    epoch, number = split_txn_version(commits.txn_version(table, region) or 0)
    if number and not known.has(number):  # it may be the id of a rewind
        number = max((file.last_id or 0 for file in commits.live_files(table, folder)), default=0)
    if epoch > known.epoch or (number and not known.has(number)):
        msg = f"has a commit of epoch {epoch} with id {number}, which the checkpoint table of {region} does not know"
        return f"{msg}: was an older copy of the checkpoint table restored?"
    return ""
