"""Bring tables to what the checkpoint table says: publish a group, take a rewind to every table (design.md §3.4).

Both are roll-forward: idempotent commits under the txnVersion of the row they carry out, by whoever does it. They need
the row and the staged files, not the application, and Spark for adopted tables only.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from jobs.protocol.history import manifest_of
from jobs.protocol.ids import txn_version
from jobs.protocol.manifest import Image, Manifest, RegionTable, Replaced, TableRole
from jobs.protocol.rows import CheckpointRow
from jobs.runtime.ports import RegionStore
from jobs.state.keyed_rows import last_per_key


def publish_group(
    store: RegionStore, tables: Sequence[RegionTable], row: CheckpointRow, epoch: int
) -> dict[str, int]:
    """Publish a committed group: one commit a table that it touches, rows before what is merged from them.

    Args:
        epoch: of the owner who does it; rewritten files are staged under it.

    Returns:
        Delta version by table.
    """
    manifest = manifest_of(row)
    if manifest is None:
        return {}
    version = txn_version(row.epoch, row.sequence_id)
    by_name = {table.name: table for table in tables}
    replaced = manifest.replaced.files if manifest.replaced else {}
    touched = [name for name, files in manifest.files.items() if files or replaced.get(name)]
    merged = [name for name in manifest.upserts if manifest.files.get(by_name[name].history or "")]
    versions = {name: _publish(store, by_name[name], manifest, version, epoch) for name in touched}
    versions.update((name, _merge(store, by_name[name], manifest, version)) for name in merged)
    return versions


def _publish(store: RegionStore, table: RegionTable, manifest: Manifest, version: int, epoch: int) -> int:
    """Add a group's rows to a table, and take back in the same commit what they replace."""
    files, replaced = manifest.files[table.name], manifest.replaced
    if replaced is None or not replaced.files.get(table.name):
        return store.open(table).publish(version, files).delta_version
    staging = store.staging(table.name, epoch, uuid.uuid4().hex)
    return store.table(table.name).replace(version, files, replaced.ids, staging).delta_version


def _merge(store: RegionStore, table: RegionTable, manifest: Manifest, version: int) -> int:
    """Bring a visible table up to a group: the last history row a key."""
    import pyarrow as pa

    history = table.history or ""
    files = manifest.files[history]
    columns = list(table.columns)
    changes = pa.concat_tables(store.table(history).read_each(files, columns), promote_options="permissive")
    if not set(columns) <= set(changes.column_names):  # staged before the table got a further column
        changes = store.table(history).read_staged([file.path for file in files])
    rows = last_per_key(changes, table.keys).select(columns)
    return store.open(table).merge(version, rows, table.keys).delta_version


def rewind_tables(store: RegionStore, row: CheckpointRow, epoch: int) -> dict[str, int]:
    """Take every table of a region back to the id that a rewind row names, by one commit each.

    Visible tables come first, while their histories still hold what leaves (H5).

    Args:
        epoch: of the owner who does it; rewritten files are staged under it.

    Returns:
        Delta version by table.
    """
    to, version = int(row.detail["to"]), txn_version(row.epoch, row.sequence_id)
    tables = [RegionTable.from_json(value) for value in row.detail["tables"]]
    restored = [Replaced.from_json(value) for value in row.detail.get("restored") or ()]
    images = [Image.from_json(value) for value in row.detail.get("images") or ()]
    versions = {}
    for table in sorted(tables, key=lambda table: table.role is not TableRole.UPSERT):
        target = store.open(table)
        if table.role is TableRole.UPSERT:
            history = store.table(table.history or "")
            paths = [file.path for image in images if image.table == table.history for file in image.files]
            done = target.rewind_upsert(version, to, history, table.keys, table.columns, images=paths)
        else:
            back = [(part.ids, part.files[table.name]) for part in restored if part.files.get(table.name)]
            staging = store.staging(table.name, epoch, uuid.uuid4().hex)
            if back:
                done = store.table(table.name).rewind_rows(version, to, staging, restored=back)
            else:
                done = target.rewind_rows(version, to, staging)
        versions[table.name] = done.delta_version
    return versions
