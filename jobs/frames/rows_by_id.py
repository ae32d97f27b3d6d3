"""Rows of a stream in memory, by their tags: sequence id, and position if they have one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID

if TYPE_CHECKING:
    import pyarrow as pa


def rows_by_id(rows: pa.Table) -> dict[int, pa.Table]:
    """Return the rows of each id, without their tags, in the order of their positions."""
    import numpy as np

    if rows.num_rows == 0:
        return {}
    ordered = in_order(rows)
    numbers, starts = np.unique(ordered[SEQUENCE_ID].to_numpy(), return_index=True)
    ends, rows = [*starts[1:], rows.num_rows], untagged(ordered)
    return {int(n): rows.slice(start, end - start) for n, start, end in zip(numbers, starts, ends, strict=True)}


def in_order(rows: pa.Table) -> pa.Table:
    """Return rows in the order of sequence id and position."""
    import numpy as np

    return rows.take(np.lexsort([*place_ranks(rows), rows[SEQUENCE_ID].to_numpy()]))


def place_ranks(rows: pa.Table) -> list[Any]:
    """Return the arrays by which `numpy.lexsort` orders rows of one id, most significant last; none without positions.

    Rows without a position, as in a union with an aggregate, come first: Spark orders nulls like that.
    """
    if POSITION not in rows.column_names or not rows.num_rows:
        return []
    position = rows[POSITION].combine_chunks()
    fields = [position.field(name).fill_null(0).to_numpy() for name in ("row", "block")]
    return [*fields, position.is_valid().to_numpy(zero_copy_only=False)]


def untagged(rows: pa.Table) -> pa.Table:
    """Return rows without sequence id and position."""
    return rows.drop_columns([name for name in (SEQUENCE_ID, POSITION) if name in rows.column_names])


def row_counts(tables: Iterable[pa.Table]) -> Counter[int]:
    """Return the number of rows by id."""
    import pyarrow.compute as pc

    found: Counter[int] = Counter()
    for rows in tables:
        for each in pc.value_counts(rows.column(SEQUENCE_ID).combine_chunks()).to_pylist():
            found[each["values"]] += each["counts"]
    return found
