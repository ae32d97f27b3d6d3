"""Text: a line is a row, and any line of UTF-8 without NUL is good."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.formats.bad_records import Parsed
from drainmark.jobs.formats.format import Expected, Lines, Rows
from drainmark.jobs.formats.lines.line_format import LINE_OPTIONS, LineFormat, block_size, has_plain_ends

if TYPE_CHECKING:
    import pyarrow as pa

_NO_SUCH_BYTE = b"\x01"


class TextLines(Lines):
    """Lines of which only the bytes are judged."""

    def parse(self, records: Sequence[bytes], expected: Expected) -> Parsed:
        import pyarrow as pa

        return Parsed(pa.table({"value": pa.array(records, pa.binary()).cast(pa.string())}), {})

    def parse_quickly(self, content: bytes, expected: Expected) -> Parsed | None:
        import pyarrow as pa
        from pyarrow import csv

        if _NO_SUCH_BYTE in content or not has_plain_ends(content):
            return None
        table = csv.read_csv(
            pa.BufferReader(content if content.endswith(b"\n") else content + b"\n"),
            read_options=csv.ReadOptions(column_names=["value"], block_size=block_size(content)),
            parse_options=csv.ParseOptions(
                delimiter=_NO_SUCH_BYTE.decode(), quote_char=False, escape_char=False, ignore_empty_lines=False
            ),
            convert_options=csv.ConvertOptions(column_types={"value": pa.string()}, check_utf8=False, null_values=[]),
        )
        return Parsed(table, {})


class Text(LineFormat):
    """Files of lines, each the `value` of a row."""

    name = "text"
    has_schema = False
    options = LINE_OPTIONS | {"wholetext"}
    lines = TextLines()

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes:
        return "".join(f"{row['value']}\n" for row in rows).encode()


FORMAT = Text()
