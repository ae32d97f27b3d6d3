"""The interface of a file format: how its files are judged, parsed and read.

`formats` finds each module of this folder that has a `FORMAT`. So a new format is one file: a subclass of `Format`, or
of `jobs.formats.lines.line_format.LineFormat` with its `Lines` if records are lines.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from drainmark.jobs.formats.bad_records import FileVerdict
from drainmark.jobs.formats.column_fit import Columns, Found
from drainmark.jobs.formats.csv_dialect import Dialect, RecordEnds
from drainmark.jobs.formats.values.lossy_values import Lossless

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrameReader

Take = Callable[[bytes], object]
"""Callback that gets each piece of a file with one record per line, until a fault is found."""

_SILENT = frozenset({"mode", "columnnameofcorruptrecord", "ignorecorruptfiles", "ignoremissingfiles"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The declaration of the files of one output.

    Attributes:
        format: name of a `Format`.
        columns: as declared; None for text.
        options: of Spark's reader, names in lower case.
        strict: refuse JSON that Spark would take in part: trailing text, duplicate keys, several values on a line.
        rounding: how decimals with too many digits are rounded; None: they may not be.
        on_schema: the treatment of columns that are not declared; see `DirectoryScan`.
        parsed_here: Arrow parses a file in which a quick look finds no fault, and refuses values that would change.
    """

    format: str
    columns: Columns | None
    options: Mapping[str, str] = field(default_factory=dict)
    strict: bool = True
    rounding: str | None = None
    on_schema: str | None = None
    parsed_here: bool = False

    @property
    def reads(self) -> Format:
        return format_of(self.format)

    @property
    def lines(self) -> Lines | None:
        return self.reads.lines

    @property
    def lossless(self) -> Lossless:
        """Return the check for records that Spark's parser would change."""
        return Lossless.of(self.columns or (), self.options, self.rounding)

    @property
    def dialect(self) -> Dialect:
        return Dialect.of(self.options)

    @property
    def has_multiline(self) -> bool:
        may_have = self.lines is not None and self.lines.may_be_document
        return may_have and self.options.get("multiline", "false").lower() == "true"

    @property
    def encoding(self) -> str | None:
        """Return the declared encoding, None for UTF-8."""
        named = self.options.get("encoding", self.options.get("charset", "UTF-8"))
        return None if named.upper().replace("-", "") == "UTF8" else named

    @property
    def has_records_in_lines(self) -> bool:
        """Say whether each line is a record, so that a bad one does not affect the others."""
        whole = self.has_multiline or self.options.get("wholetext", "false").lower() == "true"
        return self.lines is not None and not whole and "linesep" not in self.options and self.encoding is None

    @property
    def has_row_a_record(self) -> bool:
        """Say whether Spark makes exactly one row of each record."""
        return self.lines is None or self.lines.has_row_a_record(self)

    @property
    def refuses_others(self) -> bool:
        """Say whether a record or file with columns that are not declared is bad."""
        return self.on_schema in ("quarantine", "halt")

    @property
    def header(self) -> tuple[str, ...] | None:
        """Return the names that a file's first line must have, None if files have no header."""
        return self.lines.header(self) if self.lines is not None else None


