"""Maintenance that keeps a region's tables fast while they grow: compaction and log checkpoints, between groups.

Nothing here changes the rows that a reader of a sink sees, and nothing reaches across the rewind horizon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole

if TYPE_CHECKING:
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner
    from drainmark.resources.checkpoints.region_store import RegionTables

EVERY_GROUPS = 20
"""Number of groups between two maintenance steps: it bounds the length of logs and file lists."""


def maintain_region(owner: RegionOwner, *, horizon: int) -> int:
    """Drop rows of states and histories that no rewind needs, compact tables, and refresh the owner's ledger.

    Args:
        horizon: number of ids that a rewind may go back.

    Returns:
        the number of rewritten tables.
    """
    oldest = max(INITIAL_ID, owner.history.committed_id - horizon)
    drop_changes(owner, oldest)
    rewritten = maintain_tables(owner.outside.store, owner.history.tables, epoch=owner.epoch, horizon_id=oldest)
    owner.ledger.refresh()
    return rewritten


def drop_changes(owner: RegionOwner, oldest: int) -> None:
    """Drop changes of states, and rows in the histories of sinks, that are beyond the rewind horizon.

    Changes are dropped up to the newest image at or below `oldest`; `trimming` decides which rows are dropped. A note
    is committed first: from then on no rewind goes back before the dropped ids, even with a larger horizon. After a
    crash in between, the next step drops the rest.

    Args:
        oldest: oldest id that a rewind may go back to.
    """
    store = owner.outside.store
    oldest = min([oldest, *owner.ledger.lags.values()])  # a visible table that lags still needs all later rows
    dropped = _superseded(owner, oldest)
    cuts = trimming(store, owner.history, min([oldest, *(row.first_id - 1 for row in owner.behind)]))
    if not dropped and not cuts:
        return
    edges = {name: cut.edge for name, cut in cuts.items()}
    owner.ledger.note_published(dropped=dropped, trimmed=edges)
    for name, through in {**dropped, **{name: cut.through for name, cut in cuts.items()}}.items():
        version = store.table(name).txn_version()
        if version is not None:
            store.table(name).upkeep.drop(version, through)


def _superseded(owner: RegionOwner, oldest: int) -> dict[str, int]:
    """Return the id of the image up to which changes can be dropped, by table."""
    store, found = owner.outside.store, {}
    for table in owner.history.tables:
        image = owner.history.image_of(table.name, oldest) if table.role is TableRole.CHANGES else None
        if image is None or not store.table(table.name).files.up_to(image.at):
            continue
        if store.table(table.name).files.holds(image.files):
            found[table.name] = image.at
    return found


def maintain_tables(store: RegionTables, tables: Sequence[RegionTable], *, epoch: int, horizon_id: int) -> int:
    """Compact tables with many small files, and write log checkpoints.

    Args:
        horizon_id: oldest id that a rewind may go back to; no file gets rows from both sides of it.

    Returns:
        the number of rewritten tables.
    """
    rewritten = 0
    for table in tables:
        if not table.is_managed:  # the maker of the table keeps it fast
            continue
        target = store.table(table.name)
        if table.role is not TableRole.UPSERT:
            version = target.txn_version()
            staging = store.staging(table, epoch, world.token())
            rewritten += version is not None and target.upkeep.compact(version, staging, horizon_id=horizon_id)
        target.upkeep.maintain()
    rewritten += store.checkpoint.compact()
    store.checkpoint.maintain()
    return rewritten


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

    The history of a sink without keys grows with every row of the stream, beside the rows in the sink. Keyed histories
    are compacted into images instead. A Delta append sink has no history: its table keeps every row.

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
