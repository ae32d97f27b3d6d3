"""The parts of a merge into a table with one row for each key, for commits by `deltalake` and by delta-spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import AccountingError, SchemaMismatch
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.state.keyed_parts import in_part
from drainmark.jobs.state.keyed_rows import key_codes, last_per_key
from drainmark.resources.delta import commits
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

KEEP_COLUMN = "_drainmark_keep"


def rows_to_restore(
    history: Folder,
    images: Sequence[str],
    to: int,
    keys: Sequence[str],
    columns: Sequence[str],
    *,
    since: int | None = None,
    part: int = 0,
    parts: int = 1,
) -> pa.Table:
    """Return a row for each key that changed after `since`: its last row up to `to`, marked keep; else its newest row.

    All rows after `since` are in memory, one row group of earlier rows at a time, and the rows found in these.

    Args:
        since: an id (exclusive); `to` by default.
        part, parts: the number of this part of the keys, and of all parts; see `keyed_parts.in_part`.
    """
    import numpy as np
    import pyarrow as pa

    opened = commits.open_table(history)
    schema = pa.schema([arrow_schema(opened).field(name) for name in columns])
    live = commits.live_files(opened, history)
    after = to if since is None else since
    above = [file.path for file in live if (file.last_id or 0) > after] + list(images)
    below = [file.path for file in live if (file.first_id or 0) <= to] + list(images)
    later = [typed(in_part(rows, keys, part, parts), schema) for rows in _pieces(history, above, _above(after))]
    changed = last_per_key(pa.concat_tables([schema.empty_table(), *later]), keys)
    found = schema.empty_table()
    if changed.num_rows:
        for rows in (typed(each, schema) for each in _pieces(history, below, up_to(to))):
            of_rows, of_changed = key_codes([rows, changed], keys)
            mine = rows.filter(pa.array(np.isin(of_rows, of_changed)))
            found = last_per_key(pa.concat_tables([found, mine]), keys) if mine.num_rows else found
    of_changed, of_found = key_codes([changed, found], keys)
    gone = changed.filter(pa.array(~np.isin(of_changed, of_found)))
    return pa.concat_tables(
        [
            rows.append_column(KEEP_COLUMN, pa.repeat(keep, rows.num_rows))
            for rows, keep in ((found, True), (gone, False))
        ]
    )


def _pieces(history: Folder, paths: Iterable[str], where: pa.compute.Expression) -> Iterator[pa.Table]:
    """Yield the rows that meet a condition: of a small file all at once, of a large one a row group at a time."""
    for path in paths:
        for rows in history.read_pieces(path, history.size(path)):
            yield rows.filter(where)


def require_unique(rows: pa.Table, keys: Sequence[str], table: object) -> pa.Table:
    """Return the rows, after a check that no two have the same key: Delta would insert both.

    Raises:
        AccountingError: two rows have the same key.
    """
    import numpy as np

    doubles = rows.num_rows - len(np.unique(key_codes([rows], keys)[0]))
    if doubles:
        msg = f"{doubles} of {rows.num_rows} rows to merge into {table} repeat a key ({', '.join(keys)})"
        raise AccountingError(msg, rows=doubles)
    return rows


def arrow_schema(opened: Any) -> pa.Schema:
    """Return the columns of an open `DeltaTable`."""
    import pyarrow as pa

    return pa.schema(opened.schema())


def of_ids(ids: Collection[int]) -> pa.compute.Expression:
    """Return the condition that a row has one of some ids."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.field(SEQUENCE_ID).isin(pa.array(sorted(ids), pa.int64()))


def up_to(to: int) -> pa.compute.Expression:
    """Return the condition that a row belongs to the consistent state `to`."""
    import pyarrow.compute as pc

    return pc.field(SEQUENCE_ID) <= to


def _above(to: int) -> pa.compute.Expression:
    import pyarrow.compute as pc

    return pc.field(SEQUENCE_ID) > to


def as_table(rows: pa.Table, schema: pa.Schema, table: Folder) -> pa.Table:
    """Return rows in the columns and types of a table.

    Raises:
        SchemaMismatch: a column is missing, unknown, or of another type.
    """
    import pyarrow as pa

    if set(rows.column_names) != set(schema.names) or len(rows.column_names) != len(schema.names):
        differing = sorted(set(rows.column_names) ^ set(schema.names))
        msg = f"rows for {table} have the columns {rows.column_names}, expected {schema.names}"
        raise SchemaMismatch(msg, columns=tuple(differing))
    try:
        return rows.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        msg = f"rows for {table} do not fit its columns: {error}"
        raise SchemaMismatch(msg, columns=tuple(schema.names)) from error


def typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows in the columns of a table; columns that the table got since then are null."""
    import pyarrow as pa

    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
