"""The dialect of a CSV file, and the faults of its records by the rules of Spark's parser.

Rows are parsed by `csv.py`. Faults are quotes that are not closed, too many columns, and headers that name other
columns. Spark silently closes an open quote at the end of the line, and silently puts the values of a reordered header
into wrong columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from drainmark.jobs.formats.bad_records import CAPS, OtherColumns
from drainmark.jobs.formats.column_fit import listed

_NEWLINES = b"\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The reader's options that say where a field ends; `quote` "" means no quote, `comment` b"" no comments."""

    sep: str = ","
    quote: str = '"'
    escape: str = "\\"
    comment: bytes = b""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Dialect:
        """Return the dialect of Spark's options, their names in lower case."""
        sep = options.get("sep", options.get("delimiter", ","))
        return cls(
            sep={"\\t": "\t", "\\\\": "\\"}.get(sep, sep),
            quote=options.get("quote", '"').replace("\0", ""),
            escape=options.get("escape", "\\"),
            comment=options.get("comment", "").encode(),
        )


def quotes_are_closed(chunk: bytes, dialect: Dialect) -> bool:
    """Say whether every quote opens or closes a field of its line; False asks for a closer look."""
    import numpy as np

    quote, escape = dialect.quote.encode(), dialect.escape.encode()
    if not quote or quote not in chunk:
        return True
    if len(quote) > 1 or len(dialect.sep.encode()) > 1 or (escape != quote and escape and escape in chunk):
        return False
    content = np.frombuffer(chunk, np.uint8)
    quotes = np.flatnonzero(content == quote[0])
    if len(quotes) % 2:
        return False
    allowed = np.frombuffer(_NEWLINES + dialect.sep.encode() + (quote if escape == quote else b""), np.uint8)
    opening, closing = quotes[::2], quotes[1::2]
    before, after = content[opening[opening > 0] - 1], content[closing[closing < len(content) - 1] + 1]
    if not (np.isin(before, allowed).all() and np.isin(after, allowed).all()):
        return False
    if b"\r" in chunk.replace(_NEWLINES, b""):
        return False
    ends = np.flatnonzero(content == ord("\n"))
    return bool((np.searchsorted(ends, opening) == np.searchsorted(ends, closing)).all())


def fault_of(line: str, dialect: Dialect) -> str | None:
    """Return the fault in the shape of a line, None if there is none."""
    if len(line) >= CAPS.columns and line.count(dialect.sep) >= CAPS.columns:
        return f"has more than {CAPS.columns} columns"
    if fields_of(line, dialect) is None:
        return "a quote is not closed"
    return None


def fields_of(line: str, dialect: Dialect) -> list[str] | None:
    """Return the fields of a line, None if a quote is not closed."""
    if not dialect.quote or dialect.quote not in line:
        return line.split(dialect.sep)
    fields, end = _record(line, 0, dialect, multiline=False)
    return None if end < 0 else fields


def fault_of_record(text: str, dialect: Dialect) -> str | None:
    """Return why a text is not one record, None if it is; a field in quotes may hold line ends."""
    if not text:
        return "is empty"
    _, end = _record(text, 0, dialect, multiline=True)
    if end < 0:
        return "a quote is not closed"
    return "has several lines" if end <= len(text) else None


def records_of(text: str, dialect: Dialect) -> Iterator[str]:
    """Yield the records of a text in which fields in quotes may hold line ends; blank ones are left out."""
    at = 0
    while 0 <= at < len(text):
        _, after = _record(text, at, dialect, multiline=True)
        record = text[at : after - 1 if after > 0 else len(text)].rstrip("\r")
        if record.strip():
            yield record
        at = after


def ends_closed(text: str, dialect: Dialect) -> bool:
    """Say whether the last quote is closed in a file with fields that may hold line ends."""
    if not dialect.quote or dialect.quote not in text:
        return True
    at = 0
    while 0 <= at < len(text):
        _, at = _record(text, at, dialect, multiline=True)
    return at >= 0


def _record(text: str, at: int, dialect: Dialect, *, multiline: bool) -> tuple[list[str], int]:
    """Return the fields of the record at a place, and the place of the next record; -1 if a quote is open."""
    fields: list[str] = []
    stop = -1 if multiline else len(text)
    while True:
        start = at
        if dialect.quote and text.startswith(dialect.quote, at):
            at = _closing(text, at, dialect)
            if at < 0:
                return fields, -1
        if stop < at:  # a line end within quotes is none
            stop = _next(text, at, "\n")
        end = text.find(dialect.sep, at, stop)
        fields.append(_unquoted(text[start : stop if end < 0 else end], dialect))
        if end < 0:
            return fields, stop + 1
        at = end + len(dialect.sep)


