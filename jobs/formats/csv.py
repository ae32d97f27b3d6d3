"""CSV: lines of fields, with or without a header.

Plain files are parsed by Arrow, in `Csv.parse`; the others by Spark, with the reader of `ParsedFormat.reader`.
"""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats import csv_dialect
from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.formats.column_fit import Found
from drainmark.jobs.formats.format import Expected, Lines, Rows, as_text, lines_in, lines_with_text
from drainmark.jobs.formats.lines.arrow_parser import block_size
from drainmark.jobs.formats.lines.line_format import BLANK, FAIL_A_FILE, ParsedFormat, first_lines
from drainmark.jobs.formats.values.text_columns import without_line_end
from drainmark.jobs.formats.values.text_values import ColumnReader, NotSure, reader_of
from drainmark.jobs.formats.values.value_checks import TEXTS, family, times_last

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN_OPTIONS: Mapping[str, frozenset[str]] = {
    "header": frozenset({"true", "false"}),
    "encoding": frozenset({"utf-8", "utf8"}),
    "charset": frozenset({"utf-8", "utf8"}),
    "quote": frozenset({'"'}),
    "escape": frozenset({"\\", '"'}),
}
_OTHER_RECORDS = FAIL_A_FILE | {
    *("comment", "linesep", "ignoreleadingwhitespace", "ignoretrailingwhitespace", "chartoescapequoteescaping"),
}
"""Options with which Spark's parser finds other fields and records than `csv_dialect`."""
_TEXT, _LINE_END = re.compile(rb"[^\x00-\x20]"), re.compile(rb"[\r\n]")
_SEPARATORS = frozenset({",", ";", "|", "\t"})


class CsvLines(Lines):
    """Lines of fields; the options set quotes, separators and comments."""

    may_have_header = True

    def header(self, expected: Expected) -> tuple[str, ...] | None:
        is_one = _has_header(expected) and expected.columns
        return tuple(name for name, _ in expected.columns or ()) if is_one else None

    def has_header(self, chunk: bytes, expected: Expected) -> bool:
        line = _first_record(chunk, expected.dialect)
        if line is not None:
            csv_dialect.check_header(line, expected.header or (), expected.dialect)
        return line is not None

    def records_test(self, expected: Expected) -> Callable[[bytes], bool]:
        comment = expected.dialect.comment
        return lambda line: bool(line.strip(BLANK) or b"\0" in line) and not (comment and line.startswith(comment))

    def count(self, chunk: bytes, expected: Expected) -> int:
        return super().count(chunk, expected) if expected.dialect.comment else lines_with_text(chunk)

    def good_records(self, chunk: bytes, expected: Expected) -> int | None:
        dialect = expected.dialect
        if not _has_short_lines(chunk) or not csv_dialect.quotes_are_closed(chunk, dialect):
            return None
        if expected.lossless.suspects_digits(chunk):
            return None
        if not expected.parsed_here and expected.lossless.suspects_csv(chunk, dialect.sep, dialect.quote):
            return None
        return lines_in(chunk)

    def fault_of(self, line: str, expected: Expected) -> str | None:
        return csv_dialect.fault_of(line, expected.dialect) or self.change_in(line, expected)

    def misfit(self, record: str, expected: Expected) -> str | None:
        columns, fields = expected.columns or (), csv_dialect.fields_of(record, expected.dialect)
        if fields is None:
            return "a quote is not closed"
        if len(fields) != len(columns):
            return f"has {len(fields)} columns, declared are {len(columns)}"
        values = dict(zip((name for name, _ in columns), fields, strict=True))
        for name, kind in times_last(expected.columns or (), expected.options):
            is_one = TEXTS.get(family(kind.simpleString()))
            if values[name] and is_one is not None and not is_one(values[name], kind):
                return f"column {name!r}: {values[name][:64]!r} is no {kind.simpleString()}"
        return None

    def fault_of_document(self, text: str, expected: Expected) -> str | None:
        is_closed = csv_dialect.ends_closed(text, expected.dialect)
        return None if is_closed else "has a quote that is not closed at the end of the file"

    def may_be_changed(self, expected: Expected) -> bool:
        return expected.lossless.matters_in_csv

    def records_of(self, text: str, expected: Expected) -> Iterator[str]:
        return csv_dialect.records_of(text, expected.dialect)

    def record_ends(self, expected: Expected) -> csv_dialect.RecordEnds | None:
        names = [name.lower() for name, _ in expected.columns or ()]
        is_plain = len(names) == len(set(names)) and not _OTHER_RECORDS & expected.options.keys()
        return csv_dialect.RecordEnds.of(expected.dialect) if is_plain and expected.encoding is None else None

    def change_in(self, record: str, expected: Expected) -> str | None:
        return expected.lossless.fault_of_csv(record, expected.dialect)

    def are_good(self, values: Sequence[bytes | None], joined: bytes, expected: Expected) -> bool:
        dialect = expected.dialect
        if expected.lossless.suspects_csv(joined, dialect.sep, dialect.quote):
            return False
        quote = dialect.quote.encode()
        is_plain = b"\r" not in joined and joined.count(b"\n") == len(values) - 1 and b"" not in values
        return is_plain and not (quote and quote in joined)

    def fault_of_value(self, text: str, expected: Expected) -> str | None:
        record = text.removesuffix("\n").removesuffix("\r")
        return csv_dialect.fault_of_record(record, expected.dialect) or self.change_in(record, expected)

    def sql_of_value(self, text: str) -> str:
        return without_line_end(text)


