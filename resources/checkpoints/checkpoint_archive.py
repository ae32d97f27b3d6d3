"""The compacted files of a checkpoint table: the bounds of their rows, and reads of single rows on demand.

Files of commits are merged in tiers: enough files of one tier become one file of the next. So a row is rewritten a few
times in all, however long the table becomes; only the number of files in the top tier keeps growing. The newest file
of the lowest tier carries the history's digest (`jobs/protocol/digest.py`) in its footer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, PublishNote, RowKind
from drainmark.jobs.tasks.parquet_files import as_written
from drainmark.resources.checkpoints.checkpoint_rows import POSITION_COLUMN, arrow_schema, placed_rows
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

DIGEST_KEY = "drainmark.history"
ROWS_PER_GROUP = 4096
"""Rows in a row group of a compacted file: a reader of the rows of a few ids reads one or two groups."""

TIER_FILES = 16
TOP_TIER = 3
"""Files of this tier are never merged again, so that no compaction takes longer than a second or two."""

_NOTE_IDS = 2100  # the note of a group comes with a later commit; a group has 2000 ids at most
_NAME = re.compile(r"compacted-(\d)-(\d+)-(\d+)-(\d+)-(\d+)\.parquet")
_NUMBERED = [RowKind.STATE.value, RowKind.SKIP.value, RowKind.PROGRESS.value]


@dataclass(frozen=True, slots=True, order=True)
class LiveFile:
    """A live file of the table, with the facts in its name.

    Attributes:
        last, first: positions of its newest and oldest row; 0 for the file of a commit.
        tier: 0 for the file of a commit, or of a compaction before tiers.
        first_id, last_id: bounds of the rows' `sequence_id`.
    """

    last: int
    first: int
    path: str
    tier: int = 0
    first_id: int = 0
    last_id: int = 0

    @classmethod
    def of(cls, path: str) -> LiveFile:
        """Return the file with a path."""
        found = _NAME.fullmatch(path.rpartition("/")[2])
        if found is None:
            return cls(last=0, first=0, path=path)
        tier, first, last, first_id, last_id = map(int, found.groups())
        return cls(last=last, first=first, path=path, tier=tier, first_id=first_id, last_id=last_id)


def stem_of(tier: int, rows: pa.Table) -> str:
    """Return the name, without its suffix, of a compacted file with `rows`, which are in the order of positions."""
    import pyarrow.compute as pc

    positions, ids = rows.column(POSITION_COLUMN), pc.min_max(rows.column("sequence_id"))
    bounds = (positions[0], positions[-1], ids["min"], ids["max"])
    return f"compacted-{tier}-" + "-".join(str(bound.as_py()) for bound in bounds)


def newest_digest(parts: Iterable[LiveFile]) -> LiveFile | None:
    """Return the file whose footer has the newest digest."""
    return max((part for part in parts if part.tier == 1), default=None)


def read_digest(folder: Folder, part: LiveFile) -> str | None:
    """Return the digest in a file's footer."""
    import pyarrow.parquet as pq

    with as_written(folder / part.path), pq.ParquetFile(folder.source(part.path)) as file:
        found = (file.metadata.metadata or {}).get(DIGEST_KEY.encode())
    return found.decode() if found is not None else None


def merges(parts: Sequence[LiveFile]) -> list[tuple[int, list[LiveFile]]]:
    """Return the lists of compacted files to merge, each with the tier of the resulting file."""
    tiers = {tier: sorted(part for part in parts if part.tier == tier) for tier in range(1, TOP_TIER)}
    return [(tier + 1, found) for tier, found in tiers.items() if len(found) >= TIER_FILES]


class CheckpointArchive:
    """A reader of the rows behind a digest, from the files that the table has at the time of the call.

    Args:
        folder: of the table.
        live: returns the table's files now; files with only rows newer than the digest may be left out.
        through: position of the digest's newest row.
    """

    def __init__(self, folder: Folder, live: Callable[[], Iterable[LiveFile]], through: int) -> None:
        self._folder = folder
        self._live = live
        self._through = through

    def states(self, first: int, last: int) -> Iterable[CheckpointRow]:
        """Return the states, skips and progress with ids in first..last, by id, with the durations of their commits."""
        import pyarrow.compute as pc

        kind, number = pc.field("kind"), pc.field("sequence_id")
        mine = kind.isin(_NUMBERED) & (number >= first) & (number <= last)
        note = (kind == RowKind.PUBLISHED.value) & (number >= first) & (number <= last + _NOTE_IDS)
        rows = self._rows(mine | note, lambda part: part.first_id <= last + _NOTE_IDS and part.last_id >= first)
        seconds: dict[int, float] = {}
        for row in rows:
            if row.kind is RowKind.PUBLISHED:
                seconds.update((int(n), value) for n, value in PublishNote.from_row(row).commit_seconds.items())
        states = (row for row in rows if row.kind is not RowKind.PUBLISHED)
        return sorted((timed(row, seconds) for row in states), key=lambda row: row.sequence_id)

    def states_of(self, uris: Collection[str]) -> Iterable[CheckpointRow]:
        """Return the states and skips of some triggers, by id."""
        import pyarrow.compute as pc

        wanted = pc.field("kind").isin(_NUMBERED) & pc.field("trigger_uri").isin(sorted(uris))
        return sorted(self._rows(wanted, lambda part: True), key=lambda row: row.sequence_id)

    def refusals(self) -> Iterable[CheckpointRow]:
        """Return the rows of refused triggers, in commit order."""
        import pyarrow.compute as pc

        return self._rows(pc.field("kind") == RowKind.REFUSED.value, lambda part: True)

    def _rows(self, where: Any, may_hold: Callable[[LiveFile], bool]) -> list[CheckpointRow]:
        import pyarrow.compute as pc

        before = pc.field(POSITION_COLUMN) <= self._through
        # Files of commits, and files that others wrote by OPTIMIZE, have names without bounds: they are always read.
        near = [part.path for part in self._live() if not part.tier or (part.first <= self._through and may_hold(part))]
        found = self._folder.read(sorted(near), arrow_schema(), None, where & before).sort_by(POSITION_COLUMN)
        return [row for _, row in placed_rows(found, str(self._folder))]


def timed(row: CheckpointRow, seconds: dict[int, float]) -> CheckpointRow:
    """Return a state with the duration of its group's commit, if it is known by now."""
    known = seconds.get(row.group_last if row.group_last is not None else row.sequence_id)
    return replace(row, checkpoint_seconds=known) if known is not None and row.checkpoint_seconds is None else row
