"""Files that are processed anew (`backfill --again`): their new state withdraws the append rows of the one before.

As if the file had been processed at its new id only. What is withdrawn is staged beside the group's own rows, so that
the checkpoint row names it: ids before the new one still show it, and a rewind to one brings it back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.errors import ReplaceRefused
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, Replaced, StagedFile, TableRole
from drainmark.jobs.protocol.records.triggers import AGAIN, Trigger
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.outside import RegionStore, TableFiles

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

    Delta tables, and tables of databases: there the rows of an id leave, and come back with a rewind, in one commit
    with the version. Not so files. Of a file sink a name stands for the same rows for ever, which is what keeps
    late-comers out: the deletion of an id's file needs no fence, since that file never comes back.

    Args:
        replaced: ids that are to be withdrawn.

    Raises:
        ReplaceRefused: says why, and names the rewind that does the same.
    """
    kept = [(table, why) for table in history.tables if (why := _why_not(table))]
    if not kept or not replaced:
        return
    before = min(replaced)
    target = history.state_at_most(before - 1) or INITIAL_ID
    table, why = kept[0]
    msg = f"region {region!r} {why}: the rows of one file cannot be withdrawn from it"
    remedy = f"drainmark reset {region} --to {target} --yes, which processes that file and all later ones again"
    raise ReplaceRefused(msg, operator=table.operator, remedy=remedy, ids=tuple(sorted(replaced)))


def _why_not(table: RegionTable) -> str:
    """Say what a region has in a table that bears no single id's withdrawal, "" where it bears it."""
    if table.external == "file":
        return f"writes files to {table.name!r}, of which none comes back that was withdrawn, as a rewind may ask for"
    if table.adopted:
        return f"writes to {table.name!r}, which others made"
    if table.role is TableRole.OVERWRITE:
        return f"shows the newest trigger's rows in {table.name!r}, whichever files came before"
    if table.role in (TableRole.CHANGES, TableRole.UPSERT):
        return f"keeps state in {table.name!r}"
    return ""


def stage_replaced(store: RegionStore, history: RegionHistory, group: Group) -> Replaced | None:
    """Stage the rows that a group withdraws; None where it replaces nothing. All that is committed is published.

    Raises:
        ReplaceRefused: see `require_replaceable`.
    """
    ids = replaced_ids(store, group, history)
    if not ids:
        return None
    require_replaceable(store.region, history, ids)
    shown = {table.history: table for table in history.tables if table.external}
    managed = (table for table in history.tables if table.is_managed)
    return Replaced(
        ids=ids,
        files={table.name: _staged(store, table, shown.get(table.name), ids, group) for table in managed},
    )


def replaced_ids(store: RegionStore, group: Group, history: RegionHistory | None = None) -> dict[int, int]:
    """Return, by the id that a group withdraws, the id in its place; nothing is read where it replaces nothing.

    Args:
        history: of the region; read if need be by default.
    """
    again = {member.trigger.uri: member.sequence_id for member in group.members if AGAIN in member.trigger.identity}
    if not again:
        return {}
    newest = (history or store.checkpoint.history()).newest_by_uri(set(again))
    return {newest[uri]: number for uri, number in again.items() if uri in newest}


def _staged(
    store: RegionStore, table: RegionTable, shown: RegionTable | None, ids: Collection[int], group: Group
) -> tuple[StagedFile, ...]:
    """Stage the rows of some ids of a table; of a history that was trimmed of them, those outside in their place."""
    staging, files = store.staging(table, group.epoch, group.attempt), store.table(table.name).files
    staged = files.copied(ids, staging)
    if shown is not None:
        older = _shown_alone(store, shown, files, staged, ids)
        staged += staging.write(older, "replaced") if older is not None else ()
    return staged


def _shown_alone(
    store: RegionStore, shown: RegionTable, files: TableFiles, staged: Sequence[StagedFile], ids: Collection[int]
) -> pa.Table | None:
    """Return the rows that the sink outside shows of ids of which its history has none."""
    import pyarrow.compute as pc

    found = {n for part in files.pieces(staged, [_SEQUENCE_ID]) for n in pc.unique(part[_SEQUENCE_ID]).to_pylist()}
    lacking = sorted(set(ids) - found)
    older = store.external(shown).read_ids(lacking) if lacking else None
    if older is None or not staged:
        return older
    like = next(iter(files.pieces(staged))).schema
    return older.select(like.names).cast(like)


def rows_of(table: TableFiles, files: Sequence[StagedFile], ids: Collection[int]) -> pa.Table | None:
    """Return the rows of some ids in files of a table; None without any."""
    import pyarrow as pa

    near = [file for file in files if file.may_hold(ids)]
    parts = [part for rows in table.pieces(near) if (part := _with_ids(rows, ids)).num_rows]
    return pa.concat_tables(parts, promote_options="default") if parts else None


def _with_ids(rows: pa.Table, ids: Collection[int]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    return rows.filter(pc.is_in(rows.column(_SEQUENCE_ID), pa.array(sorted(ids), pa.int64())))
