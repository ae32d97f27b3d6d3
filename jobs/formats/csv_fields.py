"""The fields of a CSV file, by its dialect: where records and fields end, and what the text of a field is.

A field that begins with a quote ends at the next quote that is neither doubled nor escaped; only blanks may stand
between it and the separator. In it two quotes are a quote, and the escape makes a quote or an escape an ordinary
character. Any other field is taken as it stands. An empty field is null, in quotes as well.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from drainmark.jobs.formats.bad_records import CAPS, OtherColumns, listed

_NEWLINES = b"\r\n"
_LINE_END = re.compile("\r\n|\r|\n")


class NoRecord(ValueError):
    """A text is no record; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The options that say where a field ends; `quote` "" means no quote, `escape` "" no escape, `comment` b"" none.

    Attributes:
        null: text of a field that is null, besides the empty one.
        trims_left, trims_right: blanks before or behind a field that is not in quotes are no part of it.
    """

    sep: str = ","
    quote: str = '"'
    escape: str = "\\"
    comment: bytes = b""
    null: str = ""
    trims_left: bool = False
    trims_right: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Dialect:
        """Return the dialect of options, their names in lower case; they have the names of Spark's reader."""
        sep = options.get("sep", options.get("delimiter", ","))
        return cls(
            sep={"\\t": "\t", "\\\\": "\\"}.get(sep, sep),
            quote=options.get("quote", '"').replace("\0", ""),
            escape=options.get("escape", "\\").replace("\0", ""),
            comment=options.get("comment", "").replace("\0", "").encode(),
            null=options.get("nullvalue", ""),
            trims_left=options.get("ignoreleadingwhitespace", "false").lower() == "true",
            trims_right=options.get("ignoretrailingwhitespace", "false").lower() == "true",
        )

    @property
    def blanks(self) -> str:
        """Return the characters that may surround a field in quotes, and of which a line alone is no record."""
        return "".join(chr(each) for each in range(33) if chr(each) not in self.sep)

    @property
    def fault(self) -> tuple[str, str] | None:
        """Return why the dialect cannot be read, and the remedy; None if it can be."""
        for name, mark in (("quote", self.quote), ("escape", self.escape), ("comment", self.comment.decode())):
            if len(mark) > 1:
                return f"the option {name!r} has several characters: {mark!r}", f"give {name!r} one character"
            if mark and mark in self.sep + "\r\n":
                return f"the option {name!r} is a separator: {mark!r}", f"give {name!r} another character"
        if not self.sep or set(self.sep) & set("\r\n"):
            return f"fields cannot be separated by {self.sep!r}", 'give the option "sep" a text without line ends'
        return None


# --- one record ---------------------------------------------------------------------------------------------------


def fields_of(record: str, dialect: Dialect) -> list[str | None]:
    """Return the texts of a record's fields, None for null; a field in quotes may hold line ends.

    Raises:
        NoRecord: a quote is not closed, text stands behind a closing quote, or there are too many fields.
    """
    has_quotes = bool(dialect.quote) and dialect.quote in record
    texts = None
    if not dialect.trims_left and not dialect.trims_right:
        texts = _doubled(record, dialect) if has_quotes else record.split(dialect.sep)
    found: list[str | None]
    if texts is None:
        found = list(_fields(record, dialect))
    elif dialect.null or "" in texts:
        found = [None if text in ("", dialect.null) else text for text in texts]
    else:
        found = [*texts]
    if len(found) > CAPS.columns:
        raise NoRecord(f"has more than {CAPS.columns} columns")
    return found


def has_lines(record: str, dialect: Dialect) -> bool:
    """Say whether a line end stands outside of the quotes of a record's fields."""
    marks, at = _marks(dialect), 0
    while (field := marks.field.match(record, at)) is not None:
        first, last = field.span("quoted")
        outside = field.group() if field["bare"] is not None else record[at:first] + record[last : field.end()]
        if _LINE_END.search(outside):
            return True
        if not field["end"]:
            break
        at = field.end()
    return False


def _doubled(record: str, dialect: Dialect) -> list[str] | None:
    """Return the fields of a record without escapes, by Python's parser, in a sixth of the time; None if it may differ.

    `test_csv_fields.py` compares both.
    """
    is_escaped = dialect.escape not in ("", dialect.quote) and dialect.escape in record
    if is_escaped or dialect.null or len(dialect.sep) > 1:
        return None
    try:
        (fields,) = csv.reader((record,), delimiter=dialect.sep, quotechar=dialect.quote, strict=True)
    except (csv.Error, ValueError):
        return None
    return fields


