"""Keep a region's tables fast while they grow: compaction and log checkpoints, our own step between groups (H7, H30).

Nothing here changes what a reader sees, and nothing reaches across the rewind horizon.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from jobs.protocol.manifest import RegionTable, TableRole
from jobs.runtime.ports import RegionStore

EVERY_GROUPS = 20
"""Commits between two maintenance steps: logs and file lists stay this short."""


def maintain_tables(store: RegionStore, tables: Sequence[RegionTable], *, epoch: int, horizon_id: int) -> int:
    """Compact what has many small files and write log checkpoints.

    Args:
        horizon_id: oldest id that a rewind may go back to; no file gets rows from both sides of it.

    Returns:
        how many tables were rewritten.
    """
    rewritten = 0
    for table in tables:
        if table.adopted:  # keeping it fast is its maker's business
            continue
        target = store.table(table.name)
        if table.role is not TableRole.UPSERT:
            version = target.txn_version()
            staging = store.staging(table.name, epoch, uuid.uuid4().hex)
            rewritten += version is not None and target.compact(version, staging, horizon_id=horizon_id)
        target.maintain()
    rewritten += store.checkpoint.compact()
    store.checkpoint.maintain()
    return rewritten


def collect_orphans(store: RegionStore, tables: Sequence[RegionTable], epoch: int) -> int:
    """Delete what dead epochs staged and no row of the checkpoint table names; returns how many folders.

    Rows that a rewind withdrew still name their files: a reader may hold a version of a table that has them.
    """
    staged = [table.name for table in tables if table.role is not TableRole.UPSERT and not table.adopted]
    return store.collect_orphans(staged, epoch)
