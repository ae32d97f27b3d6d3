"""What the files of a source are expected to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drainmark.jobs.formats.csv import Dialect
from drainmark.jobs.formats.lossy_values import Lossless
from drainmark.jobs.formats.parquet import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a file of one output is declared to be.

    Attributes:
        format: `text`, `csv`, `json`, `parquet` or `binary`.
        columns: as declared; None for text.
        options: of Spark's reader, names in lower case.
        strict: refuse JSON that Spark would take in part: trailing text, duplicate keys, several values on a line.
        rounding: how decimals lose the digits that are too many; None: they may not.
        parsed_here: a file that is good at first sight is parsed by Arrow, which refuses what would change a value.
    """

    format: str
    columns: Columns | None
    options: Mapping[str, str] = field(default_factory=dict)
    strict: bool = True
    rounding: str | None = None
    parsed_here: bool = False

    @property
    def lossless(self) -> Lossless:
        """Return what tells records that Spark's parser would change."""
        return Lossless.of(self.columns or (), self.options, self.rounding)

    @property
    def dialect(self) -> Dialect:
        return Dialect.of(self.options)

    @property
    def has_multiline(self) -> bool:
        return self.format != "text" and self.options.get("multiline", "false").lower() == "true"

    @property
    def encoding(self) -> str | None:
        """Return the declared encoding where it is another one than UTF-8."""
        named = self.options.get("encoding", self.options.get("charset", "UTF-8"))
        return None if named.upper().replace("-", "") == "UTF8" else named

    @property
    def has_records_in_lines(self) -> bool:
        """Is each line a record, so that a bad one leaves the others alone?"""
        whole = self.has_multiline or self.options.get("wholetext", "false").lower() == "true"
        return self.format != "binary" and not whole and "linesep" not in self.options and self.encoding is None

    @property
    def has_row_a_record(self) -> bool:
        """Does Spark make exactly one row of each record?"""
        return self.format != "json" or self.strict

    @property
    def header(self) -> tuple[str, ...] | None:
        """Return the names that the first line of a CSV file must have, None where it has no header."""
        has_one = self.format == "csv" and self.options.get("header", "false").lower() == "true"
        return tuple(name for name, _ in self.columns) if has_one and self.columns else None
