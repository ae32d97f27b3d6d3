"""What changed in a table between two consistent states, in the words of Delta's change data feed.

Delta's own feed tells the changes of commits: a rewind and what replays it are many. This one compares two states that
count, and reaches back as far as `dm.read(at=)` does, further than Delta's log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.state.keyed_rows import has_keys, present
from drainmark.resources.checkpoints.as_of import RegionReader, owner_of

if TYPE_CHECKING:
    import pyarrow as pa

CHANGE_TYPE = "_change_type"


def changes(table: str, *, after: int, through: int | None = None, home: str | None = None) -> pa.Table:
    """Return the changes of a table behind one consistent state, up to another; see `changes_of`.

    Args:
        table: name of a sink's table.
        home: DRAINMARK_HOME, found as the command line finds it by default.

    Raises:
        UnknownName: no region writes such a table.
    """
    from drainmark.resources.settings import load_settings

    settings = load_settings(home=home)
    return changes_of(RegionReader(settings, owner_of(settings, table)), table, after=after, through=through)


def changes_of(reader: RegionReader, table: str, *, after: int, through: int | None = None) -> pa.Table:
    """Return the changes of a table between two consistent states.

    Args:
        after: a sequence id; the changes are those that came after it. 0 is the empty table.
        through: a sequence id, the last one whose changes count; by default the newest that the table has.

    Returns:
        The columns of the table and `_change_type` (text): `insert`, `delete`, and for the rows of a key before and
        after a change `update_preimage` and `update_postimage`. Sorted by `_sequence_id`, that of the state that
        wrote the row: up to `after` for a deleted row or a preimage, behind it for other rows. `dm.read(at=after)`
        without the rows `delete` and `update_preimage`, and with the others, is `dm.read(at=through)`.

    Raises:
        UsageError: `after` lies behind `through`, or a column of the table is called `_change_type`.
        RewindRefused: one of them is not the id of a state in force, or its rows are out of reach.
    """
    wanted = reader.named(table)
    if CHANGE_TYPE in wanted.column_names:
        msg = f"{table!r} has a column {CHANGE_TYPE} of its own, where changes tell what they are"
        raise UsageError(msg, remedy="read both states, with dm.read(at=…), and compare them")
    reader.require_state(wanted, after)  # a reader that comes back after a rewind learns that its id was withdrawn
    last = reader.newest_id(wanted) if through is None else through
    if after > last:
        raise UsageError(
            f"state {last} of {table!r} comes before state {after}", remedy="give the earlier id as `after`"
        )
    compared = _by_key if wanted.role is TableRole.UPSERT else _by_id
    return compared(reader, wanted, after, last)


def _by_id(reader: RegionReader, wanted: RegionTable, after: int, through: int) -> pa.Table:
    """Compare states of a table without keys, whose rows of one id come and leave together."""
    import pyarrow.compute as pc

    field = pc.field(SEQUENCE_ID)
    if wanted.role is TableRole.OVERWRITE:  # the rows of one id are the table
        before, now = reader.as_of(wanted.name, after), reader.as_of(wanted.name, through)
        if before.num_rows and now.num_rows and before[SEQUENCE_ID][0] == now[SEQUENCE_ID][0]:
            before, now = before.slice(0, 0), now.slice(0, 0)
    else:
        before = reader.as_of(wanted.name, after, field.isin(reader.replaced_between(after, through)))
        now = reader.as_of(wanted.name, through, field > after)
    return _joined((before, "delete"), (now, "insert"))


def _by_key(reader: RegionReader, wanted: RegionTable, after: int, through: int) -> pa.Table:
    """Compare states of an upsert table; no row comes back to it, since no file of it is replaced."""
    changed = reader.changed_keys(wanted, after, through)
    now = present(changed).select(list(wanted.columns) or changed.column_names)
    before = reader.as_of(wanted.name, after)
    before, was = before.filter(has_keys(before, changed, wanted.keys)), has_keys(now, before, wanted.keys)
    stays = has_keys(before, now, wanted.keys)
    return _joined(
        (before.filter(~stays), "delete"),
        (before.filter(stays), "update_preimage"),
        (now.filter(was), "update_postimage"),
        (now.filter(~was), "insert"),
    )


def _joined(*parts: tuple[pa.Table, str]) -> pa.Table:
    import pyarrow as pa

    told = [rows.append_column(CHANGE_TYPE, pa.array([change] * rows.num_rows, pa.string())) for rows, change in parts]
    return pa.concat_tables(told, promote_options="permissive").sort_by([(SEQUENCE_ID, "ascending")])
