"""Ranges of a file whose records may have line ends within quotes, such as CSV with `multiLine`.

Only the text before a range tells whether the range begins within quotes, so whether its first line begins a record.
So a first look finds for each range whether its end is within quotes, for both cases: the range begins outside of
quotes, or within. Put together, the answers tell how each range begins. A second look takes the records that begin in
each range.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from drainmark.jobs.formats.bad_records import CAPS, FileVerdict, OtherColumns, Refused
from drainmark.jobs.formats.csv_dialect import RecordEnds
from drainmark.jobs.formats.format import Expected, Lines
from drainmark.jobs.formats.lines.line_format import BLANK, require_text
from drainmark.jobs.formats.lines.line_ranges import Leave, RangeFacts, Readable, whole_lines

_LOOKED_AT = 256 * 1024
"""First bytes of a file, in which Spark's parser surely looks for the first line end; later ones may count as data."""


# --- the first look -----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class EdgeFacts:
    """The findings of a first look at a range.

    Attributes:
        quoted_after: the next range begins within quotes: if this one begins outside of quotes, and if within.
        line_end: the first one in the range; "\\r" also if it is not sure that Spark's parser sees it.
        refused, is_schema, awaits_header: see `RangeFacts`.
    """

    quoted_after: tuple[bool, bool] = (False, True)
    line_end: str = ""
    refused: str | None = None
    is_schema: bool = False
    awaits_header: bool = False


def edge_facts(data: Readable, start: int, end: int, expected: Expected) -> EdgeFacts:
    """Return the findings of a first look at the lines that begin in a range.

    Raises:
        OSError: the range cannot be read.
    """
    lines, ends = record_ends(expected)
    facts = EdgeFacts(awaits_header=start == 0 and expected.header is not None)
    after = [False, True]
    try:
        for place, piece in whole_lines(data, start, end):
            facts.awaits_header = facts.awaits_header and not lines.has_header(piece, expected)
            require_text(piece, place)
            facts.line_end = facts.line_end or _first_line_end(piece, place)
            whole = piece if piece.endswith(b"\n") else piece + b"\n"
            found = {is_quoted: ends.is_open_after(whole, is_quoted=is_quoted) for is_quoted in set(after)}
            after = [found[is_quoted] for is_quoted in after]
    except Refused as refused:
        facts.refused, facts.is_schema = str(refused), isinstance(refused, OtherColumns)
    facts.quoted_after = (after[0], after[1])
    return facts


def record_ends(expected: Expected) -> tuple[Lines, RecordEnds]:
    """Return the rules for records that may have several lines, and the patterns that find them.

    Raises:
        TypeError: only Spark's own reader finds them.
    """
    ends = expected.lines.record_ends(expected) if expected.lines is not None else None
    if expected.lines is None or ends is None:
        raise TypeError(f"records of {expected.format} are Spark's to find")
    return expected.lines, ends


def _first_line_end(piece: bytes, place: int) -> str:
    found = re.search(rb"\r\n?|\n", piece)
    if found is None:
        return ""
    return found.group().decode() if place + found.start() < _LOOKED_AT or found.group() == b"\n" else "\r"


def quoted_at(facts: Sequence[EdgeFacts]) -> list[bool] | FileVerdict | None:
    """Return for each range whether it begins within quotes, or the verdict on a file that is refused.

    None if only Spark's own reader finds the records: lines end with a carriage return alone, or the header is not in
    the first range.
    """
    begins, is_quoted = [], False
    for found in facts:
        if found.refused is not None:
            return FileVerdict(refused=found.refused, is_schema=found.is_schema)
        if found.awaits_header:
            return None
        begins.append(is_quoted)
        is_quoted = found.quoted_after[is_quoted]
    if is_quoted:
        return FileVerdict(refused="has a quote that is not closed at the end of the file")
    return None if next((found.line_end for found in facts if found.line_end), "") == "\r" else begins


