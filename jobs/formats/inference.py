"""Columns of files without declared columns, inferred from a sample of their records.

A CSV column has numbers, booleans, dates or times if each value in it is clearly written as one; a number with a
leading zero, such as a post code, is a text. JSON has types itself, and its texts stay texts. A column is a text if its
values have no common type, or if the sample has no value of it.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats import csv_fields
from drainmark.jobs.formats.bad_records import CAPS, Refused
from drainmark.jobs.formats.column_fit import Bare, Columns
from drainmark.jobs.formats.file_columns import are_clear
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.lines.content import first_lines, refuse_by_mark
from drainmark.jobs.formats.values.grammar import Rules, misfit, reader_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

SAMPLE_RECORDS = 1000
"""Upper bound (inclusive) of the records read from each file, all within its first megabytes."""

_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|-?\.\d+", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(_DATE.pattern + r"[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[-+]\d\d:\d\d)?", re.ASCII)
_FOREIGN = re.compile(r"[+-]?[0-9]{1,3}(?:[.' ][0-9]{3})*,[0-9]+|[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", re.ASCII)
"""Numbers with a decimal comma or separators of thousands: a column of them is a text, which is told."""
_LONG = 2**63
_LEVELS = 32
"""Levels of objects and arrays that have types, so that tables can hold them: Parquet's library has a limit of 100, and
an array takes two; deeper ones are texts."""
_NOT_DECODED = "\ufffd"


class ColumnsUnclear(Exception):
    """Files do not tell their columns; the text completes "none can be inferred: …"."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """Columns of files.

    Attributes:
        columns: names and types.
        texts: name of a column that is a text though most of it may be meant otherwise -> why it is one.
    """

    columns: Columns
    texts: Mapping[str, str] = field(default_factory=dict)


def columns_of(files: Iterable[tuple[BinaryIO, str]], expected: Expected) -> Inferred:
    """Return the columns of files.

    Args:
        files: opened files, each with the ending of its name; no further file is taken once one tells all.
        expected: their declaration, without columns.

    Raises:
        ColumnsUnclear: no file has records that tell them, or names are not clear (`are_clear`).
    """
    find = {"csv": _of_csv, "json": _of_json}.get(expected.format, _of_columns)
    found = find(files, expected)
    if found is None:
        raise ColumnsUnclear("no file there has records that say its columns, in types that Spark reads")
    names = [name for name, _ in found.columns]
    if not are_clear(names) or any(_NOT_DECODED in name for name in names):
        raise ColumnsUnclear(_unclear(names))
    return found


def _unclear(names: Sequence[str]) -> str:
    """Return what is wrong with names that are not clear."""
    if any(_NOT_DECODED in name or "\x00" in name for name in names):
        return 'the names of its columns are no UTF-8; set its encoding, such as options={"encoding": "ISO-8859-1"}'
    if "" in names:
        return f"column {names.index('') + 1} has no name"
    folded = [name.casefold() for name in names]
    twins = [name for name in names if folded.count(name.casefold()) > 1]
    if twins:
        return f"it has several columns {twins[0]!r}; names differ in more than upper and lower case"
    return "names of its columns have signs that cannot be printed, or are those that a source adds"


def _of_columns(files: Iterable[tuple[BinaryIO, str]], expected: Expected) -> Inferred | None:
    """Return the columns of the first file that names its columns and types, all of which Spark reads."""
    for file, suffix in files:
        found = expected.reads.columns_in(file, suffix, expected) or ()
        columns = [(name, _settled(kind)) for name, kind in found if kind is not None and not isinstance(kind, Bare)]
        if columns and len(columns) == len(found):
            return Inferred(columns)
    return None


def _of_csv(files: Iterable[tuple[BinaryIO, str]], expected: Expected) -> Inferred | None:
    """Return the columns of the first header, with the types of the values below it and below equal headers."""
    header: list[str] | None = None
    seen: dict[int, _Seen] = {}
    for content in _texts(files, expected):
        (_, first), *records = [*itertools.islice(_fields(content, expected), SAMPLE_RECORDS + 1)] or [(0, [])]
        names = [name.strip() for name in first]
        if not names or not records or (header is not None and names != header):
            continue
        header = names
        for number, record in records:
            for place, text in enumerate(record[: len(names)]):
                seen.setdefault(place, _Seen()).add(text, number, _kind_of_text(text, expected.options))
    if header is None:
        return None
    columns = [(name, _settled(seen[place].kind if place in seen else None)) for place, name in enumerate(header)]
    why = {name: reason for place, name in enumerate(header) if place in seen and (reason := seen[place].why_text)}
    return Inferred(columns, why)


@dataclass(slots=True)
class _Seen:
    """The values of a column so far: the type of all of them, and the first one of each type with its line."""

    kind: DataType | None = None
    first: dict[DataType, tuple[str, int]] = field(default_factory=dict)

    def add(self, text: str, number: int, kind: DataType | None) -> None:
        if kind is not None:
            self.kind = _merged(self.kind, kind)
            self.first.setdefault(kind, (text, number))

    @property
    def why_text(self) -> str | None:
        """Return why the column is a text; None if it is none, or if all of its values are clearly texts."""
        from pyspark.sql.types import DoubleType, StringType

        if self.kind != StringType():
            return None
        others = [kind for kind in self.first if kind != StringType()]
        odd, number = self.first.get(StringType()) or self.first[others[1]]
        why = misfit(odd, DoubleType(), Rules()) if _FOREIGN.fullmatch(odd) else repr(odd[:64])
        return f"line {number} has {why}" if others or _FOREIGN.fullmatch(odd) else None


def _fields(text: str, expected: Expected) -> Iterator[tuple[int, list[str]]]:
    """Yield each record with the number of its line, or of the record if it may have several lines."""
    is_multiline, line_end = expected.is_multiline, expected.line_end
    for number, record in csv_fields.records_in(text, expected.dialect, is_multiline=is_multiline, line_end=line_end):
        try:
            yield number, [field or "" for field in csv_fields.fields_of(record, expected.dialect)]
        except csv_fields.NoRecord:
            yield number, []


def _of_json(files: Iterable[tuple[BinaryIO, str]], expected: Expected) -> Inferred | None:
    found: DataType | None = None
    for text in _texts(files, expected):
        for line in itertools.islice(_records(text, expected), SAMPLE_RECORDS):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and record:
                found = _merged(found, _kind_of_value(record))
    return (
        Inferred([(each.name, each.dataType) for each in _settled(found).fields]) if hasattr(found, "fields") else None
    )


def _records(text: str, expected: Expected) -> Iterator[str | bytes]:
    """Yield texts that may be records of JSON."""
    if expected.is_multiline and expected.lines is not None:
        with suppress(Refused):
            yield from expected.lines.documents(text.removeprefix("\ufeff"), expected)
    else:
        dialect, line_end = expected.dialect, expected.line_end
        for _, line in csv_fields.records_in(text, dialect, is_multiline=False, line_end=line_end):
            yield line


def _texts(files: Iterable[tuple[BinaryIO, str]], expected: Expected) -> Iterator[str]:
    """Yield the text of whole lines from the beginning of each file, but of files that have the mark of others.

    Raises:
        ColumnsUnclear: all files have one.
    """
    refused, has_text = None, False
    for file, suffix in files:
        sample = _sample(file, suffix)
        try:
            if expected.encoding is None:
                refuse_by_mark(sample)
        except Refused as error:
            refused = refused or error
            continue
        has_text = has_text or bool(sample)
        yield sample.decode(expected.encoding or "UTF-8", errors="replace")
    if refused is not None and not has_text:
        raise ColumnsUnclear(f"the first file there {refused}")


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
        (not has_formats and _DATE.fullmatch(text) is not None, DateType),
        (not has_formats and _TIME.fullmatch(text) is not None, TimestampType),
    )
    make = next((make for is_so, make in tests if is_so), StringType)
    return make() if _is_value(text, make()) else StringType()


def _is_value(text: str, kind: DataType) -> bool:
    return reader_of(kind, Rules()).one(text) is not None


def _kind_of_value(value: Any, levels: int = _LEVELS) -> DataType | None:
    from pyspark.sql.types import ArrayType, BooleanType, DoubleType, LongType, NullType, StringType

    if value is None:
        return None
    if isinstance(value, dict) and value and levels:
        return _struct({name: _kind_of_value(each, levels - 1) for name, each in value.items()})
    if isinstance(value, list) and levels:
        kinds = (_kind_of_value(each, levels - 1) for each in value)
        return ArrayType(functools.reduce(_merged, kinds, None) or NullType())
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
        for each in (*one.fields, *other.fields):
            kinds[each.name] = _merged(kinds.get(each.name), each.dataType)
        return _struct(kinds)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merged(one.elementType, other.elementType) or NullType())
    wider = {frozenset({"long", "double"}): DoubleType, frozenset({"date", "timestamp"}): TimestampType}
    make: Any = wider.get(frozenset({one.typeName(), other.typeName()}), StringType)
    found: DataType = make()
    return found


def _settled(kind: Any) -> Any:
    """Return a type in which each unknown part is a text."""
    from pyspark.sql.types import ArrayType, MapType, NullType, StringType, StructType

    if kind is None or isinstance(kind, NullType):
        return StringType()
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _settled(kind.valueType))
    if isinstance(kind, ArrayType):
        return ArrayType(_settled(kind.elementType))
    if isinstance(kind, StructType):
        return _struct({field.name: _settled(field.dataType) for field in kind.fields})
    return kind
