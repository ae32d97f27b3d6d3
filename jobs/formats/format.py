"""The interface of a file format: how its files are judged, parsed and read.

`formats` finds each module of this folder that has a `FORMAT`. So a new format is one file: a subclass of `Format`, or
of `jobs.formats.lines.line_format.LineFormat` with its `Lines` if records are lines.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
import re
from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from drainmark.jobs.formats.bad_records import Parsed, Readable
from drainmark.jobs.formats.column_fit import Columns, Found
from drainmark.jobs.formats.csv_fields import Dialect
from drainmark.jobs.formats.values.grammar import Rules, pattern_fault
from drainmark.jobs.frames.tags import RESCUED, plain_types

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The declaration of the files of one output.

    Attributes:
        format: name of a `Format`.
        columns: as declared; None for text.
        options: names in lower case.
        rounding: how decimals with too many digits are rounded; None: they may not be.
        on_schema: the treatment of columns that are not declared; see `DirectoryScan`.
    """

    format: str
    columns: Columns | None
    options: Mapping[str, str] = field(default_factory=dict)
    rounding: str | None = None
    on_schema: str | None = None

    @property
    def reads(self) -> Format:
        return format_of(self.format)

    @property
    def lines(self) -> Lines | None:
        return self.reads.lines

    @property
    def rules(self) -> Rules:
        return Rules.of(self.options, self.rounding)

    @property
    def dialect(self) -> Dialect:
        return Dialect.of(self.options)

    @property
    def is_multiline(self) -> bool:
        """Say whether a file is one document, or its records may have several lines."""
        return self.options.get("multiline", "false").lower() == "true"

    @property
    def is_whole_text(self) -> bool:
        """Say whether a file is one record."""
        return self.options.get("wholetext", "false").lower() == "true"

    @property
    def encoding(self) -> str | None:
        """Return the declared encoding, None for UTF-8."""
        named = self.options.get("encoding", self.options.get("charset", "UTF-8"))
        return None if named.upper().replace("-", "") == "UTF8" else named

    @property
    def line_end(self) -> bytes | None:
        """Return the text that ends each record, None for the usual line ends."""
        end = self.options.get("linesep")
        return end.encode() if end is not None else None

    @property
    def refuses_others(self) -> bool:
        """Say whether a record or file with columns that are not declared is bad."""
        return self.on_schema in ("quarantine", "halt")

    @property
    def header(self) -> tuple[str, ...] | None:
        """Return the names that a file's first record must have, None if files have no header."""
        return self.lines.header(self) if self.lines is not None else None


