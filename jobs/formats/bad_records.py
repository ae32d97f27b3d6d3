"""Reasons why a file or a record cannot be read, and the sizes beyond which nothing is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Bounds of what is read; what lies beyond is quarantined, unread.

    Attributes:
        line_bytes: of one line, whatever the format.
        columns: of one CSV line; Spark's parser ends the job at 20 480.
        json_depth: of nested arrays and objects; Spark's parser stops at 1000.
        decompressed_bytes: of one compressed file.
        ratio: bytes that came out to bytes that went in, once `ratio_free_bytes` came out.
        document_bytes: of a file that is read as one document (multiLine).
        bad_rows: of one file; beyond it the whole file is quarantined.
        raw_characters: kept of a bad record.
        piece_bytes: read at once.
    """

    line_bytes: int = 16 * 1024 * 1024
    columns: int = 20_000
    json_depth: int = 512
    decompressed_bytes: int = 16 * 1024 * 1024 * 1024
    ratio: int = 200
    ratio_free_bytes: int = 256 * 1024 * 1024
    document_bytes: int = 64 * 1024 * 1024
    bad_rows: int = 100_000
    raw_characters: int = 4096
    piece_bytes: int = 8 * 1024 * 1024


CAPS = Caps()


class Refused(Exception):
    """A file cannot be read as what it was declared to be; the text completes "this file …"."""


class OtherColumns(Refused):
    """A file has other columns than declared."""


class OtherFields(str):
    """Why a record is bad: it has fields that are not declared."""

    __slots__ = ()


def are_about_schema(bad: Sequence[BadRecord], on_schema: str | None) -> bool:
    """Say whether `on_schema` decides on a file of bad records: it halts for one, else it is about all of them."""
    kinds = [record.is_schema for record in bad]
    return any(kinds) if on_schema == "halt" else all(kinds)


def too_many(bad: Sequence[BadRecord], on_schema: str | None) -> Refused:
    """Return why a file is not read that has more bad records than are kept."""
    kind = OtherColumns if are_about_schema(bad, on_schema) else Refused
    return kind(f"more than {CAPS.bad_rows} rows are bad; the first, line {bad[0].position}: {bad[0].reason}")


def require_fault_of_file(error: BaseException) -> None:
    """Raise an error anew that is the disk's fault, which has a number, and not the file's."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """One record that is not read, or a whole file.

    Attributes:
        position: number of its line from 1 (of its record where lines are none); None for a whole file.
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
            size: bytes of the whole record, where `content` is not all of it.
        """
        limit, is_schema = CAPS.raw_characters, isinstance(reason, OtherFields)
        text = content if isinstance(content, str) else content[: 4 * limit].decode(errors="backslashreplace")
        if len(text) > limit:
            reason = f"{reason} (raw is cut to {limit} characters, of {size or len(content)} bytes)"
        return cls(position=position, raw=text[:limit], reason=str(reason), is_schema=is_schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVerdict:
    """What the inspection says of one file.

    Attributes:
        records: how many Spark must find in what it reads; None where only Spark can tell.
        is_good: at first sight, each line being a record.
        bad: lines that Spark does not get to see.
        cleaned: the copy without them.
        refused: why nothing of the file is read.
        is_schema: it is refused because its columns are others than declared.
    """

    records: int | None = None
    is_good: bool = False
    bad: tuple[BadRecord, ...] = ()
    cleaned: Path | None = None
    refused: str | None = None
    is_schema: bool = False

    @classmethod
    def of(cls, refused: Refused) -> FileVerdict:
        """Return the verdict on a file of which nothing is read."""
        return cls(refused=str(refused), is_schema=isinstance(refused, OtherColumns))
