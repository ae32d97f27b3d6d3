"""Columns of files without declared columns, inferred from a sample of their records.

A CSV column has numbers, booleans, dates or times if each value in it is clearly written as one; a number with a
leading zero, such as a post code, is a text. JSON has types itself, and its texts stay texts. A column is a text if its
values have no common type, or if the sample has no value of it.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats import csv_dialect
from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.formats.column_fit import Bare, Columns
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.layout import are_clear
from drainmark.jobs.formats.lines.line_format import first_lines

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

SAMPLE_RECORDS = 1000
"""Upper bound (inclusive) of the records read from each file, all within its first megabytes."""

_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|-?\.\d+", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(_DATE.pattern + r"[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[-+]\d\d:\d\d)?", re.ASCII)
_LINE_END = re.compile("\r\n|\r|\n")
_LONG = 2**63


def columns_of(files: Iterable[tuple[BinaryIO, str]], expected: Expected) -> Columns | None:
    """Return the columns of files; None if no file has records that tell them, or names are not clear (`are_clear`).

    Args:
        files: opened files, each with the ending of its name; no further file is taken once one tells all.
        expected: their declaration, without columns.
    """
    find = {"csv": _of_csv, "json": _of_json}.get(expected.format, _of_columns)
    found = find(files, expected)
    return found if found is not None and are_clear([name for name, _ in found]) else None


def _of_columns(files: Iterable[tuple[BinaryIO, str]], expected: Expected) -> Columns | None:
    """Return the columns of the first file that names its columns and types, all of which Spark reads."""
    for file, suffix in files:
        found = expected.reads.columns_in(file, suffix, expected) or ()
        columns = [(name, kind) for name, kind in found if kind is not None and not isinstance(kind, Bare)]
        if columns and len(columns) == len(found):
            return columns
    return None


def _of_csv(files: Iterable[tuple[BinaryIO, str]], expected: Expected) -> Columns | None:
    """Return the columns of the first header, with the types of the values below it and below equal headers."""
    header: list[str] | None = None
    kinds: dict[int, DataType | None] = {}
    for file, suffix in files:
        first, *records = [*itertools.islice(_fields(file, suffix, expected), SAMPLE_RECORDS + 1)] or [[]]
        names = [name.strip() for name in first]
        if not names or not records or (header is not None and names != header):
            continue
        header = names
        for record in records:
            for place, text in enumerate(record[: len(names)]):
                kinds[place] = _merged(kinds.get(place), _kind_of_text(text, expected.options))
    return [(name, _settled(kinds.get(place))) for place, name in enumerate(header)] if header is not None else None


def _fields(file: BinaryIO, suffix: str, expected: Expected) -> Iterator[list[str]]:
    text, dialect = _sample(file, suffix).decode(expected.encoding or "UTF-8", errors="replace"), expected.dialect
    comment = dialect.comment.decode()
    records = csv_dialect.records_of(text, dialect) if expected.has_multiline else _LINE_END.split(text)
    for record in records:
        if record.strip() and not (comment and record.startswith(comment)):
            yield csv_dialect.fields_of(record, dialect) or []


def _of_json(files: Iterable[tuple[BinaryIO, str]], expected: Expected) -> Columns | None:
    found: DataType | None = None
    for file, suffix in files:
        lines = (line for line in _sample(file, suffix).splitlines() if line.strip())
        for line in itertools.islice(lines, SAMPLE_RECORDS):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and record:
                found = _merged(found, _kind_of_value(record))
    return [(field.name, field.dataType) for field in _settled(found).fields] if hasattr(found, "fields") else None


def _sample(file: BinaryIO, suffix: str) -> bytes:
    """Return whole lines from the beginning of a file."""
    lines = first_lines(file, suffix)
    return lines if len(lines) < CAPS.piece_bytes else lines[: lines.rfind(b"\n") + 1]


# --- types ----------------------------------------------------------------------------------------------------------


def _kind_of_text(text: str, options: Mapping[str, str]) -> DataType | None:
    from pyspark.sql.types import BooleanType, DateType, DoubleType, LongType, StringType, TimestampType

    if text in ("", options.get("nullvalue", "")):
        return None
    has_formats = {"dateformat", "timestampformat"} & options.keys()
    tests: Sequence[tuple[bool, Callable[[], DataType]]] = (
        (_WHOLE.fullmatch(text) is not None, LongType),
        (_NUMBER.fullmatch(text) is not None and not text.lstrip("-").isdigit(), DoubleType),
        (text.lower() in ("true", "false"), BooleanType),
        (not has_formats and _DATE.fullmatch(text) is not None and _is_time(text), DateType),
        (not has_formats and _TIME.fullmatch(text) is not None and _is_time(text), TimestampType),
    )
    return next((make() for fits, make in tests if fits), StringType())


def _is_time(text: str) -> bool:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _kind_of_value(value: Any) -> DataType | None:
    from pyspark.sql.types import ArrayType, BooleanType, DoubleType, LongType, NullType, StringType

    if value is None:
        return None
    if isinstance(value, dict) and value:
        return _struct({name: _kind_of_value(each) for name, each in value.items()})
    if isinstance(value, list):
        return ArrayType(functools.reduce(_merged, map(_kind_of_value, value), None) or NullType())
    if isinstance(value, bool):
        return BooleanType()
    if isinstance(value, int) and -_LONG <= value < _LONG:
        return LongType()
    return DoubleType() if isinstance(value, float) else StringType()


def _struct(kinds: Mapping[str, DataType | None]) -> DataType:
    """Return the type of an object; a text if Spark would not tell its fields apart."""
    from pyspark.sql.types import NullType, StringType, StructField, StructType

    is_clear = len({name.casefold() for name in kinds}) == len(kinds)
    fields = [StructField(name, kind or NullType()) for name, kind in kinds.items()]
    return StructType(fields) if is_clear else StringType()


def _merged(one: Any, other: Any) -> DataType | None:
    """Return the type that holds values of both types; None if neither has a value."""
    from pyspark.sql.types import ArrayType, DoubleType, NullType, StringType, StructType, TimestampType

    one, other = (None if isinstance(kind, NullType) else kind for kind in (one, other))
    if one is None or other is None or one == other:
        return one or other
    if isinstance(one, StructType) and isinstance(other, StructType):
        kinds: dict[str, Any] = {}
        for field in (*one.fields, *other.fields):
            kinds[field.name] = _merged(kinds.get(field.name), field.dataType)
        return _struct(kinds)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merged(one.elementType, other.elementType) or NullType())
    wider = {frozenset({"long", "double"}): DoubleType, frozenset({"date", "timestamp"}): TimestampType}
    make: Any = wider.get(frozenset({one.typeName(), other.typeName()}), StringType)
    found: DataType = make()
    return found


def _settled(kind: Any) -> Any:
    """Return a type in which each unknown part is a text."""
    from pyspark.sql.types import ArrayType, NullType, StringType, StructType

    if kind is None or isinstance(kind, NullType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_settled(kind.elementType))
    if isinstance(kind, StructType):
        return _struct({field.name: _settled(field.dataType) for field in kind.fields})
    return kind