def _fields(record: str, dialect: Dialect) -> Iterator[str | None]:
    marks, at = _marks(dialect), 0
    while True:
        field = marks.field.match(record, at)
        if field is None:
            raise NoRecord(_fault_of_quotes(record, at, dialect))
        text = field["bare"]
        if text is None:
            text = marks.escaped.sub(_unescaped, field["quoted"])
            yield None if text == dialect.null else text
        else:
            if dialect.trims_left:
                text = text.lstrip(dialect.blanks)
            if dialect.trims_right:
                text = text.rstrip(dialect.blanks)
            yield None if text in ("", dialect.null) else text
        at = field.end()
        if not field["end"]:
            return


def _unescaped(found: re.Match[str]) -> str:
    return found.group()[1:]


def _fault_of_quotes(record: str, at: int, dialect: Dialect) -> str:
    """Return why no field begins at a place."""
    opened = _marks(dialect).opened.match(record, at)
    if opened is not None:
        behind = record[opened.end() :].split(dialect.sep, 1)[0]
        return f"has text behind a closing quote: {behind[:64]!r}"
    escaped = dialect.escape + dialect.quote
    if dialect.escape not in ("", dialect.quote) and escaped in record[at:]:
        return (
            f"a quote is not closed, and {escaped} closes none: options={{\"escape\": '{dialect.quote}'}} changes that"
        )
    return "a quote is not closed"


@dataclass(frozen=True, slots=True)
class _Marks:
    """Patterns of a dialect with quotes.

    Attributes:
        field: a field with its separator or the end of the record.
        opened: a field in quotes alone, up to the closing one.
        escaped: an escaped quote or escape.
    """

    field: re.Pattern[str]
    opened: re.Pattern[str]
    escaped: re.Pattern[str]


@lru_cache(maxsize=64)
def _marks(dialect: Dialect) -> _Marks:
    sep, quote, blanks = re.escape(dialect.sep), re.escape(dialect.quote), f"[{re.escape(dialect.blanks)}]*+"
    first = f"{blanks}" if dialect.trims_left else ""
    end = rf"(?P<end>{sep}|\Z)"
    if not quote:
        return _Marks(re.compile(rf"(?s)(?P<quoted>(?!))|(?P<bare>.*?){end}"), re.compile("(?!)"), re.compile("(?!)"))
    escaped = f"{quote}{quote}"
    if dialect.escape not in ("", dialect.quote):
        escape = re.escape(dialect.escape)
        escaped += f"|{escape}{quote}|{escape}{escape}"
        inner = rf"(?:[^{quote}{escape}]++|{escaped}|{escape}(?!{quote}))*+"
    else:
        inner = rf"(?:[^{quote}]++|{escaped})*+"
    quoted = rf"{first}{quote}(?P<quoted>{inner}){quote}"
    bare = rf"(?!{first}{quote})(?P<bare>.*?)"
    return _Marks(
        field=re.compile(rf"(?s)(?:{quoted}{blanks}|{bare}){end}"),
        opened=re.compile(rf"(?s){quoted}"),
        escaped=re.compile(escaped),
    )


# --- many records -------------------------------------------------------------------------------------------------


def quotes_are_plain(chunk: bytes, dialect: Dialect) -> bool:
    """Say whether every quote opens or closes a field of its line, or is doubled in one; False asks for more."""
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
    allowed = np.frombuffer(_NEWLINES + dialect.sep.encode() + quote, np.uint8)
    opening, closing = quotes[::2], quotes[1::2]
    before, after = content[opening[opening > 0] - 1], content[closing[closing < len(content) - 1] + 1]
    if not (np.isin(before, allowed).all() and np.isin(after, allowed).all()):
        return False
    ends = np.flatnonzero(content == ord("\n"))
    return bool((np.searchsorted(ends, opening) == np.searchsorted(ends, closing)).all())


