"""Column statistics for the log of a Delta table, collected by the process that writes the file.

Engines skip files by these values, and answer queries from them: so they are exact, or left out. A long text is cut,
as Delta cuts it; no engine answers queries from a cut text. As little as possible is left out: the dataset of
`deltalake` takes a bound that is missing for null, and finds no row of the file by this column.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID

if TYPE_CHECKING:
    import pyarrow as pa

MOST_LEAVES = 32
"""The number of leading columns with statistics, counting each field of a struct: Delta's default."""

_LETTERS = 32
_LAST_LETTER = "\U0010ffff"
_TIME = "-%m-%dT%H:%M:%S.%f"
_FIRST_DAY, _LAST_DAY = ((day - dt.date(1970, 1, 1)).days for day in (dt.date.min, dt.date.max))
_DAY_MICROSECONDS = 86_400_000_000


@dataclass(slots=True)
class _Leaf:
    """A column, or a field of a struct, that is itself no struct, with the statistics of the rows so far.

    Attributes:
        names: of the column, then of the fields on the path to this leaf.
        places: of these fields in their structs.
        bounds: (min, max); None before the first value.
        is_bounded: all engines agree on the order of its type, and no value so far (NaN) is outside that order.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    kind: pa.DataType
    is_bounded: bool
    nulls: int = 0
    bounds: tuple[Any, Any] | None = None

    def add(self, rows: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        column = rows.column(self.names[0])
        for place in self.places:
            column = pc.struct_field(column, place)
        self.nulls += column.null_count
        if not self.is_bounded or column.null_count == len(column):
            return
        if pa.types.is_floating(self.kind):
            self._add_floats(column)
            return
        if not pa.types.is_integer(self.kind):
            column = column.cast(_plain(self.kind))
        found = pc.min_max(column)
        self._widen(found["min"].as_py(), found["max"].as_py())

    def _add_floats(self, column: pa.ChunkedArray) -> None:
        """Add floats; after a NaN the leaf has no bounds: some engines order it above all numbers, others do not.

        Some engines tell -0.0 from 0.0 when they skip files, but not when they compare values. So a minimum of zero is
        written as -0.0, and a maximum of zero as 0.0, as in Parquet's footers.
        """
        import numpy as np

        values = column.drop_null().to_numpy()
        if np.isnan(values).any():
            self.is_bounded = False
            return
        self._widen(float(values.min()) or -0.0, float(values.max()) or 0.0)

    def _widen(self, low: Any, high: Any) -> None:
        if self.bounds is not None:
            low, high = min(low, self.bounds[0]), max(high, self.bounds[1])
        self.bounds = (low, high)

    def told(self) -> tuple[Any, Any]:
        """Return min and max in the form of the log; None for a bound that is left out."""
        if not self.is_bounded or self.bounds is None:
            return None, None
        low, high = self.bounds
        return _told(low, self.kind, is_least=True), _told(high, self.kind, is_least=False)


class ColumnStatistics:
    """Statistics of the leading columns of one file, and of `_sequence_id`.

    Args:
        schema: of the file.
    """

    def __init__(self, schema: pa.Schema) -> None:
        # The place of a row is in no table's schema, see `frames.origins`.
        leaves = [leaf for field in schema if field.name != POSITION for leaf in _leaves(field)]
        self._leaves = [*leaves[:MOST_LEAVES], *(leaf for leaf in leaves[MOST_LEAVES:] if leaf.names == (SEQUENCE_ID,))]
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows that are written to the file."""
        self._rows += rows.num_rows
        for leaf in self._leaves:
            leaf.add(rows)

    def to_json(self) -> str:
        """Return the text for the field `stats` of an `add` action."""
        low: dict[str, Any] = {}
        high: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        for leaf in self._leaves:
            least, most = leaf.told()
            for values, value in ((low, least), (high, most), (nulls, leaf.nulls)):
                if value is not None:
                    _put(values, leaf.names, value)
        return _json({"numRecords": self._rows, "minValues": low, "maxValues": high, "nullCount": nulls})


def floating_leaves(schema: pa.Schema) -> bool:
    """Say whether a schema has a type with NaN, at any depth."""
    return any(_has_floats(field.type) for field in schema)


def _has_floats(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_floating(kind) or any(_has_floats(kind.field(number).type) for number in range(kind.num_fields))


def _leaves(field: pa.Field, names: tuple[str, ...] = (), places: tuple[int, ...] = ()) -> Iterator[_Leaf]:
    import pyarrow as pa

    names = (*names, field.name)
    if pa.types.is_struct(field.type):
        for place in range(field.type.num_fields):
            yield from _leaves(field.type.field(place), names, (*places, place))
    else:
        yield _Leaf(names, places, field.type, is_bounded=_is_bounded(field.type))


def _is_bounded(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    return bool(
        kinds.is_boolean(kind)
        or kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_decimal(kind)
        or kinds.is_date32(kind)
        or kinds.is_string(kind)
        or kinds.is_large_string(kind)
        or (kinds.is_timestamp(kind) and kind.unit == "us")
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values are compared: a day or time may be in a year that Python does not support."""
    import pyarrow as pa

    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _told(value: Any, kind: pa.DataType, *, is_least: bool) -> Any:
    import pyarrow as pa

    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= _LETTERS else _cut(value, is_least=is_least)
    if pa.types.is_date32(kind):
        return _moment(value * _DAY_MICROSECONDS, "-%m-%d")
    return _moment(value, _TIME + ("Z" if kind.tz else "")) if pa.types.is_timestamp(kind) else value


def _moment(microseconds: int, form: str) -> str | None:
    """Return a moment as text; None if its year is not between 1 and 9999."""
    if not _FIRST_DAY <= microseconds // _DAY_MICROSECONDS <= _LAST_DAY:
        return None
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)
    return f"{moment.year:04}" + moment.strftime(form)


def _cut(text: str, *, is_least: bool) -> str | None:
    """Return a cut text that is not above a long one, or not below it; None if there is none."""
    kept = text[:_LETTERS]
    if is_least:
        return kept
    return kept + _LAST_LETTER if text[_LETTERS] != _LAST_LETTER else None


def _put(values: dict[str, Any], names: tuple[str, ...], value: Any) -> None:
    for name in names[:-1]:
        values = values.setdefault(name, {})
    values[names[-1]] = value


def _json(value: Any) -> str:
    """Return a value as JSON, without escapes; decimals as numbers with all their digits, as Spark writes them."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(name)}: {_json(each)}" for name, each in value.items()) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
