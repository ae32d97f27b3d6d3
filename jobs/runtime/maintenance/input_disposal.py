"""Input files whose states are established: kept, moved or deleted, as the source says.

A drained file was fully processed, so nothing of it is needed but for a rewind behind its id. Disposing is repeated
until it is noted as done: a crash in between costs nothing, and a file that is another one by now is left alone.
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
    from drainmark.jobs.runtime.outside import Outside

NOTE = "disposed-through"
"""Name of the note in the registry: the id up to which files are disposed of. Without it all are looked at again."""

_AT_ONCE = 500


@dataclass(slots=True, kw_only=True)
class Disposal:
    """Disposes of a region's input files.

    Attributes:
        starts: of the region; the scan of a source says what is done, and when.
    """

    outside: Outside
    region: str
    starts: Sequence[Operator]
    _through: int | None = None

    @property
    def scan(self) -> DirectoryScan | None:
        """Return the scan whose files go; None where files stay."""
        scans = [start.scan for start in self.starts if isinstance(start, DirectorySource)]
        return next((scan for scan in scans if scan.after != "keep"), None)

    @property
    def is_at_once(self) -> bool:
        """Do files go as soon as their state is established?"""
        return self.scan is not None and self.scan.after_when == "checkpointed"

    def catch_up(self, history: RegionHistory, *, published: int, horizon: int) -> int:
        """Dispose of the files that are due and not done yet; to be called by the region's owner.

        Args:
            published: the newest id of which every sink has its rows.
            horizon: number of ids that a rewind may go back; files within it stay, with `after_when="retired"`.

        Returns:
            how many files were moved or deleted.

        Raises:
            StoreUnavailable, StoreRefused: one could not be; it is tried again at the next call.
        """
        scan = self.scan
        if scan is None:
            return 0
        due = published if self.is_at_once else history.committed_id - horizon
        if self._through is None:
            self._through = int(self.outside.registry.load_cursor(self.region, NOTE) or 0)
        done = 0
        while self._through < due:
            last = min(due, self._through + _AT_ONCE)
            rows = [row for row in history.states.above(self._through).values() if row.sequence_id <= last]
            files = [
                (row.trigger_uri, row.trigger_identity or {}, row.sequence_id)
                for row in rows
                if row.kind is RowKind.STATE and row.trigger_kind == "file" and row.trigger_uri
            ]
            done += self.outside.inputs.dispose(files, scan)
            self._through = last
            self.outside.registry.save_cursor(self.region, NOTE, str(last))
        return done