class Lines:
    """The rules for the records of a format with lines.

    Attributes:
        has_documents: with the option `multiLine` a file is one document; else its records may have several lines.
        has_tombstones: a record, or a key without one, may say that there is nothing: it has no row, and is not bad.
    """

    has_documents: ClassVar[bool] = False
    has_tombstones: ClassVar[bool] = False

    def header(self, expected: Expected) -> tuple[str, ...] | None:
        """Return the names that the first record must have, None for no header."""
        return None

    def check_header(self, record: bytes, expected: Expected) -> None:
        """Compare a header with the declared columns; called only if files have a header.

        Raises:
            OtherColumns: it does not have the declared columns.
        """

    def record_test(self, expected: Expected) -> Callable[[bytes], bool]:
        """Return a test that says whether a line is a record, or a header; blank lines and comments are none."""
        return lambda line: True

    def parse(self, records: Sequence[bytes], expected: Expected) -> Parsed:
        """Make rows of records; this is the definition of what a record is.

        Args:
            records: without line ends, each UTF-8 without NUL.
        """
        raise NotImplementedError

    def parse_keyed(self, records: Sequence[bytes], keys: Sequence[bytes | None], expected: Expected) -> Parsed:
        """Make rows of records as `parse` does; each has a key beside it, or none."""
        return self.parse(records, expected)

    def parse_quickly(self, content: bytes, expected: Expected) -> Parsed | None:
        """Make rows of lines as `parse` does, faster.

        None if a cheap look does not prove that each line with text is one record, and that the rows are the same.

        Args:
            content: whole lines without a header, UTF-8 without NUL.
        """
        return None

    def are_several(self, text: str, expected: Expected) -> bool:
        """Say whether a text with line ends, which comes alone, is more than one record."""
        return False

    def documents(self, text: str, expected: Expected) -> Sequence[bytes]:
        """Return the records of a file that is one document.

        Raises:
            Refused: it is none.
        """
        raise NotImplementedError


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause Python's collector of cycles, which would look at each of a million new values again and again.

    Records have no cycles. Parsing nested JSON takes half of the time so.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Format(ABC):
    """One format of files; users write its `name`.

    Attributes:
        has_schema: users declare the columns.
        columns: DDL of the columns of all files; None if they are declared, or are one column of text.
        added: DDL of the columns that rows have behind the declared ones; then no columns are inferred.
        options: those that files of the format may be declared with, in lower case.
        lines: None if the format has no lines.
        names_columns: a file names its columns, once for all its rows.
        has_ranges: the rows of a range of bytes are read without the other bytes of the file; only without lines.
    """

    name: ClassVar[str]
    has_schema: ClassVar[bool] = True
    columns: ClassVar[str | None] = None
    added: ClassVar[str] = ""
    options: ClassVar[frozenset[str]] = frozenset()
    lines: ClassVar[Lines | None] = None
    names_columns: ClassVar[bool] = False
    has_ranges: ClassVar[bool] = False

    def rows_of(self, data: Readable, expected: Expected, start: int, end: int) -> Iterator[Parsed]:
        """Yield the rows of a file of a format without lines that begin in a range of bytes, in order.

        A row is in one range, however a file is divided, and the ranges in order have the rows in order.

        Args:
            data: the file; it is on a disk of this machine (`LocalFile`) if the format has no ranges.
            start, end: the range, of which `end` is not part; the whole file if the format has no ranges.

        Raises:
            Refused: the rows cannot be read by their declaration.
            ObjectMissing, ObjectChanged, OSError: the disk or the store cannot be read.
        """
        raise NotImplementedError

    def cannot_read(self, expected: Expected) -> tuple[str, str] | None:
        """Return why files of this declaration cannot be read, and the remedy; None if they can be.

        Args:
            expected: may have no columns.
        """
        for option in expected.options:
            if option not in self.options:
                return f"{self.name} files have no option {option!r}", _INSTEAD.get(option, "leave it out")
        for option in _TIME_FORMATS:
            if option in expected.options and (why := pattern_fault(expected.options[option], option)):
                return f"the option {option!r}: {why}", "write another pattern, or declare the column as string"
        return None

    def unreadable(self, kind: DataType) -> str | None:
        """Return why no value of a type is read from files, and what to declare instead; None if some may be."""
        from pyspark.errors import PySparkTypeError
        from pyspark.sql.pandas.types import to_arrow_type

        for each in plain_types(kind):
            try:
                to_arrow_type(each, timezone="UTC")
            except PySparkTypeError:  # such as char(3), interval year to month
                stored = "a string" if "char" in each.typeName() else "the number that the file has"
                return f"no file has values of type {each.simpleString()}: declare {stored}"
        return None

    # --- columns that are not declared -------------------------------------------------------------------------------

    def cannot_compare(self, expected: Expected) -> str | None:
        """Return why `on_schema` is impossible for files of this declaration; None if it is possible."""
        is_nothing = expected.on_schema == "rescue" and not self.has_schema
        return f"{self.name} has no columns but its own" if is_nothing else None

    def columns_in(self, file: BinaryIO, suffix: str, expected: Expected) -> Found | None:
        """Return the columns that a file names; None if it names none that can be read.

        Args:
            suffix: ending of the file's name; it tells the compression.
        """
        return None

    # --- tests -------------------------------------------------------------------------------------------------------

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes | None:
        """Return rows as a file of the format, for the tests of applications; None if its files do not hold rows.

        Args:
            columns: the names of the declared ones, in order.
            schema: gives the declared columns with their types; it starts Spark.
        """
        return None


Rows = Sequence[Mapping[str, Any]]
"""Rows of a test: column name to value."""


