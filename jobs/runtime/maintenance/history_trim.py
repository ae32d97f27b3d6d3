"""Rows that the history of a sink without keys can drop, because no rewind within the horizon needs them.

Such a history grows with every row of the stream, beside the rows in the sink. Keyed histories are compacted into
images instead. A Delta append sink has no history: its table keeps every row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole

if TYPE_CHECKING:
    from drainmark.resources.checkpoints.region_store import RegionTables


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCut:
    """The ids at which a history is cut.

    Attributes:
        edge: the oldest id, except 0, that a rewind can go back to afterwards.
        through: files are dropped if all their rows have ids up to this (inclusive).
    """

    edge: int
    through: int


def trimming(store: RegionTables, history: RegionHistory, oldest: int) -> Mapping[str, HistoryCut]:
    """Return the cut of each history by its name; a history is left out if no whole file can be dropped.

    Whole files are dropped, in one commit for each history. Compaction never joins rows from both sides of the horizon,
    so the rows kept beyond the horizon do not grow with the age of the region.

    Args:
        oldest: oldest id that a rewind may go back to; all rows up to it are published.
    """
    if oldest <= INITIAL_ID:
        return {}
    tables = (*history.tables, *history.former)
    cuts = {table.history: _cut(store, table, oldest) for table in tables if table.history}
    return {name: cut for name, cut in cuts.items() if cut is not None}


def _cut(store: RegionTables, table: RegionTable, oldest: int) -> HistoryCut | None:
    history = store.table(table.history or "")
    if table.role not in (TableRole.COPY, TableRole.OVERWRITE) or not history.is_own():
        return None
    behind = history.files.up_to(oldest)
    edge = max((file.last_id or 0 for file in behind), default=0)
    # A sink outside keeps its rows, and a rewind only deletes there. A rewind of an overwritten table restores the rows
    # of the last id up to the target, which may be the newest id beyond the horizon.
    through = edge if table.role is TableRole.COPY else edge - 1
    return HistoryCut(edge=edge, through=through) if any((file.last_id or 0) <= through for file in behind) else None
