"""Rows in the order of their stream: (sequence id, position, ordinal); as frames, and in memory.

An ordinal tells rows of one position apart: rows that a function made of one row by exploding it, and rows of several
streams of a union.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.exact_texts import exact_json
from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.tags import ORDINAL, POSITION, SEQUENCE_ID, TAGS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

_FLOATS = ("float", "double")
POSITION_TYPE = "struct<block: bigint, row: bigint>"


def payload_of(frame: DataFrame, *others: str) -> list[str]:
    """Return the columns of a stream without its tags, and without some others."""
    return [name for name in frame.columns if name not in (*TAGS, *others)]


def position_at(row: str) -> str:
    """Return the SQL of the position of a row with a new number, an integer, among the rows of its id."""
    return f"struct(0L as block, cast({row} as bigint) as row) as {POSITION}"


def type_of_made(columns: str) -> StructType:
    """Return the type of rows that an operator makes in this process: its columns, given as DDL, and the tags."""
    from pyspark.sql.types import StructType

    tags = StructType.fromDDL(f"{POSITION} {POSITION_TYPE}, {SEQUENCE_ID} bigint")
    return StructType([*StructType.fromDDL(columns).fields, *tags.fields])


def positioned(frame: DataFrame) -> DataFrame:
    """Return a stream with a position, null if it has none (behind an aggregate)."""
    return frame if POSITION in frame.columns else frame.selectExpr("*", f"cast(null as {POSITION_TYPE}) as {POSITION}")


def places_in(columns: Sequence[str]) -> list[str]:
    """Return the tags among columns that order the rows of an id."""
    return [tag for tag in (POSITION, ORDINAL) if tag in columns]


def order_within_id(frame: DataFrame) -> list[str]:
    """Return the SQL expressions that order a stream's rows within an id: position, ordinal, then all values."""
    return [*places_in(frame.columns), *order_of_values(frame.schema, payload_of(frame))]


def order_of_values(schema: StructType, names: Sequence[str], *, inside: str = "") -> list[str]:
    """Return the SQL expressions that order rows by the values of columns; only rows with the same values are equal.

    Columns without order, such as maps, are ordered by their text. The order of Spark takes 0.0 and -0.0, and texts
    that a collation does not tell apart, for equal: behind all values their text decides.

    Args:
        inside: the column of structs that has these columns as fields.
    """
    found, finer = list[str](), list[str]()
    for name in names:
        kind = schema[name].dataType
        column = f"{inside}.{quoted_name(name)}" if inside else quoted_name(name)
        text = exact_json(f"struct({column})", nulls=True)
        if _is_any(kind, _has_no_order):
            found.append(text)
            continue
        found.append(column)
        if kind.typeName() in _FLOATS:
            finer.append(f"if({column} = 0, cast({column} as string), null)")
        elif _is_any(kind, _has_equals):
            finer.append(text)
    return [*found, *finer]


def _has_no_order(kind: DataType) -> bool:
    return kind.typeName() in ("map", "variant") or kind.simpleString() == "interval"


def _has_equals(kind: DataType) -> bool:
    return kind.typeName() in _FLOATS or "collate" in kind.simpleString()


def _is_any(kind: DataType, is_such: Callable[[DataType], bool]) -> bool:
    """Say whether a type, or a type inside of it, is such a one."""
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, StructType):
        return any(_is_any(field.dataType, is_such) for field in kind.fields)
    return _is_any(kind.elementType, is_such) if isinstance(kind, ArrayType) else is_such(kind)


def tags_in(columns: Sequence[str]) -> list[str]:
    """Return the tags among columns."""
    return [tag for tag in TAGS if tag in columns]


def in_given_order(frame: DataFrame) -> DataFrame:
    """Return the output of a row-wise function with ordinals, which keep the order of rows made of one row.

    Spark numbers the rows of a partition as they come, and all rows made of one row come in one partition.
    """
    ordinal = "array(monotonically_increasing_id())"
    if ORDINAL in frame.columns:
        ordinal = f"concat(coalesce({ORDINAL}, array()), {ordinal})"
    return frame.selectExpr(*quoted([name for name in frame.columns if name != ORDINAL]), f"{ordinal} as {ORDINAL}")


def in_port_order(frame: DataFrame, port: int) -> DataFrame:
    """Return a stream of a union with ordinals: among rows in one place, those of the first port come first."""
    own = f"concat(array({port}L), coalesce({ORDINAL}, array()))" if ORDINAL in frame.columns else f"array({port}L)"
    return frame.selectExpr(*quoted([name for name in frame.columns if name != ORDINAL]), f"{own} as {ORDINAL}")


def in_key_order(frame: DataFrame, keys: Sequence[str], *, is_one_partition: bool) -> DataFrame:
    """Return a stream with all rows of a key on one partition, in the order of the stream."""
    together = frame if is_one_partition else frame.repartition(*quoted(keys))
    return together.sortWithinPartitions(SEQUENCE_ID, *places_in(frame.columns))


def same(names: Sequence[str], left: str, right: str) -> str:
    """Return the SQL condition that columns are equal, null being equal to null."""
    return " and ".join(f"{left}.{name} <=> {right}.{name}" for name in quoted(names)) or "true"


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
