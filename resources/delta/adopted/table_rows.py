"""The rows of an adopted table, read without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def selected(opened: Any, columns: str, *, where: str = "true") -> pa.Table:
    """Return the rows that `deltalake`'s engine selects; it supports deletion vectors and column mapping.

    Args:
        opened: the table as `deltalake` opened it.
        columns, where: SQL.
    """
    import pyarrow as pa
    from deltalake import QueryBuilder

    query = f"select {columns} from adopted where {where}"  # noqa: S608
    rows = pa.table(QueryBuilder().register("adopted", opened).execute(query).read_all())
    return pa.Table.from_arrays(rows.columns, names=rows.column_names)  # without the metadata of column mapping