def _has_header(expected: Expected) -> bool:
    return expected.options.get("header", "false").lower() == "true"


def _first_record(chunk: bytes, dialect: csv_dialect.Dialect) -> bytes | None:
    """Return the first line that is neither blank nor a comment."""
    at = 0
    while (found := _TEXT.search(chunk, at)) is not None:
        start = max(chunk.rfind(b"\n", at, found.start()), chunk.rfind(b"\r", at, found.start()), at - 1) + 1
        end = _LINE_END.search(chunk, start)
        at = end.start() if end is not None else len(chunk)
        if not (dialect.comment and chunk.startswith(dialect.comment, start)):
            return chunk[start:at]
    return None


class Csv(ParsedFormat):
    """Files of lines of fields; plain ones are parsed by Arrow."""

    name = "csv"
    lines = CsvLines()
    names_columns = True

    def cannot_compare(self, expected: Expected) -> str | None:
        is_nameless = expected.on_schema == "rescue" and not _has_header(expected)
        return 'only a header names the columns of a file: options={"header": "true"}' if is_nameless else None

    def columns_in(self, file: BinaryIO, suffix: str, expected: Expected) -> Found | None:
        from pyspark.sql.types import StringType

        try:
            text = first_lines(file, suffix).decode(expected.encoding or "UTF-8", errors="replace")
        except LookupError:
            return None  # an encoding that Java knows and Python does not
        line = _first_record(text.encode(), expected.dialect)
        fields = csv_dialect.fields_of(line.decode(), expected.dialect) if line is not None else None
        return [(name.strip(), StringType()) for name in fields] if fields is not None else None

    def can_parse(self, expected: Expected) -> bool:
        columns = expected.columns or ()
        plain = all(
            value.lower() in _PLAIN_OPTIONS.get(name, ())
            for name, value in expected.options.items()
            if name not in ("sep", "delimiter")
        )
        # A single column is left to Spark: a line of spaces is no record there, and would be one for Arrow.
        return (
            plain
            and len(columns) > 1
            and expected.dialect.sep in _SEPARATORS
            and len(_readers_of(expected)) == len(columns)
        )

    def is_plain(self, content: bytes, expected: Expected) -> bool:
        return expected.dialect.quote.encode() * 2 not in content  # an empty field in quotes, or a quote in a field

    def parse(self, content: bytes, expected: Expected) -> pa.Table:
        import pyarrow as pa
        from pyarrow import csv

        columns, dialect = expected.columns or (), expected.dialect
        readers = _readers_of(expected)
        names = [str(place) for place in range(len(columns))]  # the reader would merge two equal names
        if not content:
            return pa.table([pa.array([], reader.kind) for reader in readers], names=[name for name, _ in columns])
        table = csv.read_csv(
            pa.BufferReader(content),
            read_options=csv.ReadOptions(column_names=names, block_size=block_size(content)),
            parse_options=csv.ParseOptions(
                delimiter=dialect.sep,
                quote_char=dialect.quote if dialect.quote.encode() in content else False,
                double_quote=False,
                escape_char=False,
            ),
            # Texts, cast later, which is as fast: the reader would trim spaces of numbers, and Spark rejects such.
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                check_utf8=False,
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        if dialect.sep in BLANK.decode() and _has_blank_line(table.columns):
            raise NotSure  # Spark makes no record of a blank line
        read = [reader.convert(column, reader.kind) for reader, column in zip(readers, table.columns, strict=True)]
        return pa.table(read, names=[name for name, _ in columns])

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


def _has_short_lines(chunk: bytes) -> bool:
    """Say whether each line has fewer bytes than the allowed number of columns: then none can have too many."""
    window = CAPS.columns // 2
    return all(chunk.find(b"\n", at, at + window) >= 0 for at in range(0, len(chunk) - window, window))


def _readers_of(expected: Expected) -> list[ColumnReader]:
    return [reader for _, kind in expected.columns or () if (reader := reader_of(kind)) is not None]


def _has_blank_line(texts: Sequence[Any]) -> bool:
    """Say whether a line has only separators and spaces."""
    import pyarrow.compute as pc

    blank = (pc.fill_null(pc.equal(pc.ascii_trim(column, BLANK.decode()), ""), True) for column in texts)
    return bool(pc.any(functools.reduce(pc.and_, blank)).as_py())


FORMAT = Csv()