def _closing(text: str, start: int, dialect: Dialect) -> int:
    """Return the place behind the quote that closes a field, or is stray and so makes it unquoted; -1 for none."""
    at = start + 1
    while True:
        quote = text.find(dialect.quote, at)
        if quote < 0:
            return -1
        if dialect.escape == dialect.quote:
            if text.startswith(dialect.quote, quote + 1):
                at = quote + 2
                continue
        elif dialect.escape and _is_escaped(text, at, quote, dialect.escape):
            at = quote + 1
            continue
        return quote + 1


def _is_escaped(text: str, start: int, place: int, escape: str) -> bool:
    before = place
    while before > start and text[before - 1] == escape:
        before -= 1
    return (place - before) % 2 == 1


def _next(text: str, at: int, wanted: str) -> int:
    found = text.find(wanted, at)
    return len(text) if found < 0 else found


def _unquoted(field: str, dialect: Dialect) -> str:
    quote = dialect.quote
    is_quoted = quote and len(field) > 1 and field.startswith(quote) and field.endswith(quote)
    return field[1:-1].replace(dialect.escape + quote, quote) if is_quoted else field


@dataclass(frozen=True, slots=True)
class RecordEnds:
    """The patterns that find the ends of records whose fields may have line ends within quotes.

    Attributes:
        record: matches a whole record with its end.
        rest: matches the rest of a record, from within quotes.
        quoted: matches a field in quotes.
    """

    record: re.Pattern[bytes]
    rest: re.Pattern[bytes] | None
    quoted: re.Pattern[bytes] | None

    @classmethod
    def of(cls, dialect: Dialect) -> RecordEnds | None:
        """Return the patterns that find a dialect's records as Spark's parser does; None if only the parser can."""
        marks = (dialect.sep, dialect.quote, dialect.escape)
        if len(dialect.sep) != 1 or any(len(mark) > 1 or not mark.isascii() for mark in marks) or dialect.comment:
            return None
        return _record_ends(*(mark.encode() for mark in marks))

    def end(self, content: bytes, at: int, *, is_quoted: bool) -> int:
        """Return the place behind the record that begins, or continues, at a place; -1 if it does not end."""
        pattern = self.rest if is_quoted else self.record
        found = pattern.match(content, at) if pattern is not None else None
        return found.end() if found is not None else -1

    def is_open_after(self, content: bytes, *, is_quoted: bool) -> bool:
        """Say whether the place behind lines is within quotes.

        Args:
            is_quoted: the lines begin within quotes.
        """
        at = 0
        while 0 <= at < len(content):
            at = self.end(content, at, is_quoted=is_quoted)
            is_quoted = False
        return at < 0


@lru_cache(maxsize=64)
def _record_ends(sep: bytes, quote: bytes, escape: bytes) -> RecordEnds:
    sep, quote, escape = re.escape(sep), re.escape(quote), re.escape(escape)
    bare = rb"[^%b\n]*+" % sep
    if not quote:
        return RecordEnds(re.compile(rb"[^\n]*+\n"), None, None)
    if escape == quote:
        within = rb"(?:[^%b]++|%b%b)*+%b" % (quote, quote, quote, quote)
    elif escape:
        within = rb"(?:[^%b%b]++|%b[\s\S])*+%b" % (quote, escape, escape, quote)
    else:
        within = rb"[^%b]*+%b" % (quote, quote)
    one = rb"(?:(?!%b)%b|%b%b%b)" % (quote, bare, quote, within, bare)
    others = rb"(?:%b%b)*+\n" % (sep, one)
    return RecordEnds(
        record=re.compile(one + others),
        rest=re.compile(within + bare + others),
        quoted=re.compile(rb"(?:(?<=[%b\n])|\A)%b%b" % (sep, quote, within)),
    )


def check_header(line: bytes, wanted: Sequence[str], dialect: Dialect) -> None:
    """Compare a header with the declared columns: the same names in the same order, in upper or lower case.

    Raises:
        OtherColumns: they differ, or a quote is open; the message names the columns that are new, missing or moved.
    """
    fields = fields_of(line.decode(errors="replace"), dialect)
    if fields is None:
        raise OtherColumns("has a header with a quote that is not closed")
    found = [name.strip().casefold() for name in fields]
    declared = [name.casefold() for name in wanted]
    if found == declared:
        return
    added = [name for name in fields if name.strip().casefold() not in declared]
    missing = [name for name in wanted if name.casefold() not in found]
    said = [f"{what}: {listed(names)}" for what, names in (("not declared", added), ("missing", missing)) if names]
    if not said:
        said = [f"in another order, or twice: {listed(fields)}; declared: {listed(wanted)}"]
    raise OtherColumns(f"has a header that differs from the declared columns; {'; '.join(said)}")
