"""Ranges of a file of lines: each is read without the others, and the facts of all of them give a verdict.

A line belongs to the range in which it begins; a line that crosses a cut is read to its end. Line numbers count from
the beginning of the range, and are added up once the facts of all ranges are known. So many tasks can read a file of
any size, each holds only a few pieces of it, and the rows and the verdict are the same as those of one range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.bad_records import CAPS, BadRecord, FileVerdict, OtherColumns, Refused, too_many
from drainmark.jobs.formats.format import Expected, Lines, no_collection
from drainmark.jobs.formats.lines.content import (
    UTF8_MARK,
    Readable,
    fault_of_text,
    is_utf8,
    read_whole,
    refuse_by_mark,
    separated,
    whole_lines,
)
from drainmark.jobs.formats.lines.record_ranges import whole_records

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.formats.bad_records import Parsed

_SENT_CHARACTERS = 1024 * 1024
"""Characters of the texts of bad records that go with the facts of a range; further ones are sent only on request."""


@dataclass(slots=True, kw_only=True)
class RangeFacts:
    """The findings in one range.

    Attributes:
        lines: number of lines that begin in it; of records, if records are not lines.
        records: number of good ones, each a row.
        bad: the bad records, or at least the first ones; positions count from 1 in the range.
        bad_count: number of bad records; the count stops once it is above `CAPS.bad_rows`.
        refused: why nothing of the file is to be read, as far as this range shows.
        is_schema: it is refused because its columns differ from the declared ones.
        awaits_header: the header was not in the range.
    """

    lines: int = 0
    records: int = 0
    bad: list[BadRecord] = field(default_factory=list)
    bad_count: int = 0
    refused: str | None = None
    is_schema: bool = False
    awaits_header: bool = False

    @property
    def is_sample(self) -> bool:
        """Say whether there are more bad records than `bad` has."""
        return len(self.bad) < self.bad_count

    def refuse(self, refused: Refused) -> None:
        """Note why nothing of the file is to be read."""
        self.refused, self.is_schema = str(refused), isinstance(refused, OtherColumns)

    def note(self, bad: Sequence[BadRecord], *, sends_all: bool) -> None:
        """Count bad records, and keep them until their texts are too large to be sent.

        Args:
            sends_all: keep all.
        """
        sent = sum(len(record.raw or "") for record in self.bad)
        for record in bad[: CAPS.bad_rows + 1 - self.bad_count]:
            if not self.is_sample and (sends_all or not self.bad or sent < _SENT_CHARACTERS):
                self.bad.append(record)
                sent += len(record.raw or "")
            self.bad_count += 1


_NOTHING = asdict(RangeFacts())


@dataclass(slots=True, kw_only=True)
class RangeReader:
    """The reader of one range; used once.

    Attributes:
        sends_all: all bad records go into the facts.
        is_quoted: the range begins within quotes; only if records may have several lines.
    """

    expected: Expected
    lines: Lines
    sends_all: bool = False
    is_quoted: bool = False
    facts: RangeFacts = field(default_factory=RangeFacts)

    def read(self, data: Readable, start: int, end: int) -> Iterator[tuple[int, pa.Table]]:
        """Yield (place, rows) of the records that begin from `start` (inclusive) to `end` (exclusive).

        When the iteration ends, `facts` is complete.

        Raises:
            OSError: the range cannot be read.
        """
        self.facts.awaits_header = start == 0 and self.expected.header is not None
        try:
            yield from self._rows(data, start, end)
        except Refused as refused:
            self.facts.refuse(refused)

    def _rows(self, data: Readable, start: int, end: int) -> Iterator[tuple[int, pa.Table]]:
        records = self._records(data, start, end)
        if records is not None:
            parts = ((place, self._of_records(found)) for place, found in records)
        else:
            parts = ((place, self._of_lines(piece)) for place, piece in whole_lines(data, start, end))
        for place, rows in parts:
            if rows is not None and rows.num_rows:
                yield place, rows
            if self.facts.bad_count > CAPS.bad_rows:
                return

    def _records(self, data: Readable, start: int, end: int) -> Iterator[tuple[int, list[bytes]]] | None:
        """Yield (place, records) of content whose records are not lines; return None if they are."""
        expected = self.expected
        if expected.is_whole_text:
            whole = read_whole(data)
            return iter([(0, [whole] if whole else [])])
        if expected.line_end is not None:
            return separated(data, expected.line_end)
        if not expected.is_multiline:
            return None
        if self.lines.has_documents:
            return self._documents(data)
        return whole_records(data, start, end, expected.dialect, is_quoted=self.is_quoted)

    def _documents(self, data: Readable) -> Iterator[tuple[int, list[bytes]]]:
        whole = read_whole(data)
        if fault := fault_of_text(whole):
            raise Refused(f"is {fault}" if fault.startswith("not") else fault)
        yield 0, list(self.lines.documents(whole.decode(), self.expected))

    # --- several small files at once ---------------------------------------------------------------------------------

    def begun(self, content: bytes) -> bytes:
        """Return the lines of a whole file behind its mark and its header, and count those before.

        Raises:
            Refused: the file cannot be read.
        """
        refuse_by_mark(content)
        lines = content.removeprefix(UTF8_MARK)
        if lines.startswith(UTF8_MARK):
            raise Refused("has two byte order marks")
        self.facts.awaits_header = self.expected.header is not None
        return self._less_header(lines) if self.facts.awaits_header else lines

    def count(self, lines: bytes) -> int:
        """Count whole lines; return their number."""
        number = _lines_in(lines) if lines else 0
        self.facts.lines += number
        return number

    # --- records ----------------------------------------------------------------------------------------------------

    def _of_lines(self, piece: bytes) -> pa.Table | None:
        """Return the rows of whole lines, None if there are none."""
        if self.facts.awaits_header:
            piece = self._less_header(piece)
        if not piece:
            return None
        found = self.lines.parse_quickly(piece, self.expected) if may_be_quick(piece) else None
        if found is not None and not found.faults:
            self.facts.lines += _lines_in(piece)
            self.facts.records += found.rows.num_rows
            return found.rows
        numbered = [*self._numbered(piece)]
        if found is None:
            return self._kept(numbered, self.facts.lines + _lines_in(piece))
        return self._judged(found, numbered, self.facts.lines + _lines_in(piece))

    def _of_records(self, records: Sequence[bytes]) -> pa.Table | None:
        """Return the rows of records, None if there are none."""
        is_record, first = self.lines.record_test(self.expected), self.facts.lines
        numbered = [each for each in enumerate(records, first + 1) if is_record(each[1])]
        if self.facts.awaits_header and numbered:
            self.lines.check_header(numbered.pop(0)[1], self.expected)
            self.facts.awaits_header = False
        return self._kept(numbered, first + len(records))

    def _less_header(self, piece: bytes) -> bytes:
        """Return the lines behind the header; lines before it are no records."""
        at, is_record = 0, self.lines.record_test(self.expected)
        for line in piece.splitlines(keepends=True):
            self.facts.lines += 1
            at += len(line)
            if is_record(line):
                self.lines.check_header(content_of_line(line), self.expected)
                self.facts.awaits_header = False
                break
        return piece[at:]

    def _numbered(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (number from 1 in the range, content) of the lines that are records."""
        is_record = self.lines.record_test(self.expected)
        for number, line in enumerate(piece.splitlines(keepends=True), self.facts.lines + 1):
            if is_record(line):
                yield number, content_of_line(line)

    def _kept(self, numbered: Sequence[tuple[int, bytes]], lines: int) -> pa.Table | None:
        """Parse records; return the rows of the good ones, and note the others.

        Args:
            lines: number of lines in the range up to the last one of these.
        """
        faults = {place: fault for place, (_, text) in enumerate(numbered) if (fault := fault_of_text(text))}
        texts = [each for place, each in enumerate(numbered) if place not in faults] if faults else numbered
        bad = [BadRecord.of(*numbered[place], reason) for place, reason in faults.items()]
        if not texts:
            self.facts.note(bad, sends_all=self.sends_all)
            self.facts.lines = lines
            return None
        with no_collection():
            found = self.lines.parse([text for _, text in texts], self.expected)
        return self._judged(found, texts, lines, bad)

    def _judged(
        self, found: Parsed, numbered: Sequence[tuple[int, bytes]], lines: int, bad: Sequence[BadRecord] = ()
    ) -> pa.Table:
        """Return the rows of the good records, and note the others."""
        more = [BadRecord.of(*numbered[place], reason) for place, reason in found.faults.items()]
        self.facts.note(sorted([*bad, *more], key=lambda record: record.position or 0), sends_all=self.sends_all)
        rows = found.good
        self.facts.lines = lines
        self.facts.records += rows.num_rows
        return rows


