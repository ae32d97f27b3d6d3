"""Rows of keyed tables in memory: the rows of one key, and the last of them.

Nulls are equal to nulls, as in Spark's grouping and unlike a join's `=`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.row_order import place_ranks
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID
from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from drainmark.jobs.protocol.records.manifest import RegionTable


def last_per_key(rows: pa.Table, keys: Sequence[str], order: Sequence[str] = (SEQUENCE_ID,)) -> pa.Table:
    """Return the last row of each key by the `order` columns (numbers without nulls), in the order of `rows`."""
    import numpy as np

    if rows.num_rows == 0:
        return rows
    codes = key_codes([rows], keys)[0]
    ranks = [rows.column(name).to_numpy() for name in reversed(order)]
    by_key = np.lexsort((*ranks, codes))
    is_last = np.append(codes[by_key][1:] != codes[by_key][:-1], True)
    return rows.take(np.sort(by_key[is_last]))


def kept_columns(table: RegionTable, columns: Sequence[str]) -> list[str]:
    """Return columns to read from a visible table's history, and the tag `GONE` if some of its rows may be gone."""
    return [*columns, *([GONE] if table.deletes else [])]


def present(last: pa.Table, gone: str = GONE) -> pa.Table:
    """Return last rows of keys without those that say, in the column `gone`, that their key is gone."""
    import pyarrow.compute as pc

    return last.filter(pc.invert(last[gone].fill_null(False))) if gone in last.column_names else last


def last_rows_per_key(rows: pa.Table, keys: Sequence[str], count: int) -> pa.Table:
    """Return the last rows of each key, at most `count`, by sequence id and position, in the order of `rows`."""
    import numpy as np

    if rows.num_rows <= count:
        return rows
    codes = key_codes([rows], keys)[0]
    by_key = np.lexsort((*place_ranks(rows), rows.column(SEQUENCE_ID).to_numpy(), codes))
    ordered = codes[by_key]
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)
    last_of_key = ends[np.searchsorted(ends, np.arange(len(ordered)))]
    return rows.take(np.sort(by_key[last_of_key - np.arange(len(ordered)) < count]))