class Lines:
    """The rules for the records of a format with lines; the defaults here find no faults.

    Attributes:
        may_have_header: with the option `header` a file's first line names the columns.
        may_be_document: with the option `multiLine` a file is one document, or its records have several lines.
    """

    may_have_header: ClassVar[bool] = False
    may_be_document: ClassVar[bool] = True

    def header(self, expected: Expected) -> tuple[str, ...] | None:
        """Return the names that the first line must have, None for no header."""
        return None

    def has_header(self, chunk: bytes, expected: Expected) -> bool:
        """Say whether the header is in these whole lines; called only if files have a header.

        Raises:
            OtherColumns: the header does not have the declared columns.
        """
        return True

    def has_row_a_record(self, expected: Expected) -> bool:
        """Say whether Spark makes exactly one row of each record."""
        return True

    def is_one_document(self, expected: Expected) -> bool:
        """Say whether a file is one value, so that a row that does not fit has no text of its own."""
        return False

    # --- lines -------------------------------------------------------------------------------------------------------

    def records_test(self, expected: Expected) -> Callable[[bytes], bool]:
        """Return a test that says whether a line is a record for Spark, or a header."""
        return lambda line: True

    def count(self, chunk: bytes, expected: Expected) -> int:
        """Return the number of whole lines that are records, or a header."""
        return sum(map(self.records_test(expected), chunk.splitlines(keepends=True)))

    def good_records(self, chunk: bytes, expected: Expected) -> int | None:
        """Return the number of records in whole lines (UTF-8 without NUL), if a quick look finds no fault in them.

        The number may include lines of which Spark makes no records. None asks for a closer look.
        """
        return lines_in(chunk)

    def fault_of(self, line: str, expected: Expected) -> str | None:
        """Return why a line is no record, or how Spark would change it; None if it is good."""
        return None

    def misfit(self, record: str, expected: Expected) -> str | None:
        """Return why a record does not fit the declared columns; None if this cannot be told without Spark."""
        return None

    # --- files without a record a line -------------------------------------------------------------------------------

    def fault_of_document(self, text: str, expected: Expected) -> str | None:
        """Return the fault of a file that is read with `multiLine`, None if it has none."""
        return None

    def may_be_changed(self, expected: Expected) -> bool:
        """Say whether Spark's parser might silently change values of such a file."""
        return False

    def records_of(self, text: str, expected: Expected) -> Iterator[str]:
        """Yield the records of a file that is read with `multiLine`."""
        yield text

    def record_ends(self, expected: Expected) -> RecordEnds | None:
        """Return the patterns that find records of such a file as Spark's own reader does; None if only that can."""
        return None

    def change_in(self, record: str, expected: Expected) -> str | None:
        """Return the fault of a record of which Spark's parser would change a value, None if it would not."""
        return None

    # --- values that come as bytes -----------------------------------------------------------------------------------

    def are_good(self, values: Sequence[bytes | None], joined: bytes, expected: Expected) -> bool:
        """Say whether each value, UTF-8 without NUL, is one good record; False asks for a closer look.

        Args:
            joined: the values with line feeds between them.
        """
        return True

    def fault_of_value(self, text: str, expected: Expected) -> str | None:
        """Return why a value is no record, None if it is one."""
        return None

    def sql_of_value(self, text: str) -> str:
        """Return the SQL of the text that Spark's parser gets for a value."""
        return text


