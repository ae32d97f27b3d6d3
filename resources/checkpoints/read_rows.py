"""Rows of checkpoint files, as objects; those of small files are kept, since every look at a region needs them again.

A process looks at a region many times: a run before its claim, for it, and after it, a service at each tick. Nobody
changes a checkpoint file, but a disk may lose it and a backup may replace it: so a file counts as read only as long as
the same one lies at its path.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.resources.checkpoints.checkpoint_rows import placed_rows
from drainmark.resources.storage.folder import Folder, traits

SMALL_ROWS = 64
"""Rows of a commit with at most so many rows are kept in memory, once read, until the commit is compacted."""

_MOST_REGIONS = 256
"""The number of regions, those read last, of which a process keeps small files: a compaction leaves few of one."""

PlacedRows = tuple[tuple[int, CheckpointRow], ...]

_kept: dict[str, dict[str, tuple[object, PlacedRows]]] = {}  # by folder, and by path


def read_rows(folder: Folder, paths: Sequence[str], live: Collection[str]) -> Mapping[str, PlacedRows]:
    """Return the rows of each file, with their positions.

    Args:
        folder: of the checkpoint table.
        live: all files of the table; what was kept of others, which a compaction replaced, is let go.

    Raises:
        FormatTooNew: a row was written by a newer Drainmark.
        OSError: a file cannot be read.
    """
    known, before = traits(folder, paths), _kept.pop(folder.uri, {})
    entries = {path: before.get(path) for path in known}
    found = {path: entry[1] for path, entry in entries.items() if entry is not None and entry[0] == known[path]}
    new = [path for path in paths if path not in found]
    for path, table in zip(new, folder.read_each(new), strict=True):
        found[path] = tuple(placed_rows(table, str(folder)))
    small = {path: (known[path], rows) for path, rows in found.items() if path in known and len(rows) <= SMALL_ROWS}
    _kept[folder.uri] = {path: entry for path, entry in before.items() if path in live} | small
    for oldest in list(_kept)[:-_MOST_REGIONS]:
        _kept.pop(oldest, None)
    return found
