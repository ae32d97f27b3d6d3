"""Files without one record per line: a file is refused whole if Spark's parsers would change one of its values."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

from drainmark.jobs.formats.bad_records import CAPS, Refused
from drainmark.jobs.formats.format import Expected, Lines


def check_values(pieces: Iterable[bytes], expected: Expected, lines: Lines) -> None:
    """Check each value of a file.

    Args:
        pieces: its bytes, decompressed.

    Raises:
        Refused: Spark's parser would change a value; the message names the first such record.
    """
    if not lines.may_be_changed(expected):
        return
    try:
        decoder = codecs.getincrementaldecoder(expected.encoding or "UTF-8")()
    except LookupError:
        return  # an encoding that Java knows and Python does not: left to Spark
    records = _records_in((decoder.decode(piece) for piece in pieces), expected, lines)
    for number, record in enumerate(records, 1):
        if number == 1 and expected.header is not None:
            continue
        fault = lines.change_in(record, expected)
        if fault is not None:
            raise Refused(f"has a record that cannot be read as it is, number {number}: {fault}")


def _records_in(pieces: Iterator[str], expected: Expected, lines: Lines) -> Iterator[str]:
    """Yield the records: a JSON document, CSV records that may hold line ends, or texts between line separators."""
    if expected.has_multiline:
        yield from lines.records_of("".join(pieces).removeprefix("\ufeff"), expected)
        return
    rest, end = "", expected.options.get("linesep", "\n")
    for piece in pieces:
        *whole, rest = (rest + piece).split(end)
        if len(rest) > CAPS.line_bytes:
            raise Refused(f"has a record of more than {CAPS.line_bytes} characters")
        yield from (record.strip("\r\ufeff") for record in whole if record.strip())
    if rest.strip():
        yield rest.strip("\r\ufeff")
