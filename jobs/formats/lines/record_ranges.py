"""Ranges of a file whose records may have line ends within quotes, such as CSV with `multiLine`.

Only the text before a range tells whether the range begins within quotes, so whether its first line begins a record.
So a first look finds for each range whether its end is within quotes, for both cases: the range begins outside of
quotes, or within. Put together, the answers tell how each range begins. A second look takes the records that begin in
each range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from drainmark.jobs.formats.bad_records import CAPS, Refused
from drainmark.jobs.formats.csv_fields import Dialect, RecordEnds
from drainmark.jobs.formats.lines.content import Readable, whole_lines

_OPEN = "has a quote that is not closed at the end of the file"


# --- the first look -----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class EdgeFacts:
    """The findings of a first look at a range.

    Attributes:
        quoted_after: the next range begins within quotes: if this one begins outside of quotes, and if within.
    """

    quoted_after: tuple[bool, bool]


def edge_facts(data: Readable, start: int, end: int, dialect: Dialect) -> EdgeFacts:
    """Return the findings of a first look at the lines that begin in a range.

    Raises:
        OSError: the range cannot be read.
    """
    ends, after = RecordEnds.of(dialect), [False, True]
    with suppress(Refused):  # the second look is refused at the same place, and no range behind it counts
        for _, piece in whole_lines(data, start, end):
            whole = piece if piece.endswith(b"\n") else piece + b"\n"
            found = {is_quoted: ends.is_open_after(whole, is_quoted=is_quoted) for is_quoted in set(after)}
            after = [found[is_quoted] for is_quoted in after]
    return EdgeFacts(quoted_after=(after[0], after[1]))


def quoted_at(facts: Sequence[EdgeFacts]) -> list[bool]:
    """Return for each range of a file whether it begins within quotes."""
    begins = [False]
    for found in facts[:-1]:
        begins.append(found.quoted_after[begins[-1]])
    return begins


# --- the second look ----------------------------------------------------------------------------------------------


def whole_records(
    data: Readable, start: int, end: int, dialect: Dialect, *, is_quoted: bool
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (place, records without their ends) of the records that begin in a range.

    Args:
        is_quoted: the range begins within quotes.

    Raises:
        Refused: a record is too long, or its quote is not closed.
        OSError: the range cannot be read.
    """
    ends, rest, at = RecordEnds.of(dialect), b"", start
    for place, piece in whole_lines(data, start, end):
        content, first = rest + piece, place - len(rest)
        after = ends.end(content, 0, is_quoted=True) if is_quoted else 0
        records: list[bytes] = []
        while 0 <= after < len(content) and (behind := ends.end(content, after, is_quoted=False)) >= 0:
            records.append(_whole(content[after:behind]))
            after = behind
        is_quoted = is_quoted and after < 0
        rest, at = content[after:] if after >= 0 else b"", place + len(piece)
        yield first, records
        _require_short(rest)
    if rest:
        yield at - len(rest), [_to_its_end(data, rest, at, ends)]


def _to_its_end(data: Readable, rest: bytes, at: int, ends: RecordEnds) -> bytes:
    """Return the record that begins in a range and ends beyond it."""
    for _, piece in whole_lines(data, at, data.size) if at < data.size else ():
        rest += piece
        if (after := ends.end(rest, 0, is_quoted=False)) >= 0:
            return _whole(rest[:after])
        _require_short(rest)
    if ends.end(rest + b"\n", 0, is_quoted=False) < 0:
        raise Refused(_OPEN)
    return _whole(rest)


def _whole(record: bytes) -> bytes:
    """Return a record without its end."""
    _require_short(record)
    return record.removesuffix(b"\n").removesuffix(b"\r")


def _require_short(record: bytes) -> None:
    if len(record) > CAPS.document_bytes:
        raise Refused(f"has a record of more than {CAPS.document_bytes} bytes")
