"""Files that are processed again (`backfill --again`): the new state withdraws the append rows of the earlier one.

The result is the same as if the file had been processed at its new id only. The withdrawn rows are staged beside the
group's own rows, and the checkpoint row names these files: `show --at` an id before the new one still reads them, and a
rewind to such an id brings them back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.errors import ReplaceRefused
from drainmark.jobs.protocol.history import RegionHistory, target_before
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, Replaced, StagedFile, TableRole
from drainmark.jobs.protocol.records.triggers import AGAIN, Trigger
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.resources.delta.merge import of_ids

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.delta.staging import Staging
    from drainmark.resources.delta.table_files import TableFiles


def one_of_each(pending: Sequence[Trigger]) -> Sequence[Trigger]:
    """Return the triggers before the first that replaces an earlier one of them: replaced rows must be published."""
    uris: set[str] = set()
    for place, trigger in enumerate(pending):
        if AGAIN in trigger.identity and trigger.uri in uris:
            return pending[:place]
        uris.add(trigger.uri)
    return pending


def require_replaceable(
    region: str, history: RegionHistory, replaced: Collection[int], horizon: int | None = None, flags: str = ""
) -> None:
    """Check that a region has only append tables of its own: only from these can the rows of one id be withdrawn.

    In Delta tables and tables of databases, the rows of an id leave, and come back with a rewind, in one commit with
    the version. A file sink cannot do that: a file name stands for the same rows forever, which keeps late writers
    out. The deletion of an id's file needs no fence, because that file never comes back.

    Args:
        replaced: ids that are to be withdrawn.
        horizon: see `target_before`.
        flags: of the `reset` that the remedy names, each behind a space.

    Raises:
        ReplaceRefused: the message says why; the remedy names the rewind that has the same effect.
    """
    kept = [(table, why) for table in history.tables if (why := why_kept(table) or _why_not(table))]
    if not kept or not replaced:
        return
    table, why = kept[0]
    msg = f"region {region!r} {why}: the rows of one file cannot be withdrawn from it"
    target = target_before(history, min(replaced), horizon)
    remedy = f"drainmark reset {region} --to {target}{flags}, which processes that file and all later ones again"
    raise ReplaceRefused(msg, operator=table.operator, remedy=remedy, ids=tuple(sorted(replaced)))


def _why_not(table: RegionTable) -> str:
    if table.role in (TableRole.CHANGES, TableRole.UPSERT):
        return f"keeps state in {table.name!r}"
    return ""


def why_kept(table: RegionTable) -> str:
    """Return the reason why a table keeps what a single id brought, whatever is done; "" if there is none."""
    if table.external == "file":
        return f"writes files to {table.name!r}, of which none comes back that was withdrawn, as a rewind may ask for"
    if table.adopted:
        return f"writes to {table.name!r}, which others made"
    if table.role is TableRole.OVERWRITE:
        return f"shows the newest trigger's rows in {table.name!r}, whichever files came before"
    return ""


def stage_replaced(store: RegionTables, history: RegionHistory, group: Group) -> Replaced | None:
    """Stage the rows that a group withdraws; None if it replaces nothing. All committed groups must be published.

    Raises:
        ReplaceRefused: see `require_replaceable`.
    """
    ids = replaced_ids(store, group, history)
    if not ids:
        return None
    require_replaceable(store.region, history, ids)
    managed = [table for table in history.tables if table.is_managed]
    return Replaced(ids=ids, files=stage_rows(store, history, managed, ids, (group.epoch, group.attempt)))


def stage_rows(
    store: RegionTables,
    history: RegionHistory,
    tables: Sequence[RegionTable],
    ids: Collection[int],
    attempt: tuple[int, str],
) -> dict[str, tuple[StagedFile, ...]]:
    """Stage the rows of some ids of tables of rows, which all committed groups are published to; by name of a table.

    Args:
        attempt: the epoch and the name of the attempt that stages them.
    """
    return {table.name: _staged(store, history, table, ids, store.staging(table, *attempt)) for table in tables}


def replaced_ids(store: RegionTables, group: Group, history: RegionHistory | None = None) -> dict[int, int]:
    """Return old id -> new id for each id that a group withdraws; nothing is read if it replaces nothing.

    Args:
        history: of the region; by default it is read if the group replaces ids.
    """
    again = {member.trigger.uri: member.sequence_id for member in group.members if AGAIN in member.trigger.identity}
    if not again:
        return {}
    newest = (history or store.checkpoint.history()).newest_by_uri(set(again))
    return {newest[uri]: number for uri, number in again.items() if uri in newest}


def _staged(
    store: RegionTables, history: RegionHistory, table: RegionTable, ids: Collection[int], staging: Staging
) -> tuple[StagedFile, ...]:
    """Stage the rows of some ids of a table; ids whose rows may be trimmed from it are read from the sink outside."""
    files = store.table(table.name).files
    shown = next((each for each in history.tables if each.external and each.history == table.name), None)
    edge = history.trimmed.get(table.name, INITIAL_ID)
    trimmed = [number for number in ids if number <= edge] if shown is not None else []
    kept = sorted(set(ids).difference(trimmed))
    staged = files.copied(kept, staging) if kept else ()
    if shown is None or not trimmed:
        return staged
    older = store.external(shown).read_ids(trimmed)
    if staged:
        like = next(iter(files.pieces(staged))).schema
        older = older.select(like.names).cast(like)
    return (*staged, *staging.write(older, "replaced"))


def rows_of(table: TableFiles, files: Sequence[StagedFile], ids: Collection[int]) -> pa.Table | None:
    """Return the rows of some ids in files of a table; None if there are none."""
    import pyarrow as pa

    near = [file for file in files if file.may_hold(ids)]
    parts = [part for rows in table.pieces(near) if (part := rows.filter(of_ids(ids))).num_rows]
    return pa.concat_tables(parts, promote_options="default") if parts else None
