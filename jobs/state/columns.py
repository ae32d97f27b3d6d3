"""Values of the author's code in typed columns: a value that its column would change is refused.

Without these checks, `pyarrow` cuts a float to an integer, a timestamp to a date and nanoseconds to microseconds, and
reads a number as microseconds since 1970; a time without a zone comes back as a time in UTC.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_INTEGERS = range(-(2**63), 2**63)


def plain(value: Any) -> Any:
    """Return a value for `pyarrow`: scalars of numpy and pandas as Python values, a mapping as a list of pairs, a
    dataclass as a dict."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return [(plain(key), plain(item)) for key, item in value.items()]
    if hasattr(value, "dtype"):
        return _of_numpy(value)
    return None if type(value).__name__ == "NaTType" else value


def _of_numpy(value: Any) -> Any:
    if getattr(value, "ndim", 0):
        return [plain(item) for item in value.tolist()]
    if value.dtype.kind in "mM":  # for nanoseconds `item` gives a number
        cut = value.astype(f"{value.dtype.kind}8[us]")
        return cut.item() if cut == value or cut.item() is None else value
    return value.item()


def holder_of(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function from a plain value to the value that its column gives back.

    Mappings come back as pairs, structs as dicts. The function raises ValueError if the column changes the value.
    """
    import pyarrow as pa

    exact: dict[pa.DataType, type] = {
        pa.int64(): int,
        pa.float64(): float,
        pa.bool_(): bool,
        pa.binary(): bytes,
        pa.string(): str,
        pa.date32(): dt.date,
    }
    wanted = exact.get(kind)

    def held(value: Any) -> Any:
        is_exact = type(value) is wanted and (wanted is not int or value in _INTEGERS)
        if value is None or (is_exact and (wanted is not str or value.isascii())):
            return value  # an array would cost some microseconds
        return column_of([value], kind)[0].as_py()

    return held


def column_of(values: Sequence[Any], kind: pa.DataType, *, naive_is_utc: bool = False) -> pa.Array:
    """Return plain values as a column.

    Args:
        naive_is_utc: a time without a zone counts as a time in UTC, if the column has a zone.

    Raises:
        ValueError: a value does not fit the column, or the column would change it; the message names the value.
    """
    import pyarrow as pa

    try:
        made = pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        if len(values) > 1:
            for value in values:
                column_of([value], kind, naive_is_utc=naive_is_utc)
        shown = reprlib.repr(values[0]) if len(values) == 1 else "a value"
        raise ValueError(f"{shown} does not fit {kind}: {' '.join(str(error).split())}") from error
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    for given, found in zip(values, made.to_pylist(), strict=True):
        if differs(given, found, kind, naive_is_utc=naive_is_utc):
            raise ValueError(f"{reprlib.repr(given)} would become {reprlib.repr(found)} as {kind}")
    return made


def differs(given: Any, found: Any, kind: pa.DataType, *, naive_is_utc: bool = False) -> bool:
    """Say whether a plain value differs from the value that its column gives back. None and NaN are equal to
    themselves; rounding to a narrow float is no difference."""
    import pyarrow as pa

    if given is None or found is None:
        return given is not found
    if pa.types.is_nested(kind):
        parts = _parts(given, found, kind)
        return parts is None or any(differs(*part, naive_is_utc=naive_is_utc) for part in parts)
    if pa.types.is_floating(kind) and (kind != pa.float64() or math.isnan(found)):
        return math.isnan(given) is not math.isnan(found)
    if naive_is_utc and isinstance(given, dt.datetime) and given.tzinfo is None:
        given = given.replace(tzinfo=getattr(found, "tzinfo", None))
    return bool(given != found)


def _parts(given: Any, found: Any, kind: pa.DataType) -> list[tuple[Any, Any, pa.DataType]] | None:
    """Return (given, found, type) for each part of a nested value; None if the two values differ in shape."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        kinds = {kind.field(index).name: kind.field(index).type for index in range(kind.num_fields)}
        fields = dict(given)  # also from pairs: `plain` gives these for a mapping
        return None if set(fields) - set(kinds) else [(fields.get(name), found[name], of) for name, of in kinds.items()]
    if not isinstance(given, list | tuple | Mapping):
        return None
    items = list(given.items()) if isinstance(given, Mapping) else list(given)
    if len(items) != len(found):
        return None
    if not pa.types.is_map(kind):
        return [(item, other, kind.value_type) for item, other in zip(items, found, strict=True)]
    keys = [(item[0], other[0], kind.key_type) for item, other in zip(items, found, strict=True)]
    return keys + [(item[1], other[1], kind.item_type) for item, other in zip(items, found, strict=True)]