def may_be_quick(lines: bytes) -> bool:
    """Say whether `Lines.parse_quickly` may read lines: they are text, without a mark, which Arrow would drop."""
    return 0 not in lines and is_utf8(lines) and not lines.startswith(UTF8_MARK)


def content_of_line(line: bytes) -> bytes:
    """Return a line without its end."""
    return line.rstrip(b"\r\n")


def _lines_in(piece: bytes) -> int:
    """Count lines, which may end with line feeds, carriage returns or both."""
    lines = piece.count(b"\n")
    if b"\r" in piece:
        lines += piece.count(b"\r") - piece.count(b"\r\n")
    return lines + (not piece.endswith((b"\n", b"\r")))


# --- a file of ranges ---------------------------------------------------------------------------------------------


def verdict_of(facts: Sequence[RangeFacts], on_schema: str | None = None) -> FileVerdict:
    """Return the verdict on a file from the facts of its ranges, in their order."""
    bad: list[BadRecord] = []
    lines = count = records = 0
    for found in facts:
        bad += [replace(record, position=lines + (record.position or 0)) for record in found.bad]
        count += found.bad_count
        if count > CAPS.bad_rows:
            return FileVerdict.of(too_many(bad[: CAPS.bad_rows + 1], on_schema))
        if found.refused is not None:
            return FileVerdict(refused=found.refused, is_schema=found.is_schema)
        lines += found.lines
        records += found.records
    if facts and facts[0].awaits_header and lines > facts[0].lines:
        return FileVerdict(refused=f"has no header in its first {facts[0].lines} lines")
    return FileVerdict(records=records, bad=tuple(bad))


def told_of(facts: RangeFacts) -> dict[str, Any]:
    """Return facts as a task tells them in JSON: the facts of a fine file, of which there are many, are two numbers."""
    told = {name: value for name, none in _NOTHING.items() if (value := getattr(facts, name)) != none}
    return {**told, "bad": [asdict(record) for record in facts.bad]} if facts.bad else told


def facts_of(told: Mapping[str, Any]) -> RangeFacts:
    """Return facts that a task told as JSON."""
    return RangeFacts(**{**told, "bad": [BadRecord(**record) for record in told.get("bad", ())]})
