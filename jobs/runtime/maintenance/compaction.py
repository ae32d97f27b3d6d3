"""Keep a region's tables fast while they grow: compaction and log checkpoints, our own step between groups.

Nothing here changes what a reader of a sink sees, and nothing reaches across the rewind horizon.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.runtime.maintenance.history_trim import trimming
from drainmark.jobs.runtime.outside import RegionStore

if TYPE_CHECKING:
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner

EVERY_GROUPS = 20
"""Commits between two maintenance steps: logs and file lists stay this short."""


def maintain_region(owner: RegionOwner, *, horizon: int) -> int:
    """Drop what no rewind needs of states and histories, compact tables, and let go of what the owner remembers.

    Args:
        horizon: number of ids that a rewind may go back.

    Returns:
        how many tables were rewritten.
    """
    oldest = max(INITIAL_ID, owner.history.committed_id - horizon)
    drop_changes(owner, oldest)
    rewritten = maintain_tables(owner.outside.store, owner.history.tables, epoch=owner.epoch, horizon_id=oldest)
    owner.ledger.refresh()
    return rewritten


def drop_changes(owner: RegionOwner, oldest: int) -> None:
    """Drop what stands behind the rewind horizon: changes of states, and rows in the histories of sinks.

    Changes go up to the newest image that is not above an id; rows go as `trimming` says. That they are gone is
    committed first: from then on no rewind goes back behind that, whatever horizon is asked for. A crash in between
    leaves what the next step drops.

    Args:
        oldest: id that a rewind may go back to.
    """
    store = owner.outside.store
    oldest = min([oldest, *owner.ledger.lags.values()])  # a visible table that lags has its rows from there on to come
    dropped = _superseded(owner, oldest)
    cuts = trimming(store, owner.history, min([oldest, *(_before(row) for row in owner.behind)]))
    if not dropped and not cuts:
        return
    edges = {name: cut.edge for name, cut in cuts.items()}
    owner.ledger.note_published(dropped=dropped or None, trimmed=edges or None)
    for name, through in {**dropped, **{name: cut.through for name, cut in cuts.items()}}.items():
        version = store.table(name).txn_version()
        if version is not None:
            store.table(name).upkeep.drop(version, through)


def _superseded(owner: RegionOwner, oldest: int) -> dict[str, int]:
    """Return, by table, the ids of the images up to which changes can go."""
    store, found = owner.outside.store, {}
    for table in owner.history.tables:
        image = owner.history.image_of(table.name, oldest) if table.role is TableRole.CHANGES else None
        if image is None or not store.table(table.name).files.up_to(image.at):
            continue
        if store.table(table.name).files.holds(image.files):
            found[table.name] = image.at
    return found


def _before(row: CheckpointRow) -> int:
    """Return the id before those of a group."""
    return (row.group_first if row.group_first is not None else row.sequence_id) - 1


def maintain_tables(store: RegionStore, tables: Sequence[RegionTable], *, epoch: int, horizon_id: int) -> int:
    """Compact what has many small files and write log checkpoints.

    Args:
        horizon_id: oldest id that a rewind may go back to; no file gets rows from both sides of it.

    Returns:
        how many tables were rewritten.
    """
    rewritten = 0
    for table in tables:
        if not table.is_managed:  # keeping it fast is its maker's business
            continue
        target = store.table(table.name)
        if table.role is not TableRole.UPSERT:
            version = target.txn_version()
            staging = store.staging(table, epoch, uuid.uuid4().hex)
            rewritten += version is not None and target.upkeep.compact(version, staging, horizon_id=horizon_id)
        target.upkeep.maintain()
    rewritten += store.checkpoint.compact()
    store.checkpoint.maintain()
    return rewritten
