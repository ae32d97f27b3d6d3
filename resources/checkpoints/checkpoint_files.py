"""The live files of a checkpoint table, and their rows; a second call reads only new entries of the table's log."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.resources.checkpoints.checkpoint_archive import LiveFile
from drainmark.resources.checkpoints.checkpoint_rows import POSITION_COLUMN, arrow_schema, placed_rows
from drainmark.resources.delta import commits
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa


class CheckpointFiles:
    """The files that are in the table at the time of each call; several threads may call.

    Args:
        folder: of the table.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._view: Any = None
        self._viewing = threading.Lock()

    def paths(self) -> set[str]:
        """Return the paths of the files that are in the table now.

        Raises:
            SplitBrain: there is no table.
        """
        return commits.live_paths(self._refresh())

    def parts(self) -> list[LiveFile]:
        """Return the same files, with the facts in their names."""
        return [LiveFile.of(path) for path in self.paths()]

    def sorted_rows(self, parts: Iterable[LiveFile]) -> pa.Table:
        """Return the rows of some files in commit order."""
        return self._folder.read([part.path for part in parts], arrow_schema()).sort_by(POSITION_COLUMN)

    def rows_since(self, sequence_id: int) -> tuple[CheckpointRow, ...]:
        """Return the rows with ids >= `sequence_id`, in commit order; skip compacted files with smaller ids only."""
        import pyarrow.compute as pc

        near = [part.path for part in self.parts() if not part.tier or part.last_id >= sequence_id]
        found = self._folder.read(near, arrow_schema(), None, pc.field("sequence_id") >= sequence_id)
        return tuple(row for _, row in placed_rows(found.sort_by(POSITION_COLUMN), str(self._folder)))

    def _refresh(self) -> Any:
        """Return the view at the newest version; read only new log entries, if they still exist."""
        with self._viewing:
            if self._view is not None:
                try:
                    self._view.update_incremental()
                except Exception:  # the log was cleaned up under the view
                    self._view = None
            if self._view is None:
                self._view = commits.open_table(self._folder)
            return self._view