def rows_of_keys(rows: pa.Table, keys: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the rows that equal some row of `keys` in the columns `by`; nulls and NaNs are equal to themselves."""
    import pyarrow as pa

    return rows.filter(pa.array(has_keys(rows, keys, by)))


def has_keys(rows: pa.Table, keys: pa.Table, by: Sequence[str]) -> Any:
    """Return a flag for each row: it equals some row of `keys` in the columns `by`, as for `rows_of_keys`."""
    import numpy as np
    import pyarrow as pa

    wanted = pa.table({name: keys[name].cast(rows.schema.field(name).type) for name in by})
    plain = [name for name in by if not pa.types.is_nested(rows.schema.field(name).type)]
    flags = np.ones(rows.num_rows, dtype=bool)
    for name in plain:  # leaves few rows, to compare by all columns below
        flags &= is_among(rows[name], wanted[name]).to_numpy()
    places = np.flatnonzero(flags)
    if len(places) and [*by] != plain[:1]:
        of_rows, of_wanted = key_codes([rows.select(by).take(pa.array(places)), wanted], by)
        flags[places] = np.isin(of_rows, of_wanted)
    return flags


def key_codes(tables: Sequence[pa.Table], keys: Sequence[str]) -> list[Any]:
    """Return a number for each row; rows with equal keys (nulls, NaNs and zeros, too) have one number in all tables."""
    import numpy as np
    import pyarrow as pa

    lengths = [table.num_rows for table in tables]
    combined = np.zeros(sum(lengths), dtype=np.int64)
    for place, key in enumerate(keys):
        chunks = [chunk for table in tables for chunk in table.column(key).chunks]
        codes = value_codes(pa.chunked_array(chunks, tables[0].schema.field(key).type))
        if place > 1:  # number the combinations anew, which sorts: so the product stays below rows squared
            combined = np.unique(combined, return_inverse=True)[1].astype(np.int64)
        combined = combined * (int(codes.max(initial=0)) + 1) + codes
    return np.split(combined, np.cumsum(lengths)[:-1])


def value_codes(column: pa.ChunkedArray) -> Any:
    """Return a number for each value, below the number of rows; equal values have one number, and null is a value.

    Structs are equal by field, arrays by place, and maps by key.
    """
    import pyarrow as pa

    if not pa.types.is_nested(column.type):
        return encoded_keys(column).indices.to_numpy().astype("int64")
    values = column.combine_chunks()
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    codes = values.is_valid().to_numpy(zero_copy_only=False).astype("int64")
    if pa.types.is_struct(values.type):
        for part in values.flatten():
            codes = _combined(codes, value_codes(pa.chunked_array([part])))
        return codes
    return _combined(codes, _list_codes(values))


def _list_codes(values: pa.Array) -> Any:
    """Return a number for each list or map; a null has that of an empty one."""
    import numpy as np
    import pyarrow as pa

    is_map = pa.types.is_map(values.type)
    if is_map:
        values = values.cast(pa.list_(pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])))
    lengths = values.value_lengths().fill_null(0).to_numpy()
    elements = values.flatten()
    codes = value_codes(pa.chunked_array([elements]))
    if is_map:
        keys = value_codes(pa.chunked_array([elements.field("key")]))
        codes = codes[np.lexsort((keys, np.repeat(np.arange(len(lengths)), lengths)))]
    ends = np.append(0, np.cumsum(lengths)) * codes.itemsize
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(codes)]
    return value_codes(pa.chunked_array([pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)]))


def _combined(some: Any, others: Any) -> Any:
    """Return a number for each pair of numbers, below the number of pairs."""
    import numpy as np

    pairs = some * (int(others.max(initial=0)) + 1) + others
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)


def encoded_keys(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a column of keys as numbers of its different values, null among them; equal keys have equal numbers."""
    import pyarrow as pa

    encoded = _as_compared(column).combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded


def is_among(column: pa.ChunkedArray, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each key of a column whether it is among values of the same type; also nulls, NaNs and zeros."""
    import pyarrow.compute as pc

    return pc.is_in(_as_compared(column), value_set=_as_compared(values).combine_chunks())


def _as_compared(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of keys with one zero for 0.0 and -0.0, and one NaN: a sum makes other NaNs than a text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(math.nan, column.type), pc.add(column, pa.scalar(0.0, column.type)))


@dataclass(frozen=True, slots=True)
class RowsPerKey:
    """The choice of the rows of a keyed table that are its state: the last ones of each key, by id and position.

    Attributes:
        keys: key columns.
        depth: number of rows that are kept of a key.
        gone: the column that says of a row that its key is gone.
    """

    keys: tuple[str, ...]
    depth: int = 1
    gone: str = GONE

    def newest(self, rows: pa.Table) -> pa.Table:
        """Return the last rows of each key, in the order of `rows`; a key that is gone has a row that says so."""
        return last_per_key(rows, self.keys) if self.depth == 1 else last_rows_per_key(rows, self.keys, self.depth)

    def last(self, rows: pa.Table) -> pa.Table:
        """Return the last rows of each key, in the order of `rows`; a key that is gone has none."""
        return present(self.newest(rows), self.gone)

    def current(self, rows: DataFrame) -> DataFrame:
        """Return the same rows as `last`, for a Spark frame."""
        from pyspark.sql import Window

        keys = [quoted_name(key) for key in self.keys]
        if self.depth == 1:
            payload = F.struct(*(quoted_name(name) for name in rows.columns))
            last = rows.groupBy(*keys).agg(F.max_by(payload, SEQUENCE_ID).alias("_last"))
            last = last.where("_last is not null").select("_last.*")
            return last.where(f"not coalesce({self.gone}, false)") if self.gone in rows.columns else last
        newest = Window.partitionBy(*keys).orderBy(F.desc(SEQUENCE_ID), F.desc(POSITION))
        return rows.withColumn("_age", F.row_number().over(newest)).where(F.col("_age") <= self.depth).drop("_age")

    def matching(self, rows: DataFrame, changed: DataFrame) -> DataFrame:
        """Return the rows with keys that occur in a frame, compared by the key columns it has; nulls equal nulls."""
        keys = [key for key in self.keys if key in changed.columns]
        if not keys:
            return rows
        wanted = changed.select(*(F.col(quoted_name(key)).alias(f"_changed_{i}") for i, key in enumerate(keys)))
        same = [rows[quoted_name(key)].eqNullSafe(wanted[f"_changed_{i}"]) for i, key in enumerate(keys)]
        return rows.join(wanted.distinct(), on=same, how="left_semi")
