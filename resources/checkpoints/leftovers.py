"""Files of former owners of a region that are no longer needed: staged files, inboxes, files of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path

from drainmark.jobs import world
from drainmark.jobs.protocol import persons
from drainmark.jobs.protocol.stage_flow import is_part
from drainmark.resources.checkpoints.checkpoint_table import CHECKPOINTS, CheckpointTable
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import STAGING_FOLDER
from drainmark.resources.delta.upkeep.garbage import Garbage, garbage_of, is_channels
from drainmark.resources.delta.upkeep.log_retention import KEPT_SECONDS, removed_since
from drainmark.resources.storage.folder import Folder, LocalFolder


class Leftovers:
    """The files of one region that neither its rows nor its tables name, and the means to find and delete them.

    Args:
        tables: the folder of all tables.
        inboxes: the folder of the region's inboxes, on this machine.
        checkpoint: the region's checkpoint table.
        table: returns a managed table by its name.
    """

    def __init__(
        self,
        tables: Folder,
        inboxes: Path,
        checkpoint: CheckpointTable,
        table: Callable[[str], ManagedTable],
    ) -> None:
        self._tables = tables
        self._inboxes = LocalFolder(inboxes)
        self._checkpoint = checkpoint
        self._table = table

    def collect_orphans(self, names: Sequence[str], below_epoch: int) -> int:
        """Delete inboxes and unused staging folders of dead epochs; return the number of staging folders.

        A folder has the files of one attempt; it is used if a row names the attempt, or the table shows a file in it.
        Attempts of stages and of erasures are left to `gc`, which uses the files that rows name. Call this after all
        committed groups are published, since a table is fenced before its files are deleted.

        Inboxes of epoch 0 stay, since probes may be running: `dead_spools` finds them.
        """
        removed = 0
        for name in names:
            if not self._orphans(name, below_epoch):
                continue
            self._table(name).fence(below_epoch)  # else a stopped compaction may land later, and name deleted files
            for attempt in self._orphans(name, below_epoch):
                self._table(name).folder.delete(attempt)
                removed += 1
        for attempt in _dead(self._inboxes, "", below_epoch):
            if not attempt.startswith("0-"):
                self._inboxes.delete(attempt)
        return removed

    def _orphans(self, name: str, below_epoch: int) -> list[str]:
        """Return the staging folders of dead epochs that neither a row nor the table names."""
        folder = self._table(name).folder
        dead = [
            each
            for each in _dead(folder, STAGING_FOLDER, below_epoch)
            if not is_part(_attempt_of(each)) and not persons.is_attempt(_attempt_of(each))
        ]
        if not dead:
            return []
        # A reader may still hold a version of the table with files that have left it since.
        removed = removed_since(folder, world.now() - KEPT_SECONDS)
        shown = {file.path for file in self._table(name).files.live()} | removed
        used = {path.rpartition("/")[0] for path in shown}
        named = self._checkpoint.attempts([_attempt_of(attempt) for attempt in dead])
        unnamed = [attempt for attempt in dead if _attempt_of(attempt) not in named]
        return [
            attempt
            for attempt in unnamed
            if not any(path == attempt or path.startswith(f"{attempt}/") for path in used)
        ]

    def fence(self, names: Iterable[str], epoch: int) -> None:
        """Make tables, given by name, refuse commits of older epochs; a claim has done so for the checkpoint table."""
        for name in names:
            if not name.startswith(f"{CHECKPOINTS}/") and not is_channels(name):
                self._table(name).fence(epoch)

    def garbage(self, name: str, named: Set[str], *, below_epoch: int, now: float) -> Garbage:
        """Return the files of a table that can be deleted; the checkpoint table is `checkpoints/<region>`."""
        return garbage_of(self._tables / name, name, named=named, below_epoch=below_epoch, now=now)

    def dead_spools(self, *, below_epoch: int, before: float) -> tuple[Path, ...]:
        """Return inboxes of dead epochs that were last changed before `before`.

        The time protects probes that are running: they have no claim, and so no epoch of their own.
        """
        found = [self._inboxes.path / name for name in _dead(self._inboxes, "", below_epoch)]
        return tuple(path for path in found if path.stat().st_mtime < before)

    def discard(self, garbage: Garbage) -> None:
        """Delete the files that `garbage` found."""
        (self._tables / garbage.table).remove(garbage.files)

    def discard_spools(self, spools: Sequence[Path]) -> None:
        """Delete the inboxes that `dead_spools` found."""
        for folder in spools:
            self._inboxes.delete(folder.name)


def _dead(folder: Folder, path: str, below_epoch: int) -> list[str]:
    """Return the folders `<epoch>-<attempt>` below a path with an epoch less than `below_epoch`."""
    epochs = ((name, name.partition("-")[0]) for name in folder.names(path))
    return [f"{path}/{name}".lstrip("/") for name, epoch in epochs if epoch.isdigit() and int(epoch) < below_epoch]


def _attempt_of(folder: str) -> str:
    """Return the uuid in the name of a staging folder."""
    return folder.rpartition("/")[2].partition("-")[2]