def records_in(text: str, dialect: Dialect, *, is_multiline: bool, line_end: bytes | None) -> Iterator[tuple[int, str]]:
    """Yield the records of the text of a file with their numbers from 1; blank lines and comments are only numbered.

    Args:
        is_multiline: fields in quotes may hold line ends.
        line_end: the text that ends each record, None for the usual line ends.
    """
    comment, text = dialect.comment.decode(), text.removeprefix("\ufeff")
    lines = _LINE_END.split(text) if line_end is None else text.split(line_end.decode())
    for number, record in enumerate(_whole_records(text, dialect) if is_multiline else lines, 1):
        if record.strip(dialect.blanks) and not (comment and record.startswith(comment)):
            yield number, record


def _whole_records(text: str, dialect: Dialect) -> Iterator[str]:
    content, at, ends = text.encode(), 0, RecordEnds.of(dialect)
    while 0 <= at < len(content):
        after = ends.end(content, at, is_quoted=False)
        record = content[at : after if after >= 0 else len(content)]
        yield record.removesuffix(b"\n").removesuffix(b"\r").decode()
        at = after


@dataclass(frozen=True, slots=True)
class RecordEnds:
    """The patterns that find the ends of records whose fields may have line ends within quotes.

    Attributes:
        record: matches a whole record with its end.
        rest: matches the rest of a record, from within quotes.
    """

    record: re.Pattern[bytes]
    rest: re.Pattern[bytes] | None

    @classmethod
    def of(cls, dialect: Dialect) -> RecordEnds:
        """Return the patterns of a dialect whose separator is one character, and which has no comments."""
        return _record_ends(dialect.sep.encode(), dialect.quote.encode(), dialect.escape.encode())

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
    bare = rb"(?:(?!%b)[^\n])*+" % re.escape(sep)
    if not quote:
        return RecordEnds(re.compile(rb"[^\n]*+\n"), None)
    ends = quote if escape in (b"", quote) else quote + escape
    others = rb"[^%b]" % re.escape(ends)
    if not ends.isascii():  # a class has bytes, and other characters share some of those
        others = rb"(?:(?!%b|%b)[\s\S])" % (re.escape(quote), re.escape(escape or quote))
    sep, quote, escape = re.escape(sep), re.escape(quote), re.escape(escape or quote)
    pair = rb"%b%b" % (quote, quote) if escape == quote else rb"%b%b|%b[\s\S]" % (quote, quote, escape)
    within = rb"(?:%b++|%b)*+%b" % (others, pair, quote)
    one = rb"(?:(?!%b)%b|%b%b%b)" % (quote, bare, quote, within, bare)
    further = rb"(?:%b%b)*+\n" % (sep, one)
    return RecordEnds(record=re.compile(one + further), rest=re.compile(within + bare + further))


def header_of(line: bytes, dialect: Dialect) -> list[str]:
    """Return the names in a header, without the blanks around them.

    Raises:
        OtherColumns: it is no record.
    """
    try:
        return [(name or "").strip() for name in fields_of(line.decode(errors="replace"), dialect)]
    except NoRecord as fault:
        raise OtherColumns(f"has a header that cannot be read: {fault}") from None


_SEPARATORS = (";", "\t", "|", ",")


def check_header(line: bytes, wanted: Sequence[str], dialect: Dialect) -> None:
    """Compare a header with the declared columns: the same names in the same order, in upper or lower case.

    Raises:
        OtherColumns: they differ, or the header is no record; the message names columns that are new, missing or moved.
    """
    fields = header_of(line, dialect)
    found = [name.casefold() for name in fields]
    declared = [name.strip().casefold() for name in wanted]
    if found == declared:
        return
    added = [name for name in fields if name.casefold() not in declared]
    missing = [name for name in wanted if name.strip().casefold() not in found]
    twice = [name for name, times in Counter(found).items() if times > 1]
    columns = (("not declared", added), ("missing", missing), ("twice", twice))
    said = [f"{what}: {listed(names)}" for what, names in columns if names]
    if not said:
        said = [f"in another order: {listed(fields)}; declared: {listed(wanted)}"]
    for sep in _SEPARATORS if len(fields) == 1 else ():
        if [name.strip().casefold() for name in fields[0].split(sep)] == declared:
            said.append(f'its separator is {sep!r}: options={{"sep": {json.dumps(sep)}}} reads it')
    raise OtherColumns(f"has a header that differs from the declared columns; {'; '.join(said)}")
