"""The bounds of keys in rows: what has no key within them has none of the keys.

Bounds are kept of integers, texts and days, which are ordered in the same way everywhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from drainmark.jobs.state.run_files import index_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Bounds = Mapping[str, Sequence[Any]]
"""The least and the greatest value of key columns, as numbers or texts. Columns with nulls, or of a type that is not
ordered in the same way everywhere, have none."""

_MOST_KEYS = 8
"""The most keys a row group for which groups are chosen: with so many, one of three thousand has none by chance."""


def bounds_of(rows: pa.Table, keys: Sequence[str]) -> Bounds:
    """Return the bounds of the keys in some rows, at least one; texts that nobody can read have none."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    found = {}
    for key in keys:
        column = rows.column(key)
        column = column.cast(pa.int32()) if kinds.is_date32(column.type) else column
        if not column.null_count and (kinds.is_integer(column.type) or kinds.is_string(column.type)):
            with suppress(UnicodeDecodeError):
                found[key] = list(pc.min_max(column).as_py().values())
    return found


def joined(bounds: Sequence[Bounds]) -> Bounds:
    """Return the bounds of the keys in rows of which each of some parts has bounds."""
    shared = set.intersection(*(set(each) for each in bounds)) if bounds else set()
    return {key: [min(each[key][0] for each in bounds), max(each[key][1] for each in bounds)] for key in shared}


def groups_with(keys: pa.Table, metadata: pq.FileMetaData) -> list[int]:
    """Return the row groups of a file that may have rows of some keys, by the bounds in its footer.

    All are returned if the keys are so many that there would be some in nearly each group.
    """
    groups = list(range(metadata.num_row_groups))
    if keys.num_rows > _MOST_KEYS * len(groups):
        return groups
    for name in keys.column_names:
        leaf = index_of(name, metadata) if "." not in name else None  # the field of a struct may have that path
        values = _stored(keys.column(name))
        if leaf is not None and values is not None:
            groups = [group for group in groups if _may_have(metadata.row_group(group).column(leaf).statistics, values)]
    return groups


def _stored(column: pa.ChunkedArray) -> list[Any] | None:
    """Return the values of a key column as a footer stores bounds, in their order; None if it has no such bounds."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if column.null_count:
        return None
    if kinds.is_string(column.type):
        return sorted(set(column.cast(pa.binary()).to_pylist()))
    if kinds.is_date32(column.type):
        return sorted(set(column.cast(pa.int32()).to_pylist()))
    return sorted(set(column.to_pylist())) if kinds.is_integer(column.type) else None


def _may_have(bounds: pq.Statistics | None, values: Sequence[Any]) -> bool:
    if bounds is None or not bounds.has_min_max:
        return True
    return bisect_left(values, bounds.min_raw) < bisect_right(values, bounds.max_raw)
