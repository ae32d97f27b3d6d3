"""The upkeep of a managed table: few files, a short log, and unchanged rows."""

from __future__ import annotations

from drainmark.resources.delta import commits
from drainmark.resources.delta.commit_log import SoleWriter
from drainmark.resources.delta.merge import arrow_schema
from drainmark.resources.delta.staging import Staging
from drainmark.resources.delta.table_files import TableFiles
from drainmark.resources.delta.upkeep import log_retention
from drainmark.resources.delta.upkeep.compaction import runs_to_compact
from drainmark.resources.storage.folder import Folder


class Upkeep:
    """The upkeep of one table between groups; each step is optional, and any owner of the region can do it.

    Args:
        folder: of the table.
        region: the region that commits.
        writer: as for `ManagedTable`; None if others may commit.
    """

    def __init__(self, folder: Folder, region: str, *, writer: SoleWriter | None) -> None:
        self._folder = folder
        self._region = region
        self._writer = writer
        self._files = TableFiles(folder)

    def compact(self, version: int, staging: Staging, *, files_at_least: int = 64, horizon_id: int = 0) -> bool:
        """Rewrite each run of small files, adjacent by id, as one file; the rows stay unchanged.

        This is for tables of rows. A run is of one partition. If the table has an order, the rows of a run are sorted,
        and may become several files. The commit requires that the table still has `version`, and keeps it.

        Args:
            version: the version that the table has.
            staging: where the new files go; they live there until compacted or rewound again.
            files_at_least: shorter runs are left alone.
            horizon_id: no file gets both ids up to this one and ids above it, so that whole files can be dropped.

        Returns:
            Whether anything was rewritten; also False if the table has another version.
        """
        opened = commits.open_table(self._folder)
        if commits.txn_version(opened, self._region) != version:
            return False
        live = commits.live_files(opened, self._folder)
        runs = runs_to_compact(live, files_at_least, horizon_id)
        if not runs:
            return False
        rewritten = staging.rewrite(runs, arrow_schema(opened))
        return commits.replace(
            self._folder,
            self._region,
            version,
            replaced=[file for run in runs for file in run],
            rewritten=rewritten,
            writer=self._writer,
        )

    def drop(self, version: int, through: int) -> bool:
        """Remove the files in which all ids are at most `through`: an image has those of their rows that count.

        As in a compaction, the commit requires that the table still has `version`, and keeps it.

        Returns:
            Whether there were such files; also False if the table has another version.
        """
        leaving = self._files.up_to(through)
        return bool(leaving) and commits.replace(
            self._folder,
            self._region,
            version,
            replaced=leaving,
            rewritten=(),
            writer=self._writer,
        )

    def maintain(self) -> None:
        """Write a checkpoint of Delta's log and delete old log files, as a separate step; see `log_retention`."""
        log_retention.maintain(self._folder, self._region, writer=self._writer)
