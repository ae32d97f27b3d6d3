"""Rows that Spark's parser could not fit into the declared columns: which line each was, and what is wrong with it."""

from __future__ import annotations

import datetime as dt
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.bad_records import CAPS, BadRecord
from drainmark.jobs.formats.csv import fields_of
from drainmark.jobs.formats.expected import Expected
from drainmark.jobs.formats.inspection import can_be_read_here, numbered_records
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

Misfit = tuple[int, str, int, int]
"""Number among the file's records from 1, text (cut), CRC-32 and length in bytes of the whole text."""


def misfits_of(rows: DataFrame, corrupt: str, ids: Sequence[int]) -> dict[int, list[Misfit]]:
    """Return the rows that do not fit, by id, in the order of their files; one Spark job, for groups that have some."""
    listed = ",".join(map(str, ids))
    found = (
        rows.where(f"{SEQUENCE_ID} in ({listed})")
        .selectExpr(
            SEQUENCE_ID,
            f"row_number() over (partition by {SEQUENCE_ID} order by {POSITION}) as place",
            f"{corrupt} as text",
        )
        .where("text is not null")
        .selectExpr(
            SEQUENCE_ID,
            "place",
            f"substring(text, 1, {CAPS.raw_characters + 1}) as raw",
            "crc32(text) as crc",
            "octet_length(text) as size",
        )
        .toArrow()
    )
    misfits: dict[int, list[Misfit]] = {number: [] for number in ids}
    for row in sorted(found.to_pylist(), key=lambda row: (row[SEQUENCE_ID], row["place"])):
        misfits[row[SEQUENCE_ID]].append((row["place"], row["raw"], row["crc"], row["size"]))
    return misfits


def bad_records(misfits: Sequence[Misfit], path: Path | None, expected: Expected) -> list[BadRecord]:
    """Return the misfits of a file with their lines: a line of the same text is bad as well, so the order decides.

    Args:
        path: of the file as it was scanned; None where it cannot be read here, and then the record's number stands.
    """
    lines = None
    if path is not None and expected.has_records_in_lines and can_be_read_here(path):
        lines = numbered_records(path, expected)
    records = []
    for place, raw, crc, size in misfits:
        position = (_line_of(lines, crc, size) if lines is not None else None) or place
        reason = reason_for(raw, expected) if size == len(raw.encode()) else _MISFIT
        records.append(BadRecord.of(position, raw, reason, size=size))
    return records


_MISFIT = "does not fit the declared columns"


def _line_of(lines: Iterator[tuple[int, bytes]], crc: int, size: int) -> int | None:
    return next((number for number, text in lines if len(text) == size and zlib.crc32(text) == crc), None)


# --- what is wrong ------------------------------------------------------------------------------------------------


def reason_for(text: str, expected: Expected) -> str:
    """Return what is wrong with a record, as far as it can be told without Spark."""
    found = _csv_fault(text, expected) if expected.format == "csv" else _json_fault(text, expected)
    return found or _MISFIT


def _csv_fault(text: str, expected: Expected) -> str | None:
    columns, fields = expected.columns or (), fields_of(text, expected.dialect)
    if fields is None:
        return "a quote is not closed"
    if len(fields) != len(columns):
        return f"has {len(fields)} columns, declared are {len(columns)}"
    values = dict(zip((name for name, _ in columns), fields, strict=True))
    for name, kind in _times_last(expected):
        is_one = _TEXTS.get(_family(kind.simpleString()))
        if values[name] and is_one is not None and not is_one(values[name], kind):
            return f"column {name!r}: {values[name][:64]!r} is no {kind.simpleString()}"
    return None


def _json_fault(text: str, expected: Expected) -> str | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"is no JSON: {error}"
    if not isinstance(value, dict):
        return "is JSON, and no object"
    for name, kind in _times_last(expected):
        allowed = _KINDS.get(_family(kind.simpleString()))
        found = value.get(name)
        if found is not None and allowed is not None and not allowed(found, kind):
            return f"field {name!r}: {json.dumps(found)[:64]} is no {kind.simpleString()}"
    return None


def _times_last(expected: Expected) -> list[tuple[str, DataType]]:
    """Return the columns that can be judged: of times only the plain forms, since options may allow any other."""
    columns = list(expected.columns or ())
    times = [column for column in columns if _family(column[1].simpleString()) in _TIMES]
    has_formats = any(option.startswith(("dateformat", "timestamp")) for option in expected.options)
    return [column for column in columns if column not in times] + ([] if has_formats else times)


def _family(kind: str) -> str:
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


_TEXTS: Mapping[str, Callable[[str, Any], bool]] = {
    **dict.fromkeys(_BITS, _is_whole),
    **dict.fromkeys(("float", "double"), _is_double),
    "decimal": _is_decimal,
    "boolean": lambda value, kind: value.lower() in ("true", "false"),
    **dict.fromkeys(_TIMES, lambda value, kind: _is_time(value)),
}
_KINDS: Mapping[str, Callable[[Any, Any], bool]] = {
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
