"""Reasons why a file or a record cannot be read, and the sizes beyond which no read is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Upper bounds (inclusive) of the input; a record or file beyond them goes into quarantine unread.

    Attributes:
        line_bytes: of one line, in every format.
        columns: of one CSV line; Spark's parser ends the job at 20 480.
        json_depth: of nested arrays and objects; Spark's parser stops at 1000.
        json_values: of one JSON record, at every depth: each field of an object and each item of an array is one.
        document_values: of a JSON document (multiLine).
        number_digits: of one number; to read more of them takes time by their square.
        decompressed_bytes: of one compressed file.
        ratio: decompressed bytes to compressed bytes; checked once `ratio_free_bytes` are decompressed.
        document_bytes: of a file that is read as one document (multiLine).
        bad_rows: of one file; beyond it the whole file goes into quarantine.
        raw_characters: kept of a bad record.
        piece_bytes: read at once.
    """

    line_bytes: int = 16 * 1024 * 1024
    columns: int = 20_000
    json_depth: int = 512
    json_values: int = 1_000_000
    document_values: int = 8_000_000
    number_digits: int = 4096
    decompressed_bytes: int = 16 * 1024 * 1024 * 1024
    ratio: int = 200
    ratio_free_bytes: int = 256 * 1024 * 1024
    document_bytes: int = 64 * 1024 * 1024
    bad_rows: int = 100_000
    raw_characters: int = 4096
    piece_bytes: int = 8 * 1024 * 1024


CAPS = Caps()


class Refused(Exception):
    """A file cannot be read by its declaration; the text completes "this file …"."""


class OtherColumns(Refused):
    """A file has other columns than declared."""


class OtherFields(str):
    """The reason of a record that is bad because it has fields that are not declared."""

    __slots__ = ()


def are_about_schema(bad: Sequence[BadRecord], on_schema: str | None) -> bool:
    """Say whether `on_schema` decides about a file: with "halt" if any bad record is about the schema, else if all."""
    kinds = [record.is_schema for record in bad]
    return any(kinds) if on_schema == "halt" else all(kinds)


def too_many(bad: Sequence[BadRecord], on_schema: str | None) -> Refused:
    """Return the refusal of a file that has more bad records than are kept."""
    kind = OtherColumns if are_about_schema(bad, on_schema) else Refused
    return kind(f"more than {CAPS.bad_rows} rows are bad; the first, line {bad[0].position}: {bad[0].reason}")


def require_fault_of_file(error: BaseException) -> None:
    """Raise the error again if it has an error number: then it is a fault of the disk, not of the file."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """One record, or a whole file, that is not read.

    Attributes:
        position: number of its line from 1 (of the record, if the format has no lines); None for a whole file.
        raw: its text, cut to `CAPS.raw_characters`; bytes that are no UTF-8 as `\\xff`.
        reason: a sentence for a tired person.
        is_schema: it has fields that are not declared, and no other fault.
    """

    position: int | None
    raw: str | None
    reason: str
    is_schema: bool = False

    @classmethod
    def of(cls, position: int | None, content: bytes | str, reason: str, *, size: int | None = None) -> BadRecord:
        """Return the record with its text cut.

        Args:
            size: bytes of the whole record, if `content` is only a part of it.
        """
        limit, is_schema = CAPS.raw_characters, isinstance(reason, OtherFields)
        text = content if isinstance(content, str) else content[: 4 * limit].decode(errors="backslashreplace")
        if len(text) > limit:
            reason = f"{reason} (raw is cut to {limit} characters, of {size or len(content)} bytes)"
        return cls(position=position, raw=text[:limit], reason=str(reason), is_schema=is_schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVerdict:
    """The result of the inspection of one file.

    Attributes:
        records: number that Spark must find in the file, or in the copy; None if only Spark can tell.
        is_good: the quick look found no fault, and each line is a record.
        bad: lines that are kept from Spark.
        cleaned: the copy without them.
        refused: why nothing of the file is read.
        is_schema: it is refused because its columns differ from the declared ones.
    """

    records: int | None = None
    is_good: bool = False
    bad: tuple[BadRecord, ...] = ()
    cleaned: Path | None = None
    refused: str | None = None
    is_schema: bool = False

    @classmethod
    def of(cls, refused: Refused) -> FileVerdict:
        """Return the verdict on a file that is refused whole."""
        return cls(refused=str(refused), is_schema=isinstance(refused, OtherColumns))
