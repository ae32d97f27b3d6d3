"""Readers that turn the texts of a column into values, if these are sure to equal Spark's values.

Each reader raises `NotSure` for texts that Spark might read differently, or refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_NAIVE_LENGTHS = (19, 23, 26)
_ZONED_LENGTHS = (20, 24, 27)
_DATE_LENGTH = 10


class NotSure(Exception):
    """Spark might read this differently."""


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """The conversion of a column of texts into its type; `kind` is its Arrow type."""

    kind: Any
    convert: Callable[[Any, Any], Any]


@lru_cache(maxsize=256)
def reader_of(kind: Any) -> ColumnReader | None:
    """Return the reader of a Spark type, None for a type whose texts are left to Spark."""
    from pyspark.sql import types
    from pyspark.sql.pandas.types import to_arrow_type

    readers: Mapping[type, Callable[[Any, Any], Any]] = {
        types.ByteType: _integers,
        types.ShortType: _integers,
        types.IntegerType: _integers,
        types.LongType: _integers,
        types.FloatType: _floats,
        types.DoubleType: _floats,
        types.StringType: lambda texts, kind: texts,
        types.DecimalType: _decimals,
        types.BooleanType: _booleans,
        types.DateType: _dates,
        types.TimestampType: _timestamps,
        types.TimestampNTZType: _timestamps_without_zone,
    }
    found = readers.get(type(kind))
    if found is None or (isinstance(kind, types.StringType) and kind != types.StringType()):
        return None
    return ColumnReader(to_arrow_type(kind, timezone="UTC"), found)


def _integers(texts: Any, kind: Any) -> Any:
    import pyarrow.compute as pc

    if pc.any(pc.match_substring(texts, "x")).as_py() or pc.any(pc.match_substring(texts, "X")).as_py():
        raise NotSure  # Arrow would take 0x1F for 31
    return pc.cast(texts, kind)


def _floats(texts: Any, kind: Any) -> Any:
    import pyarrow.compute as pc

    numbers = pc.cast(texts, kind)
    if pc.all(pc.is_finite(numbers)).as_py() is False:
        raise NotSure  # Spark has other names for NaN and infinity
    return numbers


def _decimals(texts: Any, kind: Any) -> Any:
    """Read decimals; the cast fails, and does not round, if a number has more digits than the type."""
    import pyarrow.compute as pc

    return pc.cast(texts, kind)


def _booleans(texts: Any, kind: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    lower = pc.utf8_lower(texts)
    if not pc.all(pc.is_in(lower, value_set=pa.array(["true", "false", None]))).as_py():
        raise NotSure
    return pc.cast(lower, kind)


def _dates(texts: Any, kind: Any) -> Any:
    import pyarrow.compute as pc

    _require_lengths(texts, (_DATE_LENGTH,))
    return pc.cast(texts, kind)


def _timestamps(texts: Any, kind: Any) -> Any:
    """Read times that all end in Z, or all have no zone: the session's zone is UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    zoned = pc.ends_with(texts, "Z")
    if not pc.any(zoned).as_py():
        return pc.cast(_timestamps_without_zone(texts, pa.timestamp("us")), kind)
    if not pc.all(zoned).as_py():
        raise NotSure
    _require_lengths(texts, _ZONED_LENGTHS)
    return pc.cast(texts, kind)


def _timestamps_without_zone(texts: Any, kind: Any) -> Any:
    import pyarrow.compute as pc

    _require_lengths(texts, _NAIVE_LENGTHS)
    return pc.cast(texts, kind)


def _require_lengths(texts: Any, allowed: Sequence[int]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.binary_length(texts)
    if not pc.all(pc.is_in(lengths, value_set=pa.array([*allowed, None], lengths.type))).as_py():
        raise NotSure
