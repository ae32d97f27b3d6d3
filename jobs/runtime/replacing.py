"""Files that are processed anew (`backfill --again`): their new state withdraws the append rows of the one before.

As if the file had been processed at its new id only. What is withdrawn is staged beside the group's own rows, so that
the checkpoint row names it: ids before the new one still show it, and a rewind to one brings it back (design.md §6).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from jobs.errors import ReplaceRefused
from jobs.protocol.history import RegionHistory
from jobs.protocol.ids import INITIAL_ID
from jobs.protocol.manifest import RegionTable, Replaced, StagedFile, TableRole
from jobs.protocol.triggers import AGAIN, Trigger
from jobs.runtime.ports import RegionStore, RowsTable
from jobs.runtime.reading import Group

if TYPE_CHECKING:
    import pyarrow as pa

_SEQUENCE_ID = "_sequence_id"


def one_of_each(pending: Sequence[Trigger]) -> Sequence[Trigger]:
    """Return the triggers before the first that replaces another of them: what it withdraws must be published."""
    uris: set[str] = set()
    for place, trigger in enumerate(pending):
        if AGAIN in trigger.identity and trigger.uri in uris:
            return pending[:place]
        uris.add(trigger.uri)
    return pending


def require_replaceable(region: str, history: RegionHistory, replaced: Collection[int]) -> None:
    """Check that a region has nothing but append tables of its own: only their rows can be withdrawn one by one.

    Args:
        replaced: ids that are to be withdrawn.

    Raises:
        ReplaceRefused: names the rewind that does the same.
    """
    kept = [table for table in history.tables if table.role is not TableRole.APPEND or table.adopted]
    if not kept or not replaced:
        return
    before = min(replaced)
    target = history.state_at_most(before - 1) or INITIAL_ID
    msg = f"region {region!r} keeps state in {kept[0].name!r}: rows of one file cannot be withdrawn from it"
    remedy = f"drainmark reset {region} --to {target} --yes, which processes that file and all after it anew"
    raise ReplaceRefused(msg, operator=kept[0].operator, remedy=remedy, ids=tuple(sorted(replaced)))


def stage_replaced(store: RegionStore, history: RegionHistory, group: Group) -> Replaced | None:
    """Stage the rows that a group withdraws; None where it replaces nothing. All that is committed is published.

    Raises:
        ReplaceRefused: see `require_replaceable`.
    """
    if all(AGAIN not in member.trigger.identity for member in group.members):
        return None
    again = {member.trigger.uri for member in group.members if AGAIN in member.trigger.identity}
    newest = history.newest_by_uri(again)
    ids = {
        newest[member.trigger.uri]: member.sequence_id
        for member in group.members
        if AGAIN in member.trigger.identity and member.trigger.uri in newest
    }
    if not ids:
        return None
    require_replaceable(store.region, history, ids)
    return Replaced(ids=ids, files={table.name: _staged(store, table, ids, group) for table in history.tables})


def _staged(store: RegionStore, table: RegionTable, ids: Collection[int], group: Group) -> tuple[StagedFile, ...]:
    managed = store.table(table.name)
    rows = rows_of(managed, managed.live_files(), ids)
    return store.staging(table.name, group.epoch, group.attempt).write(rows, "replaced") if rows is not None else ()


def rows_of(table: RowsTable, files: Sequence[StagedFile], ids: Collection[int]) -> pa.Table | None:
    """Return the rows of some ids in files of a table, one file at a time in memory; None without any."""
    import pyarrow as pa

    near = [file for file in files if file.may_hold(ids)]
    parts = [part for rows in table.read_each(near) if (part := _with_ids(rows, ids)).num_rows]
    return pa.concat_tables(parts, promote_options="default") if parts else None


def _with_ids(rows: pa.Table, ids: Collection[int]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    return rows.filter(pc.is_in(rows.column(_SEQUENCE_ID), pa.array(sorted(ids), pa.int64())))
