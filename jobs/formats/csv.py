"""CSV: lines of fields, with or without a header."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats import csv_fields
from drainmark.jobs.formats.bad_records import CAPS, OtherColumns, Parsed
from drainmark.jobs.formats.column_fit import Found
from drainmark.jobs.formats.format import Expected, Lines, Rows, as_text, row_type
from drainmark.jobs.formats.lines.content import first_lines
from drainmark.jobs.formats.lines.line_format import (
    LINE_OPTIONS,
    VALUE_OPTIONS,
    LineFormat,
    block_size,
    has_plain_ends,
)
from drainmark.jobs.formats.values.grammar import misfit, values_of
from drainmark.jobs.frames.tags import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

_DIALECT_OPTIONS = frozenset(
    {"sep", "delimiter", "quote", "escape", "comment", "nullvalue"}
    | {"ignoreleadingwhitespace", "ignoretrailingwhitespace"}
)


class CsvLines(Lines):
    """Lines of fields; the options set quotes, separators and comments."""

    def header(self, expected: Expected) -> tuple[str, ...] | None:
        is_one = _has_header(expected) and expected.columns
        return tuple(name for name, _ in expected.columns or ()) if is_one else None

    def check_header(self, record: bytes, expected: Expected) -> None:
        csv_fields.check_header(record, expected.header or (), expected.dialect)

    def record_test(self, expected: Expected) -> Callable[[bytes], bool]:
        blanks, comment = expected.dialect.blanks.encode().replace(b"\0", b""), expected.dialect.comment
        return lambda line: bool(line.strip(blanks)) and not (comment and line.startswith(comment))

    def parse(self, records: Sequence[bytes], expected: Expected) -> Parsed:
        columns, dialect, faults = expected.columns or (), expected.dialect, dict[int, str]()
        nothing: list[str | None] = [None] * len(columns)
        fields = []
        for place, record in enumerate(records):
            try:
                found = csv_fields.fields_of(record.decode(), dialect)
            except csv_fields.NoRecord as fault:
                found, faults[place] = nothing, str(fault)
            if len(found) != len(columns):
                faults[place] = f"has {len(found)} columns, declared are {len(columns)}"
                found = nothing
            fields.append(found)
        texts = [*zip(*fields, strict=True)] if fields else [()] * len(columns)
        return _typed(texts, expected, faults)

    def are_several(self, text: str, expected: Expected) -> bool:
        return csv_fields.has_lines(text, expected.dialect)

    def parse_quickly(self, content: bytes, expected: Expected) -> Parsed | None:
        import pyarrow as pa
        from pyarrow import csv

        dialect, names = expected.dialect, [str(place) for place in range(len(expected.columns or ()))]
        if not _is_plain(content, expected):
            return None
        quote = dialect.quote if dialect.quote and dialect.quote.encode() in content else False
        try:
            table = csv.read_csv(
                pa.BufferReader(content if content.endswith(b"\n") else content + b"\n"),
                # Names are numbers, because the reader would merge two equal names.
                read_options=csv.ReadOptions(column_names=names, block_size=block_size(content)),
                parse_options=csv.ParseOptions(delimiter=dialect.sep, quote_char=quote, escape_char=False),
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    check_utf8=False,
                    null_values=["", dialect.null],
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowException:  # such as a record with fewer fields
            return None
        if len(names) == 1 and _has_blank(table.column(0), dialect.blanks):
            return None  # a line of blanks is no record
        return _typed(table.columns, expected, {})


def _is_plain(content: bytes, expected: Expected) -> bool:
    """Say whether Arrow's parser finds the records and fields of the definition in lines."""
    dialect = expected.dialect
    is_plain = (
        len(dialect.sep.encode()) == 1
        and len(expected.columns or ()) <= CAPS.columns
        and not (dialect.comment and dialect.comment in content)
        and not (dialect.trims_left or dialect.trims_right)
        and has_plain_ends(content)
        and csv_fields.quotes_are_plain(content, dialect)
        and not (dialect.null and not dialect.null.strip(dialect.blanks))  # a line of it alone is no record
    )
    return is_plain and not (dialect.null and dialect.quote and dialect.quote.encode() in content)


def _has_blank(texts: Any, blanks: str) -> bool:
    """Say whether a text has only blanks."""
    import pyarrow.compute as pc

    return bool(pc.any(pc.equal(pc.ascii_trim(texts, blanks), "")).as_py())


def _typed(texts: Sequence[Any], expected: Expected, faults: dict[int, str]) -> Parsed:
    """Make values of the texts of all columns.

    Args:
        faults: of records without fields, by place; others are added.
    """
    import pyarrow as pa

    rules, read = expected.rules, []
    for found, (name, kind) in zip(texts, expected.columns or (), strict=True):
        column = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else pa.array(found, pa.string())
        values = values_of(column, kind, rules)
        for place in values.misfits:
            faults.setdefault(place, f"column {name!r}: {misfit(column[place].as_py(), kind, rules)}")
        read.append(values.values)
    return Parsed(pa.Table.from_arrays(read, schema=arrow_schema(row_type(expected))), faults)


def _has_header(expected: Expected) -> bool:
    return expected.options.get("header", "false").lower() == "true"


class Csv(LineFormat):
    """Files of lines of fields."""

    name = "csv"
    options = _DIALECT_OPTIONS | LINE_OPTIONS | VALUE_OPTIONS | {"header", "multiline"}
    lines = CsvLines()
    names_columns = True

    def cannot_read(self, expected: Expected) -> tuple[str, str] | None:
        dialect = expected.dialect
        if found := super().cannot_read(expected) or dialect.fault:
            return found
        if expected.is_multiline and (dialect.comment or len(dialect.sep) > 1 or dialect.trims_left):
            why = 'with "multiLine" there are no comments, separators of several characters, or blanks before a quote'
            return why, 'leave out "multiLine", or the other option'
        return None

    def unreadable(self, kind: DataType) -> str | None:
        if kind.typeName() in ("array", "map", "struct"):
            return f"a field of csv is one text, and never {kind.simpleString()}: declare the column as string"
        return super().unreadable(kind)

    def cannot_compare(self, expected: Expected) -> str | None:
        is_nameless = expected.on_schema == "rescue" and not _has_header(expected)
        return 'only a header names the columns of a file: options={"header": "true"}' if is_nameless else None

    def columns_in(self, file: BinaryIO, suffix: str, expected: Expected) -> Found | None:
        from pyspark.sql.types import StringType

        text = first_lines(file, suffix).decode(expected.encoding or "UTF-8", errors="replace")
        records = csv_fields.records_in(
            text, expected.dialect, is_multiline=expected.is_multiline, line_end=expected.line_end
        )
        try:
            names = next((csv_fields.header_of(first.encode(), expected.dialect) for _, first in records), None)
        except OtherColumns:
            return None
        return [(name, StringType()) for name in names] if names is not None else None

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes:
        text = io.StringIO(newline="")
        separator = options.get("sep", options.get("delimiter", ","))
        writer = csv.writer(text, delimiter=separator, lineterminator="\n", escapechar="\\", doublequote=False)
        if options.get("header", "false").lower() == "true":
            writer.writerow(columns)
        for row in rows:
            values = (row.get(column) for column in columns)
            writer.writerow(["" if value is None else as_text(value) for value in values])
        return text.getvalue().encode()


FORMAT = Csv()
