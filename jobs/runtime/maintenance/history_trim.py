"""Rows that the history of a sink without keys can drop: no rewind within the horizon asks for them.

Such a history grows with every row of the stream, beside what the sink shows. Keyed histories are compacted into
images instead; a Delta append sink has no history, its table is what it shows, and keeps every row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.runtime.outside import RegionStore


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCut:
    """Where a history is cut.

    Attributes:
        edge: the oldest id that a rewind can go back to afterwards, but for 0.
        through: files go whose rows all have ids up to this.
    """

    edge: int
    through: int


def trimming(store: RegionStore, history: RegionHistory, oldest: int) -> Mapping[str, HistoryCut]:
    """Return, by name of a history, where it can be cut; those of which no whole file can go are left out.

    Whole files go, one commit each history: compaction never joins rows from both sides of the horizon, so what is kept
    behind it is bounded by what is kept before it, however long the region has run.

    Args:
        oldest: id that a rewind may go back to; all rows up to it are published.
    """
    if oldest <= INITIAL_ID:
        return {}
    tables = (*history.tables, *history.former)
    cuts = {table.history: _cut(store, table, oldest) for table in tables if table.history}
    return {name: cut for name, cut in cuts.items() if cut is not None}


def _cut(store: RegionStore, table: RegionTable, oldest: int) -> HistoryCut | None:
    history = store.table(table.history or "")
    if table.role not in (TableRole.COPY, TableRole.OVERWRITE) or not history.is_own():
        return None
    behind = history.files.up_to(oldest)
    edge = max((file.last_id or 0 for file in behind), default=0)
    # What is outside keeps its rows, and a rewind only deletes there. An overwritten table gets the rows of the last id
    # up to the target back, which may be the newest behind the horizon.
    through = edge if table.role is TableRole.COPY else edge - 1
    return HistoryCut(edge=edge, through=through) if any((file.last_id or 0) <= through for file in behind) else None
