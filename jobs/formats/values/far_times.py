"""Dates and times outside of the years 1 to 9999, which Spark and Arrow can hold and Python cannot.

The mistyped date `20261-01-01` is read as such a date. Rows that Python writes, into databases and JSON files, must not
have such values when they are committed: afterwards they could not be published. A CSV file with such a value could
never be read again, as an erasure has to.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_BEFORE_YEAR_1 = dt.date(1, 1, 1).toordinal() - dt.date(1970, 1, 1).toordinal()
_YEAR_9999 = dt.date(9999, 12, 31).toordinal() - dt.date(1970, 1, 1).toordinal()
_DAY = 86_400_000_000
RULE = "the years 1 to 9999, which is all that Python's dates hold"


def has_times(schema: pa.Schema) -> bool:
    """Say whether any of the columns may hold such a value."""
    return any(_has_time(field.type) for field in schema)


def first_far(rows: pa.Table) -> dict[str, Any] | None:
    """Return the first row with such a value, its dates and times as text; None if there is none."""

    found = [place for column in rows.columns for place in _far(column)]
    if not found:
        return None
    (row,) = python_rows(rows.slice(min(found), 1))
    return row


def python_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows as Python values. If Python cannot hold one of them, all dates and times are texts, and in columns of
    texts the bytes that are no UTF-8, which a cast of bytes may leave, are replaced."""
    import pyarrow as pa

    found: list[dict[str, Any]]
    try:
        found = rows.to_pylist()
    except (ValueError, OverflowError):
        kinds = [pa.field(field.name, _in_text(field.type)) for field in rows.schema]
        columns = {name: _python(column) for name, column in _columns(rows.cast(pa.schema(kinds)))}
        found = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return found


def _columns(rows: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    yield from zip(rows.column_names, rows.columns, strict=True)


def _python(column: pa.ChunkedArray) -> list[Any]:
    import pyarrow as pa

    if not pa.types.is_string(column.type):
        return list(column.to_pylist())
    texts = column.cast(pa.binary()).to_pylist()
    return [None if text is None else text.decode(errors="replace") for text in texts]


def _in_text(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if _is_time(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _in_text(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_in_text(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_in_text(kind.key_type), _in_text(kind.item_type))
    return kind


def _far(column: pa.ChunkedArray) -> Iterator[int]:
    """Yield the place of the first such value, if there is one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _is_time(column.type):
        is_date = pa.types.is_date(column.type)
        numbers = column.cast(pa.int32()).cast(pa.int64()) if is_date else column.cast(pa.int64())
        least, most = (_BEFORE_YEAR_1, _YEAR_9999) if is_date else (_BEFORE_YEAR_1 * _DAY, (_YEAR_9999 + 1) * _DAY - 1)
        is_far = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
        place = pc.index(is_far, pa.scalar(True)).as_py()
        yield from [place] if place >= 0 else []
    elif _has_time(column.type):
        for place, value in enumerate(column):
            try:
                value.as_py()
            except (ValueError, OverflowError):
                yield place
                return


def _is_time(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def _has_time(kind: pa.DataType) -> bool:
    return _is_time(kind) or any(_has_time(kind.field(place).type) for place in range(kind.num_fields))
