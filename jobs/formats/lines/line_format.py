"""Formats of lines: bytes become records, records become fields, and fields become values (`formats/values/grammar`).

`line_ranges.RangeReader` finds the records: usually lines. A format's `Lines.parse` makes rows of them, and is the
definition. `Lines.parse_quickly` makes rows of many plain lines at once, at the speed of Arrow's parsers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from drainmark.jobs.formats.format import Expected, Format, Lines
from drainmark.jobs.formats.values.grammar import unreadable

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

LINE_OPTIONS = frozenset({"encoding", "charset", "linesep"})
VALUE_OPTIONS = frozenset({"dateformat", "timestampformat", "timestampntzformat"})


class LineFormat(Format):
    """A format with one record a line, unless options say otherwise."""

    lines: ClassVar[Lines]

    def cannot_read(self, expected: Expected) -> tuple[str, str] | None:
        found = super().cannot_read(expected)
        if found is None and expected.encoding is not None and not _is_known(expected.encoding):
            return f"the encoding {expected.encoding!r} is not known", "name one that Python knows, such as UTF-16LE"
        if found is None and expected.line_end is not None and (expected.is_multiline or not expected.line_end):
            return "records end by themselves with multiLine", 'leave out "lineSep", or "multiLine"'
        return found

    def unreadable(self, kind: DataType) -> str | None:
        return unreadable(kind)


def _is_known(encoding: str) -> bool:
    try:
        "".encode(encoding)  # unlike a look-up it refuses codecs that are not of text, such as base64
    except (LookupError, ValueError):
        return False
    return True


def block_size(content: bytes) -> int:
    """Return a block size for Arrow's parser that no line of the content exceeds, and that gives two cores work."""
    return max(1 << 20, len(content) // 4, _longest_line(content) + 2)


def _longest_line(content: bytes) -> int:
    window = 1 << 19
    if all(content.find(b"\n", at, at + window) >= 0 for at in range(0, len(content), window)):
        return 2 * window
    return len(content)


def has_plain_ends(content: bytes) -> bool:
    """Say whether lines end with line feeds, perhaps behind carriage returns, and no return stands elsewhere."""
    return b"\r" not in content or content.count(b"\r") == content.count(b"\r\n")