# --- the second look ----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class RecordJudge:
    """The judge of the records that begin in a range; used once.

    Attributes:
        leave: takes the records, for Spark to parse.
        line_end: of the file.
    """

    expected: Expected
    leave: Leave
    line_end: str
    facts: RangeFacts = field(default_factory=RangeFacts)
    _lines: Lines = field(init=False)
    _ends: RecordEnds = field(init=False)
    _may_be_changed: bool = field(init=False)

    def __post_init__(self) -> None:
        self._lines, self._ends = record_ends(self.expected)
        self._may_be_changed = self._lines.may_be_changed(self.expected)

    def judge(self, data: Readable, start: int, end: int, *, is_quoted: bool) -> RangeFacts:
        """Take the records that begin from `start` (inclusive) to `end` (exclusive).

        Args:
            is_quoted: the range begins within quotes.

        Raises:
            OSError: the range cannot be read.
        """
        self.facts.awaits_header = start == 0 and self.expected.header is not None
        try:
            for place, records in self._records(data, start, end, is_quoted=is_quoted):
                kept = [record for record in records if self._is_kept(record)]
                self.facts.records += len(kept)
                self.leave(place, kept)
        except Refused as refused:
            self.facts.refused = str(refused)
        return self.facts

    def _is_kept(self, record: bytes) -> bool:
        """Count a record and check its values; say whether it becomes a row."""
        facts = self.facts
        if not record:
            return False
        facts.is_undecided |= not record.strip(BLANK) or self._has_bare_return(record)
        facts.lines += 1
        if facts.awaits_header:
            facts.awaits_header = False
            return False
        if facts.fault is None and self._may_be_changed:
            why = self._lines.change_in(record.decode(), self.expected)
            facts.fault = (facts.lines, why) if why is not None else None
        return True

    def _has_bare_return(self, record: bytes) -> bool:
        """Say whether a carriage return is outside of quotes, so that the parser may take it for a line end."""
        if b"\r" not in record:
            return False
        return self._ends.quoted is None or b"\r" in self._ends.quoted.sub(b"", record)

    def _records(self, data: Readable, start: int, end: int, *, is_quoted: bool) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (place, records without their ends)."""
        rest, at = b"", start
        for place, piece in whole_lines(data, start, end):
            content, first = rest + piece, place - len(rest)
            records, after = self._split(content, is_quoted=is_quoted)
            is_quoted = is_quoted and after < 0
            rest, at = content[after:] if after >= 0 else b"", place + len(piece)
            if records:
                yield first, records
            _require_short(rest)
        if rest:
            yield at - len(rest), [self._to_its_end(data, rest, at)]

    def _split(self, content: bytes, *, is_quoted: bool) -> tuple[list[bytes], int]:
        """Return the whole records of lines, and the place of the first incomplete one; -1 if no record begins."""
        at = self._ends.end(content, 0, is_quoted=True) if is_quoted else 0
        records: list[bytes] = []
        while 0 <= at < len(content):
            after = self._ends.end(content, at, is_quoted=False)
            if after < 0:
                break
            records.append(self._less_end(content[at:after]))
            at = after
        return records, at

    def _to_its_end(self, data: Readable, rest: bytes, at: int) -> bytes:
        """Return the record that begins in a range and ends beyond it."""
        for _, piece in whole_lines(data, at, data.size) if at < data.size else ():
            rest += piece
            if (after := self._ends.end(rest, 0, is_quoted=False)) >= 0:
                rest = rest[:after]
                break
            _require_short(rest)
        return self._less_end(rest)

    def _less_end(self, record: bytes) -> bytes:
        """Return a record without its end, with line ends within quotes as Spark's reader gives them."""
        if self.line_end != "\r\n":
            return record.removesuffix(b"\n")
        content = record.removesuffix(b"\r\n")
        self.facts.is_undecided |= content.endswith(b"\n") and content == record  # a line feed alone ends no record
        return content.replace(b"\r\n", b"\n")


def _require_short(record: bytes) -> None:
    if len(record) > CAPS.document_bytes:
        raise Refused(f"has a record of more than {CAPS.document_bytes} bytes")
