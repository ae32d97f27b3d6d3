"""What changed in a table between two consistent states, in the words of Delta's change data feed.

Delta's own feed tells the changes of commits: a rewind and what replays it are many. This one compares two states that
count, and reaches back as far as `dm.read(at=)` does, further than Delta's log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.operators.sources.table_feed import CHANGE_TYPE, COMMIT_VERSION
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.state.keyed_rows import has_keys, key_codes, last_per_key
from drainmark.resources.checkpoints.as_of import RegionReader, reader_of, rows_between

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_KEYS = 10_000
"""Keys of which the earlier rows are looked for in the files; of more keys, all earlier rows are read."""


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
    return changes_of(reader_of(settings, table), table, after=after, through=through)


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
    return _of_two_states(told((before, "delete", None), (now, "insert", None)))


def _of_two_states(found: pa.Table) -> pa.Table:
    """Return changes without the ids that made them, which lie between two states, in the order of their rows."""
    without = found.remove_column(found.num_columns - 1)  # by its place: the table may have a column of that name
    return without.sort_by([(SEQUENCE_ID, "ascending")])


def _by_key(reader: RegionReader, wanted: RegionTable, after: int, through: int) -> pa.Table:
    """Compare states of an upsert table; no row comes back to it, since no file of it is replaced."""
    changed = last_per_key(rows_between(reader, wanted, after, through), wanted.keys)
    found = _of_two_states(of_keys(reader, wanted, after, changed))
    shown = list(wanted.columns) or changed.column_names
    return found.select([*shown, CHANGE_TYPE])


def of_keys(reader: RegionReader, table: RegionTable, after: int, rows: pa.Table) -> pa.Table:
    """Return the changes that rows of the history of an upsert table made: each follows the row of its key before it.

    Args:
        after: the id of a state; the rows came behind it.

    Returns:
        The columns of the history, `_change_type`, and `_commit_version` (int64), the id that made the change. Sorted
        by it and the key; rows of an id leave before others come: a reader may have other keys.
    """
    import numpy as np
    import pyarrow as pa

    keys = list(table.keys)
    earlier = _earlier(reader, table, after, rows.select(keys))
    every = pa.concat_tables([earlier, rows], promote_options="permissive").combine_chunks()
    ids, codes = every[SEQUENCE_ID].to_numpy(), key_codes([every], keys)[0]
    order = np.lexsort((ids, codes))
    follows = np.append(False, codes[order][1:] == codes[order][:-1])[: len(order)]
    before = np.full(len(order), -1)
    before[order[follows]] = order[np.flatnonzero(follows) - 1]
    gone = np.zeros(len(order), dtype=bool)
    if GONE in every.column_names:
        gone = every[GONE].fill_null(False).to_numpy().astype(bool)
    had = (before >= 0) & ~gone[before]
    is_new = ids > after
    found = {
        "delete": is_new & gone & had,
        "update_preimage": is_new & ~gone & had,
        "update_postimage": is_new & ~gone & had,
        "insert": is_new & ~gone & ~had,
    }
    parts, places, comes = [], [], []
    for change, wanted in found.items():
        at, has_left = np.flatnonzero(wanted), change in ("delete", "update_preimage")
        parts.append(
            told((every.take(pa.array(before[at] if has_left else at)), change, pa.array(ids[at], pa.int64())))
        )
        places.append(at)
        comes.append(np.full(len(at), not has_left))
    of = np.concatenate(places)
    return pa.concat_tables(parts).take(pa.array(np.lexsort((codes[of], np.concatenate(comes), ids[of]))))


def _earlier(reader: RegionReader, table: RegionTable, after: int, changed: pa.Table) -> pa.Table:
    """Return the last row up to an id of each key that changes behind it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys, where = list(table.keys), None
    for key in keys:
        values = changed[key].unique() if not pa.types.is_nested(changed.schema.field(key).type) else None
        plain = values is not None and not values.null_count and not pa.types.is_floating(values.type)
        if values is not None and plain and len(values) <= _MOST_KEYS:
            among = pc.field(key).isin(values)
            where = among if where is None else where & among
    found = rows_between(reader, table, INITIAL_ID, after, where)
    return last_per_key(found.filter(has_keys(found, changed, keys)), keys)


def told(*parts: tuple[pa.Table, str, int | pa.Array | None]) -> pa.Table:
    """Return rows with the type of their change, and the id that made it: by default that of the row."""
    import pyarrow as pa

    found = []
    for rows, change, number in parts:
        numbers = rows[SEQUENCE_ID] if number is None else number
        if isinstance(numbers, int):
            numbers = pa.array([numbers] * rows.num_rows, pa.int64())
        changes = pa.array([change] * rows.num_rows, pa.string())
        found.append(rows.append_column(CHANGE_TYPE, changes).append_column(COMMIT_VERSION, numbers))
    return pa.concat_tables(found, promote_options="permissive")
