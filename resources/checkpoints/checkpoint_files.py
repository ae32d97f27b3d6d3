"""The live files of a checkpoint table, and their rows; a second call reads only new entries of the table's log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import Interrupted
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.resources.checkpoints.checkpoint_archive import LiveFile
from drainmark.resources.checkpoints.checkpoint_rows import POSITION_COLUMN, arrow_schema, placed_rows
from drainmark.resources.delta import delta_tables, file_lists
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
        self._free: list[Any] = []  # the table object of the last look, if nobody uses it

    def paths(self) -> set[str]:
        """Return the paths of the files that are in the table now.

        Raises:
            SplitBrain: there is no table.
        """
        with self._newest() as table:
            return file_lists.live_paths(table)

    def parts(self) -> list[LiveFile]:
        """Return the same files, with the facts in their names."""
        return [LiveFile.of(path) for path in self.paths()]

    def sorted_rows(self, parts: Iterable[LiveFile]) -> pa.Table:
        """Return the rows of some files in commit order."""
        return self._folder.read([part.path for part in parts], arrow_schema()).sort_by(POSITION_COLUMN)

    def rows_of(self, first: int, last: int | None) -> tuple[CheckpointRow, ...]:
        """Return the rows with ids in first..last, in commit order; skip compacted files without such ids."""
        import pyarrow.compute as pc

        most = math.inf if last is None else last
        near = [part for part in self.parts() if not part.tier or (part.last_id >= first and part.first_id <= most)]
        wanted = pc.field("sequence_id") >= first
        if last is not None:
            wanted &= pc.field("sequence_id") <= last
        found = self._folder.read([part.path for part in near], arrow_schema(), None, wanted)
        return tuple(row for _, row in placed_rows(found.sort_by(POSITION_COLUMN), str(self._folder)))

    @contextmanager
    def _newest(self) -> Iterator[Any]:
        """Yield a table object of the newest version, which nobody else uses inside the block.

        It reads only new log entries, if they still exist.
        """
        try:
            table = self._free.pop()
            delta_tables.catch_up(self._folder, table)
        except Interrupted:
            raise
        except Exception:  # there is none, or the log was cleaned up under it
            table = delta_tables.open_table(self._folder)
        yield table
        self._free[:] = [table]