_TIME_FORMATS = ("dateformat", "timestampformat", "timestampntzformat")
_BOUNDS = "leave it out: docs/how-to/quarantine.md lists the bounds"
_CALENDAR = "leave it out: a file says which calendar it has, and days of the old one are bad rows"
_BAD = "leave it out: on_bad says what happens to records that cannot be read"
_STRICT = 'leave it out: write JSON as RFC 8259 says, or read format="text" and change the lines in the function'
_INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("mode", "columnnameofcorruptrecord", "ignorecorruptfiles", "unescapedquotehandling"), _BAD),
    **dict.fromkeys(("maxcolumns", "maxcharspercolumn", "maxnestingdepth", "maxnumlen", "maxstringlen"), _BOUNDS),
    **dict.fromkeys(("inferschema", "samplingratio", "preferdate"), "leave out schema=, too, and it is inferred once"),
    **dict.fromkeys(("primitivesasstring", "prefersdecimal"), "declare the columns in schema= as string or decimal"),
    **dict.fromkeys(("datetimerebasemode", "int96rebasemode"), _CALENDAR),
    **dict.fromkeys(("mergeschema", "dropfieldifallnull"), "leave it out: schema= names the columns"),
    "modifiedafter": "start_from= at the source",
    "modifiedbefore": "pattern= at the source names the files to take",
    "compression": "leave it out: the ending of a file's name tells it: .gz, .bz2 or .zst",
    "enabledatetimeparsingfallback": "leave it out: values of another pattern are bad, or declare a string column",
    "singlevariantcolumn": 'read format="text", and take the fields in the function',
    "ignoremissingfiles": 'on_missing="skip" at the source',
    "pathglobfilter": "pattern= at the source",
    "recursivefilelookup": "recursive=True at the source",
    "timezone": "leave it out: times without a zone are UTC; write the zone into the values, as 2026-01-31T12:00+01:00",
    "locale": "leave it out: numbers are written with a point, and names of months in English",
    "enforceschema": "leave it out: a header must name the declared columns",
    "emptyvalue": 'leave it out: an empty field in quotes is null, or an empty text if "nullValue" is given',
    "chartoescapequoteescaping": "leave it out: in quotes the escape makes itself an ordinary character",
    **dict.fromkeys(("allowsinglequotes", "allowcomments", "allowunquotedfieldnames"), _STRICT),
    **dict.fromkeys(("allownumericleadingzeros", "allownonnumericnumbers", "allowunquotedcontrolchars"), _STRICT),
    "allowbackslashescapinganycharacter": _STRICT,
    **dict.fromkeys(("nanvalue", "positiveinf", "negativeinf"), "declare a string column, and cast it in the function"),
}
"""What to write instead of an option of Spark's readers."""


@lru_cache(maxsize=1)
def formats() -> Mapping[str, Format]:
    """Return the formats by name."""
    room = importlib.import_module(__package__)
    modules = sorted(module.name for module in pkgutil.iter_modules(room.__path__))
    found = (getattr(importlib.import_module(f"{room.__name__}.{name}"), "FORMAT", None) for name in modules)
    return {each.name: each for each in found if each is not None}


def with_added(form: str, ddl: str) -> str:
    """Return the DDL of the rows of a format: the declared columns, and those that it adds."""
    added = format_of(form).added
    return f"{ddl}\n, {added}" if added else ddl


def taken_name(form: str, ddl: str) -> str | None:
    """Return a column of a declaration that has the name of one that its format adds; None if there is none."""
    added = [each.split()[0] for each in format_of(form).added.split(", ") if each]
    return next((name for name in added if re.search(rf"(?:^|,)\s*`?{name}`?[\s:]", ddl, re.IGNORECASE)), None)


def format_of(name: str) -> Format:
    """Return the format with this name; the caller has checked the name."""
    return formats()[name]


def row_type(expected: Expected) -> StructType:
    """Return the type of the rows of files of a declaration, with the rescued fields if each record names its own."""
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [StructField(name, kind) for name, kind in expected.columns or (("value", StringType()),)]
    if expected.on_schema == "rescue" and not expected.reads.names_columns:
        fields.append(StructField(RESCUED, StringType()))
    return StructType(fields)


def as_text(value: Any) -> str:
    """Return a value of a test's row as it is written in a file of text."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
