"""The disposal of input files with established states: they are kept, moved or deleted, as the source declares.

A drained file was fully processed, so only a rewind to before its id needs it again. Disposal is repeated until it is
noted as done, so a crash in between does no harm. A file that was replaced since the scan is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import RowKind

if TYPE_CHECKING:
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner

NOTE = "disposed-through"
"""Name of the note in the registry: files up to this id (inclusive) are done. Without it all are checked again."""

_AT_ONCE = 500


@dataclass(slots=True, kw_only=True)
class Disposal:
    """Disposes of a region's input files.

    Attributes:
        starts: of the region; the scan of a source has the action (`after`) and its time (`after_when`).
    """

    owner: RegionOwner
    starts: Sequence[Operator]
    _through: int | None = None

    @property
    def scan(self) -> DirectoryScan | None:
        """Return the scan with files to move or delete; None if all files are kept."""
        scans = [start.scan for start in self.starts if isinstance(start, DirectorySource)]
        return next((scan for scan in scans if scan.after != "keep"), None)

    @property
    def is_at_once(self) -> bool:
        """Say whether files are moved or deleted as soon as their state is established."""
        return self.scan is not None and self.scan.after_when == "checkpointed"

    def catch_up(self, history: RegionHistory, *, published: int, horizon: int) -> int:
        """Dispose of the files that are due and not done yet; only the region's owner may call it.

        Args:
            published: the newest id that is published to every sink.
            horizon: number of ids that a rewind may go back; with `after_when="retired"` files within it stay.

        Returns:
            the number of files that were moved or deleted.

        Raises:
            StoreUnavailable, StoreRefused: a file could not be moved or deleted; the next call tries again.
            Fenced: another owner has the region.
        """
        scan, owner, outside = self.scan, self.owner, self.owner.outside
        if scan is None:
            return 0
        due = published if self.is_at_once else history.committed_id - horizon
        if self._through is None:
            self._through = int(outside.registry.load_cursor(owner.region, NOTE) or 0)
        done = 0
        while self._through < due:
            last = min(due, self._through + _AT_ONCE)
            rows = [row for row in history.states.above(self._through).values() if row.sequence_id <= last]
            files = [
                (row.trigger_uri, row.trigger_identity or {}, row.sequence_id)
                for row in rows
                if row.kind is RowKind.STATE and row.trigger_kind == "file" and row.trigger_uri
            ]
            done += outside.inputs.dispose(files, scan)
            self._through = last
            outside.registry.save_cursor(owner.region, NOTE, str(last), epoch=owner.epoch)
        return done
