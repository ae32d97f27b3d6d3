"""Text: a line is a row, and any line of UTF-8 without NUL is good."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.formats.format import Expected, Lines, Rows
from drainmark.jobs.formats.lines.arrow_parser import block_size
from drainmark.jobs.formats.lines.line_format import LineFormat, can_be_read_here, whole_content

if TYPE_CHECKING:
    import pyarrow as pa

_NO_SUCH_BYTE = b"\x01"


class TextLines(Lines):
    """Lines of which only the bytes are judged."""

    may_be_document = False


class Text(LineFormat):
    """Files of lines, each the `value` of a row."""

    name = "text"
    has_schema = False
    lines = TextLines()

    def cannot_decode(self, expected: Expected) -> tuple[str, str] | None:
        utf8 = "text is read as UTF-8", "leave it out, and convert the files to UTF-8"
        return None if expected.encoding is None else utf8

    def values_of(self, path: Path, expected: Expected) -> Iterator[bytes] | None:
        if expected.options == {"wholetext": "true"} and can_be_read_here(path):
            return (content for content in map(whole_content, [path]) if content)  # an empty file has no row
        return super().values_of(path, expected)

    def can_parse(self, expected: Expected) -> bool:
        return not expected.options

    def is_plain(self, content: bytes, expected: Expected) -> bool:
        return _NO_SUCH_BYTE not in content

    def parse(self, content: bytes, expected: Expected) -> pa.Table:
        import pyarrow as pa
        from pyarrow import csv

        if not content:
            return pa.table({"value": pa.array([], pa.string())})
        return csv.read_csv(
            pa.BufferReader(content),
            read_options=csv.ReadOptions(column_names=["value"], block_size=block_size(content)),
            parse_options=csv.ParseOptions(
                delimiter=_NO_SUCH_BYTE.decode(), quote_char=False, escape_char=False, ignore_empty_lines=False
            ),
            convert_options=csv.ConvertOptions(column_types={"value": pa.string()}, check_utf8=False, null_values=[]),
        )

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes:
        return "".join(f"{row['value']}\n" for row in rows).encode()


FORMAT = Text()