class Format(ABC):
    """One format of files; users write its `name`.

    Attributes:
        has_schema: users declare the columns.
        columns: DDL of the columns of all files; None if they are declared, or are one column of text.
        picked: SQL of the columns that are taken from Spark's rows.
        has_misfits: Spark puts the text of a row that does not fit the declared columns into a column of its own.
        is_judged_by_libraries: they release Python's lock, so that two files are judged at once.
        is_judged_in_part: `judge` reads only a part of a file, and `fault_within` all of it.
        has_sure_count: a good file states its number of rows; if Spark reads another number, the file is refused.
        refused_options: options of Spark's reader, in lower case, that would silently lose rows.
        lines: None if the format has no lines.
        names_columns: a file names its columns, once for all its rows.
        may_give_rows: see `rows_of`.
    """

    name: ClassVar[str]
    has_schema: ClassVar[bool] = True
    columns: ClassVar[str | None] = None
    picked: ClassVar[tuple[str, ...]] = ("*",)
    has_misfits: ClassVar[bool] = False
    is_judged_by_libraries: ClassVar[bool] = False
    is_judged_in_part: ClassVar[bool] = False
    has_sure_count: ClassVar[bool] = False
    refused_options: ClassVar[frozenset[str]] = _SILENT
    lines: ClassVar[Lines | None] = None
    names_columns: ClassVar[bool] = False
    may_give_rows: ClassVar[bool] = False

    @abstractmethod
    def judge(self, path: Path, expected: Expected, cleaned: Path, take: Take) -> FileVerdict:
        """Judge one file; see `jobs.formats.lines.line_format.inspect`."""

    def recount(self, path: Path, expected: Expected) -> int | None:
        """Count a file's records again; None if the count of `judge` is exact and must be Spark's."""
        return None

    def fault_within(self, path: Path) -> str | None:
        """Return why a file cannot be read to its end; None if it can be."""
        return None

    def reader(self, reader: DataFrameReader, ddl: str | None) -> DataFrameReader:
        """Return Spark's reader with its options set, for files of the declared columns."""
        return (reader if ddl is None else reader.schema(ddl)).format(self.name)

    # --- columns that are not declared -------------------------------------------------------------------------------

    def cannot_compare(self, expected: Expected) -> str | None:
        """Return why `on_schema` is impossible for files of this declaration; None if it is possible."""
        is_nothing = expected.on_schema == "rescue" and not self.has_schema
        return f"{self.name} has no columns but its own" if is_nothing else None

    def cannot_decode(self, expected: Expected) -> tuple[str, str] | None:
        """Return why files in the declared encoding are not read as they are, and the remedy; None if they are."""
        return None

    def columns_in(self, file: BinaryIO, suffix: str, expected: Expected) -> Found | None:
        """Return the columns that a file names; None if it names none that can be read.

        Args:
            suffix: ending of the file's name; it tells the compression.
        """
        return None

    def others_of(self, records: Sequence[bytes], expected: Expected) -> list[str | None]:
        """Return the fields of each good record that are not declared, as JSON or None; each record names its own."""
        raise NotImplementedError

    # --- for Spark's functions instead of its reader ---------------------------------------------------------------

    def values_of(self, path: Path, expected: Expected) -> Iterator[bytes] | None:
        """Return one value per row of a good file; `columns_of_values` makes the same rows of them as Spark's reader.

        None if, by the path's ending and the declaration, only the reader can. The iteration opens the file.
        """
        return None

    def columns_of_values(self, value: str, ddl: str | None, options: Mapping[str, str]) -> tuple[str, ...]:
        """Return the SQL of the columns that Spark's reader gives, without the tags.

        Args:
            value: SQL of the value, which is binary.
            ddl: the declared columns.
        """
        raise NotImplementedError

    # --- for executors that do not reach the file with Spark's reader ------------------------------------------------

    def rows_of(self, path: Path, expected: Expected) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of a good file in the declared columns, by Arrow; None if Spark might read other values.

        Raises:
            Refused: from the iterator, if the file cannot be read to its end.
        """
        return None

    # --- parsing in this process -------------------------------------------------------------------------------------

    def can_parse(self, expected: Expected) -> bool:
        """Say whether files of this declaration, with one record per line, are parsed here if their content allows."""
        return False

    def is_plain(self, content: bytes, expected: Expected) -> bool:
        """Say whether this parser and Spark's split a good file's content into the same records and fields."""
        return False

    def parse(self, content: bytes, expected: Expected) -> pa.Table:
        """Return the rows of files that are good and plain, one after the other.

        Raises:
            NotSure, pa.ArrowException: Spark might read other values.
        """
        raise NotImplementedError

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


@lru_cache(maxsize=1)
def formats() -> Mapping[str, Format]:
    """Return the formats by name."""
    room = importlib.import_module(__package__)
    modules = sorted(module.name for module in pkgutil.iter_modules(room.__path__))
    found = (getattr(importlib.import_module(f"{room.__name__}.{name}"), "FORMAT", None) for name in modules)
    return {each.name: each for each in found if each is not None}


def format_of(name: str) -> Format:
    """Return the format with this name; the caller has checked the name."""
    return formats()[name]


def lines_in(chunk: bytes) -> int:
    """Count lines, which may end with line feeds, carriage returns or both."""
    lines = chunk.count(b"\n")
    if b"\r" in chunk:
        lines += chunk.count(b"\r") - chunk.count(b"\r\n")
    return lines + (not chunk.endswith((b"\n", b"\r")))


def lines_with_text(chunk: bytes) -> int:
    """Count lines that have more than blanks; a NUL is none. A file may be nothing but millions of blank lines."""
    import numpy as np

    content = np.frombuffer(chunk, np.uint8)
    ends = np.flatnonzero((content == ord("\n")) | (content == ord("\r")))
    texts = np.flatnonzero((content > ord(" ")) | (content == 0))
    return len(np.unique(np.searchsorted(ends, texts)))


def as_text(value: Any) -> str:
    """Return a value of a test's row as it is written in a file of text."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
