"""Ranges of a file with one record per line: each is judged without the others, and the facts give a verdict.

A line belongs to the range in which it begins; a line that crosses a cut is read to its end. Line numbers count from
the beginning of the range, and are added up once the facts of all ranges are known. So many tasks can read a file of
any size, each holds only a few pieces of it, and the verdict is the same as that of a look at the whole file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from drainmark.jobs.formats.bad_records import (
    CAPS,
    BadRecord,
    FileVerdict,
    OtherColumns,
    Refused,
    too_many,
)
from drainmark.jobs.formats.format import Expected, Lines, lines_in
from drainmark.jobs.formats.lines.line_format import (
    UTF8_MARK,
    content_of,
    is_utf8,
    refuse_by_mark,
    require_short_line,
    separate,
)

_STEP_BYTES = 64 * 1024
"""Bytes that are read first beyond a range, to the end of the line that crosses the cut; then twice as many."""

_HEAD_BYTES = 8
_SENT_CHARACTERS = 1024 * 1024
"""Characters of the texts of bad records that go with the facts of a range; further ones are sent only on request."""


class Readable(Protocol):
    """Bytes that are read by position."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` (inclusive) to `end` (exclusive); fewer at the end of the data."""


@dataclass(slots=True, kw_only=True)
class RangeFacts:
    """The findings in one range.

    Attributes:
        lines: number of lines that begin in it; of records, if a record may have several lines.
        records: number of good ones. If they are only judged, blank lines and comments may be included.
        parsed: number of the records that became rows.
        bad: the bad records, or at least the first ones; positions count from 1 in the range.
        bad_count: number of bad records; the count stops once it is above `CAPS.bad_rows`.
        refused: why nothing of the file is to be read, as far as this range shows.
        is_schema: it is refused because its columns differ from the declared ones.
        awaits_header: the header was not in the range.
        fault: number of the first record that Spark would change, and how; the file is then refused.
        is_undecided: only Spark's own reader can find the records.
    """

    lines: int = 0
    records: int = 0
    parsed: int = 0
    bad: list[BadRecord] = field(default_factory=list)
    bad_count: int = 0
    refused: str | None = None
    is_schema: bool = False
    awaits_header: bool = False
    fault: tuple[int, str] | None = None
    is_undecided: bool = False

    @property
    def is_sample(self) -> bool:
        """Say whether there are more bad records than `bad` has."""
        return len(self.bad) < self.bad_count


Parse = Callable[[int, bytes, int], int | None]
"""Callback that gets the place of good lines, the lines, and the upper bound (inclusive) of their records. It makes
rows of all of them and returns the number of rows, or None if only Spark can parse them."""

Leave = Callable[[int, list[bytes]], object]
"""Callback that gets the place of good lines, and the records among them without line ends, for Spark to parse."""


@dataclass(slots=True, kw_only=True)
class RangeJudge:
    """The judge of one range; used once.

    Attributes:
        parse, leave: take the good lines; without them, the lines are only judged.
        sends_all: all bad records go into the facts.
    """

    expected: Expected
    lines: Lines
    parse: Parse | None = None
    leave: Leave | None = None
    sends_all: bool = False
    facts: RangeFacts = field(default_factory=RangeFacts)
    _sent: int = 0

    def judge(self, data: Readable, start: int, end: int) -> RangeFacts:
        """Judge the lines that begin from `start` (inclusive) to `end` (exclusive).

        Raises:
            OSError: the range cannot be read.
        """
        facts = self.facts
        facts.awaits_header = start == 0 and self.expected.header is not None
        try:
            for place, piece in whole_lines(data, start, end):
                self._judge(place, self._less_header(piece) if facts.awaits_header else piece)
                if facts.bad_count > CAPS.bad_rows:
                    break
        except Refused as refused:
            facts.refused, facts.is_schema = str(refused), isinstance(refused, OtherColumns)
        return facts

    def _less_header(self, piece: bytes) -> bytes:
        """Return the lines behind the header; lines before it are no records."""
        is_one, at = self.lines.records_test(self.expected), 0
        for line in piece.splitlines(keepends=True):
            self.facts.lines += 1
            at += len(line)
            if is_one(line):
                self.lines.has_header(line, self.expected)
                self.facts.awaits_header = False
                break
        return piece[at:]

    def _judge(self, place: int, piece: bytes) -> None:
        if not piece:
            return
        first, facts = self.facts.lines, self.facts
        look = replace(self.expected, parsed_here=True) if self.parse is not None else self.expected
        found = self._looked_at(piece, look)
        rows = self._parsed(place, found)
        if rows is None and look.parsed_here and self.expected.lossless.matters_in_csv:
            found = self._looked_at(piece, self.expected)  # Arrow refuses a value and names no place
            rows = self._parsed(place, found)
        facts.lines = first + lines_in(piece)
        self._keep(first, found.bad)
        if rows is not None:
            facts.parsed += rows
            facts.records += rows if rows == found.records else self._exact(found.content)
        elif self.leave is not None:
            records = self._records_in(found.content)
            self.leave(place, records)
            facts.records += len(records)
        else:
            facts.records += found.records

    def _looked_at(self, piece: bytes, expected: Expected) -> _Looked:
        """Look at lines quickly, and one by one if one may be bad."""
        records = self._quick(piece, expected)
        if records is not None:
            return _Looked(piece, records, is_plain=True)
        is_one = self.lines.records_test(expected)
        good: list[bytes] = []
        found = ((number, line, is_one(line)) for number, line in enumerate(piece.splitlines(keepends=True), 1))
        count, bad = separate(found, expected, self.lines, good.append)
        content = b"".join(good)
        is_plain = bool(bad) and bool(content) and self._quick(content, expected) is not None
        return _Looked(content, count, bad=bad, is_plain=is_plain)

    def _quick(self, piece: bytes, expected: Expected) -> int | None:
        return None if 0 in piece or not is_utf8(piece) else self.lines.good_records(piece, expected)

    def _parsed(self, place: int, found: _Looked) -> int | None:
        return self.parse(place, found.content, found.records) if self.parse and found.is_plain else None

    def _exact(self, content: bytes) -> int:
        is_one = self.lines.records_test(self.expected)
        return sum(1 for line in content.splitlines(keepends=True) if is_one(line))

    def _records_in(self, content: bytes) -> list[bytes]:
        is_one = self.lines.records_test(self.expected)
        return [content_of(line) for line in content.splitlines(keepends=True) if is_one(line)]

    def _keep(self, before: int, bad: Sequence[BadRecord]) -> None:
        """Count bad records, and keep them in the facts until their texts are too large to be sent.

        Args:
            before: number of lines in the range before the line at position 1.
        """
        for record in bad:
            if not self.facts.is_sample and (self.sends_all or not self.facts.bad or self._sent < _SENT_CHARACTERS):
                self.facts.bad.append(replace(record, position=before + (record.position or 0)))
                self._sent += len(record.raw or "")
            self.facts.bad_count += 1


