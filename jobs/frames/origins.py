"""Rows that were read from a table of another region, in the order that they had there: by id, then by place.

A large group's files are written by many tasks, so the order of the rows in them depends on the group. These files keep
`_position` as a column that is not in the table's schema: readers of Delta leave it out. Files of small groups are
sorted, so there the place of a row in its file is enough.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.names import quoted
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ORIGIN = "_drainmark_origin"
"""Column of rows as read from a table: struct of the `id` there, and of the place (`block`, `row`) among its rows.

The place is (0, 0) in a sorted file, where rows lie in their order.
"""

_FIELDS = ("id", "block", "row")


def with_origin_type(schema: StructType) -> StructType:
    """Return the type of rows with the column `ORIGIN`."""
    from pyspark.sql.types import LongType, StructType

    origin = StructType()
    for name in _FIELDS:
        origin.add(name, LongType())
    return StructType([*schema.fields]).add(ORIGIN, origin)


def with_tags_of_table(columns: pa.Schema, table: pa.Schema) -> pa.Schema:
    """Return columns to read, and those of the tags that order the rows, if the table has ids of a region."""
    import pyarrow as pa

    if SEQUENCE_ID not in table.names or table.field(SEQUENCE_ID).type != pa.int64() or POSITION in table.names:
        return columns
    place = pa.struct([("block", pa.int64()), ("row", pa.int64())])
    return pa.schema([*columns, pa.field(SEQUENCE_ID, pa.int64()), pa.field(POSITION, place)])


def with_origins(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with `ORIGIN` instead of the tags of their table."""
    import pyarrow as pa

    zeros = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    ids, block, row = zeros, zeros, zeros
    if SEQUENCE_ID in batch.schema.names:
        ids = batch.column(SEQUENCE_ID).fill_null(-1)  # rows of others in an adopted table have no id
        block, row = (each.fill_null(0) for each in batch.column(POSITION).flatten())
        batch = batch.drop_columns([SEQUENCE_ID, POSITION])
    return batch.append_column(ORIGIN, pa.StructArray.from_arrays([ids, block, row], list(_FIELDS)))


class OriginsSeen:
    """The origins of rows as they come: are the rows in order, and between which bounds are they?

    Attributes:
        highest_id: the highest id among them, 0 before the first row.
        first, last: the lowest and the highest origin if the rows are in order; None before the first row.
    """

    def __init__(self) -> None:
        self.highest_id = 0
        self.first: list[int] | None = None
        self.last: list[int] | None = None
        self.are_in_order = True

    def add(self, origins: pa.StructArray) -> None:
        """Add the origins of the rows that come next."""
        import numpy as np

        if not len(origins):
            return
        fields = _arrays(origins)
        self.highest_id = max(self.highest_id, int(fields[0].max()))
        first, last = ([int(values[at]) for values in fields] for at in (0, -1))
        rises, same = np.zeros(len(origins) - 1, dtype=bool), np.ones(len(origins) - 1, dtype=bool)
        for values in fields:
            rises |= same & (values[1:] > values[:-1])
            same &= values[1:] == values[:-1]
        self.are_in_order &= bool((rises | same).all()) and (self.last is None or self.last <= first)
        self.first, self.last = self.first or first, last


def ranked_by_origin(frame: DataFrame, ids: Collection[int]) -> DataFrame:
    """Return rows without `ORIGIN`; those of some ids get positions in its order.

    Args:
        frame: `_sequence_id`, `_position`, columns, `ORIGIN`.
        ids: ids whose rows are not in the order of their positions; () for none.
    """
    if not ids:
        return frame.drop(ORIGIN)
    others = quoted([name for name in frame.columns if name not in (POSITION, ORIGIN)])
    order = ", ".join([*(f"{ORIGIN}.{name}" for name in _FIELDS[1:]), POSITION])
    number = f"row_number() over (partition by {SEQUENCE_ID}, {ORIGIN}.id order by {order}) - 1"
    place = f"struct({ORIGIN}.id as block, cast({number} as bigint) as row)"
    of_ids = ", ".join(map(str, sorted(ids)))
    return frame.selectExpr(
        others[0], f"if({SEQUENCE_ID} in ({of_ids}), {place}, {POSITION}) as {POSITION}", *others[1:]
    )


def _arrays(origins: pa.StructArray) -> list[Any]:
    return [each.to_numpy() for each in origins.flatten()]
