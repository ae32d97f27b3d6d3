"""All tables of one region below DRAINMARK_HOME, by name (design.md §6)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from jobs.failpoints import reach
from jobs.protocol.manifest import StagedFile
from resources.checkpoint_table import CheckpointTable
from resources.delta_tables import ManagedTable
from resources.staging import STAGING_FOLDER, Staging, verify

_REWRITTEN = ("compacted-", "rewound-")
_KEPT_SECONDS = 86_400


class DirectoryStore:
    """A region's tables in local folders; one object a run.

    Every Delta commit passes the fail points `<step>.before_commit` and `<step>.after_commit`.
    """

    def __init__(self, home: Path, region: str) -> None:
        self.home = home
        self.region = region
        self.checkpoint = CheckpointTable(home / "checkpoints" / region, region, faults=reach_step)
        self._tables: dict[str, ManagedTable] = {}

    def table(self, name: str) -> ManagedTable:
        if name not in self._tables:
            self._tables[name] = ManagedTable(self.home / name, self.region, faults=reach_step)
        return self._tables[name]

    def staging(self, name: str, epoch: int, attempt: str) -> Staging:
        return Staging(self.home / name, epoch, attempt)

    def verify(self, name: str, files: Sequence[StagedFile]) -> None:
        verify(self.home / name, files)

    def inbox(self, epoch: int, attempt: str) -> Path:
        """Return the folder of links of one attempt; not made yet."""
        return self.home / "inbox" / self.region / f"{epoch}-{attempt}"

    def collect_orphans(self, names: Sequence[str], below_epoch: int, named: set[str]) -> int:
        """Delete staging folders and inboxes of dead epochs that neither a row nor the table names; return how many."""
        removed = 0
        for name in names:
            root = self.home / name
            used = named | {file.path.rpartition("/")[0] for file in self.table(name).live_files()}
            for folder in _dead(root / STAGING_FOLDER, below_epoch):
                prefix = f"{STAGING_FOLDER}/{folder.name}"
                is_used = any(path == prefix or path.startswith(f"{prefix}/") for path in used)
                if not is_used and not _left_a_table_lately(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                    removed += 1
        for folder in _dead(self.home / "inbox" / self.region, below_epoch):
            shutil.rmtree(folder, ignore_errors=True)
        return removed


def _left_a_table_lately(folder: Path) -> bool:
    """May a reader still hold a version of the table with these files? They were compacted or rewound, not orphaned."""
    rewritten = [path for stem in _REWRITTEN for path in folder.glob(f"{stem}*.parquet")]
    return any(time.time() - path.stat().st_mtime < _KEPT_SECONDS for path in rewritten)


def _dead(folder: Path, below_epoch: int) -> list[Path]:
    """Return the folders `<epoch>-<attempt>` of epochs that are over."""
    if not folder.is_dir():
        return []
    epochs = ((entry, entry.name.partition("-")[0]) for entry in folder.iterdir())
    return [entry for entry, epoch in epochs if epoch.isdigit() and int(epoch) < below_epoch]


def reach_step(step: str) -> None:
    """Pass the fail point of a commit."""
    reach(step)
