"""Maintenance that keeps a region's tables fast while they grow: compaction and log checkpoints, between groups.

Nothing here changes the rows that a reader of a sink sees, and nothing reaches across the rewind horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.runtime.maintenance.history_trim import trimming

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
    owner.ledger.note_published(dropped=dropped or None, trimmed=edges or None)
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
