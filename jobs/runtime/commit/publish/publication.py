"""The publishing of a group: its tables are brought up to the checkpoint table.

Publishing is rolled forward: idempotent commits under the txnVersion of the row, which any owner can do. They need the
row and the staged files, not the application. They need Spark for adopted tables only. A sink outside Delta keeps the
version beside its rows, and is brought up like a visible table: from its history.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.protocol.history import manifest_of
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import Manifest, RegionTable, TableRole
from drainmark.jobs.runtime.commit.publish.visible_tables import VisibleTables, merge_history
from drainmark.jobs.runtime.commit.rewind_contents import takes_no_groups

if TYPE_CHECKING:
    from drainmark.resources.checkpoints.region_store import RegionTables


def publish_group(
    store: RegionTables,
    tables: Sequence[RegionTable],
    row: CheckpointRow,
    epoch: int,
    visible: VisibleTables,
    *,
    former: Sequence[RegionTable] = (),
) -> dict[str, int]:
    """Publish a committed group, one commit for each table that it changes: tables of rows first, then derived tables.

    Args:
        epoch: of the owner that publishes; rewritten files are staged under it.
        visible: decides which tables are brought up later.
        former: tables that the code has no more; those out of reach are skipped.

    Returns:
        Delta version by table.
    """
    manifest = manifest_of(row)
    if manifest is None:
        return {}
    version = txn_version(row.epoch, row.sequence_id)
    by_name = {table.name: table for table in (*former, *tables)}
    named = {*manifest.files, *manifest.upserts}
    gone = {table.name for table in former if table.name in named and takes_no_groups(store, table)}
    replaced = manifest.replaced.files if manifest.replaced else {}
    touched = [name for name, files in manifest.files.items() if name not in gone and (files or replaced.get(name))]
    derived = [by_name[name] for name in manifest.upserts if name not in gone]
    versions = {name: _publish(store, by_name[name], manifest, version, epoch) for name in touched}
    for table in derived:
        name = table.history or ""
        if not (manifest.files.get(name) or replaced.get(name) or table.options.get("every_id")):
            continue
        if visible.may_wait(table, row, manifest):
            visible.wait(table, row)
            continue
        show = partial(_show, store, table, manifest, row, epoch)
        if visible.lags(table):
            show = partial(visible.bring_up, table, version, row.sequence_id)
        versions[table.name] = visible.timed(table, show)
    return versions


def _publish(store: RegionTables, table: RegionTable, manifest: Manifest, version: int, epoch: int) -> int:
    """Add a group's rows to a table, and withdraw the rows that they replace in the same commit."""
    files, replaced = manifest.files[table.name], manifest.replaced
    if replaced is None or not replaced.files.get(table.name):
        return store.delta(table).publish(version, files).delta_version
    staging = store.staging(table, epoch, world.token())
    return store.table(table.name).replace(version, files, replaced.ids, staging).delta_version


def _show(store: RegionTables, table: RegionTable, manifest: Manifest, row: CheckpointRow, epoch: int) -> int:
    """Bring a visible table or a sink outside Delta up to a group, from the group's files in its history."""
    version = txn_version(row.epoch, row.sequence_id)
    history = store.table(table.history or "").files
    files = manifest.files.get(table.history or "", ())
    if table.role is TableRole.UPSERT:
        return merge_history(store, table, version, files, epoch)
    if table.role is TableRole.OVERWRITE:
        staging = store.staging(table, epoch, world.token())
        newest = history.newest(files, deletes=table.deletes)
        source = store.table(table.history or "")
        return store.overwritten(table.name).overwrite(version, source, newest, staging).delta_version
    return _copy(store, table, manifest, row, epoch)


def _copy(store: RegionTables, table: RegionTable, manifest: Manifest, row: CheckpointRow, epoch: int) -> int:
    """Copy a group's rows to a sink outside Delta, from the group's files in its history."""
    version, history = txn_version(row.epoch, row.sequence_id), store.table(table.history or "").files
    files = manifest.files.get(table.history or "", ())
    ordered = sorted(files, key=lambda file: (file.first_id or 0, file.path))
    runs = manifest.spans.get(table.name, ((row.first_id, row.sequence_id),))
    ids = [number for start, end in runs for number in range(start, end + 1)]
    if copy_files := store.large_files(table, epoch, ordered):
        return copy_files(version, ids, ordered).delta_version
    replaced = manifest.replaced.ids if manifest.replaced else {}
    found = history.pieces(ordered, list(table.columns))
    return store.external(table, epoch).copy(version, ids, found, replaced=replaced).delta_version
