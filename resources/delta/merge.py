"""The parts of a merge into a table with one row for each key, for commits by `deltalake` and by delta-spark."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import AccountingError, SchemaMismatch
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.state.keyed_rows import key_codes
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

KEEP_COLUMN = "_drainmark_keep"


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