@dataclass(frozen=True, slots=True)
class _Looked:
    """Good lines, the upper bound (inclusive) of their records, the bad records, and whether Arrow may parse lines."""

    content: bytes
    records: int
    bad: Sequence[BadRecord] = ()
    is_plain: bool = False


# --- a file of ranges ---------------------------------------------------------------------------------------------


def verdict_of(facts: Sequence[RangeFacts], on_schema: str | None = None) -> FileVerdict | None:
    """Return the verdict on a file from the facts of its ranges, in their order.

    None if it needs a look at the whole file: the header is not in its first range, or Spark has to read it.
    """
    bad: list[BadRecord] = []
    lines = count = records = 0
    for found in facts:
        bad += [replace(record, position=lines + (record.position or 0)) for record in found.bad]
        count += found.bad_count
        if count > CAPS.bad_rows:
            return FileVerdict.of(too_many(bad, on_schema))
        if found.refused is not None:
            return FileVerdict(refused=found.refused, is_schema=found.is_schema)
        if found.awaits_header or found.is_undecided:
            return None
        if found.fault is not None:
            number, why = lines + found.fault[0], found.fault[1]
            return FileVerdict(refused=f"has a record that cannot be read as it is, number {number}: {why}")
        lines += found.lines
        records += found.records
    return FileVerdict(records=records, is_good=not count, bad=tuple(bad))


def numbered_records_in(
    data: Readable, start: int, end: int, expected: Expected, lines: Lines
) -> Iterator[tuple[int, bytes | None]]:
    """Yield (number from 1 in the range, content) of every line of a range; content is None if it is no record.

    Raises:
        OSError: the range cannot be read.
    """
    number, awaits_header, is_one = 0, start == 0 and expected.header is not None, lines.records_test(expected)
    for _, piece in whole_lines(data, start, end):
        for line in piece.splitlines(keepends=True):
            number += 1
            is_record = is_one(line)
            yield number, content_of(line) if is_record and not awaits_header else None
            awaits_header = awaits_header and not is_record


# --- bytes --------------------------------------------------------------------------------------------------------


def whole_lines(data: Readable, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (place, lines) of the lines that begin in a range, piece by piece, without a byte order mark.

    Lines end with a line feed, except the file's last one. So no range begins behind a carriage return alone.

    Raises:
        Refused: the file's first bytes show another format, or a line is too long.
    """
    if start == 0:
        head = data.read(0, min(data.size, _HEAD_BYTES))
        refuse_by_mark(head)
        at = len(UTF8_MARK) if head.startswith(UTF8_MARK) else 0
        end = min(max(end, at + 1), data.size)  # a mark is no line, even if the cut is in it
    else:
        found = _line_feed(data, start - 1, end - 1)
        if found is None:
            return
        at = found + 1
    rest, read = b"", at
    while read < end and (piece := data.read(read, min(end, read + CAPS.piece_bytes))):
        read += len(piece)
        rest += piece
        cut = rest.rfind(b"\n") + 1
        if cut:
            require_short_line(rest)
            yield at, rest[:cut]
            at += cut
            rest = rest[cut:]
        require_short_line(rest)
    while rest and (piece := data.read(read, min(data.size, read + _step(rest)))):  # to the end of the last line
        read += len(piece)
        cut = piece.find(b"\n") + 1
        rest += piece[:cut] if cut else piece
        require_short_line(rest)
        if cut:
            break
    if rest:
        yield at, rest


def _step(rest: bytes) -> int:
    return max(_STEP_BYTES, min(len(rest), CAPS.piece_bytes))


def _line_feed(data: Readable, start: int, end: int) -> int | None:
    """Return the place of the first line feed from `start` (inclusive) to `end` (exclusive), None if there is none."""
    while start < end:
        piece = data.read(start, min(end, start + CAPS.piece_bytes))
        if not piece:
            return None
        found = piece.find(b"\n")
        if found >= 0:
            return start + found
        start += len(piece)
    return None
