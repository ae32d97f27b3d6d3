"""Checks whether a value is of a declared type, as far as this is possible without Spark."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def times_last(columns: Sequence[tuple[str, DataType]], options: Mapping[str, str]) -> list[tuple[str, DataType]]:
    """Return the columns that can be checked, times last; no times if options set formats, which may be any."""
    times = [column for column in columns if family(column[1].simpleString()) in _TIMES]
    has_formats = any(option.startswith(("dateformat", "timestamp")) for option in options)
    return [column for column in columns if column not in times] + ([] if has_formats else times)


def family(kind: str) -> str:
    """Return the name of a type without its parameters."""
    return re.split(r"[<(]", kind, maxsplit=1)[0]


_TIMES = ("date", "timestamp", "timestamp_ntz")
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def _is_whole(value: str, kind: Any) -> bool:
    bound = 1 << (_BITS[kind.simpleString()] - 1)
    return re.fullmatch(r"[+-]?\d{1,20}", value) is not None and -bound <= int(value) < bound


def _is_double(value: str, kind: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _is_decimal(value: str, kind: Any) -> bool:
    found = re.fullmatch(r"[+-]?(\d*)\.?\d*(?:[eE][+-]?\d+)?", value)
    return found is not None and len(found.group(1).lstrip("0")) <= kind.precision - kind.scale


TEXTS: Mapping[str, Callable[[str, Any], bool]] = {
    **dict.fromkeys(_BITS, _is_whole),
    **dict.fromkeys(("float", "double"), _is_double),
    "decimal": _is_decimal,
    "boolean": lambda value, kind: value.lower() in ("true", "false"),
    **dict.fromkeys(_TIMES, lambda value, kind: _is_time(value)),
}
KINDS: Mapping[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(_BITS, lambda value, kind: type(value) is int and _is_whole(str(value), kind)),
    **dict.fromkeys(("float", "double"), lambda value, kind: type(value) in (int, float)),
    "decimal": lambda value, kind: type(value) in (int, float) and _is_decimal(str(value), kind),
    "boolean": lambda value, kind: isinstance(value, bool),
    "array": lambda value, kind: isinstance(value, list),
    **dict.fromkeys(("struct", "map"), lambda value, kind: isinstance(value, dict)),
    **dict.fromkeys(_TIMES, lambda value, kind: isinstance(value, int) or (isinstance(value, str) and _is_time(value))),
}


def _is_time(value: str) -> bool:
    try:
        dt.datetime.fromisoformat(value)
    except ValueError:
        return False
    return True
