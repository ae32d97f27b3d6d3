"""What is read and what comes of it: rows, or reasons why a file or a record cannot be read, and the sizes beyond which
no read is tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Upper bounds (inclusive) of the input; a record or file beyond them goes into quarantine unread.

    Attributes:
        line_bytes: of one line, in every format.
        columns: of one CSV line.
        json_depth: of nested arrays and objects.
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
_SHOWN = 10


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


def listed(names: Sequence[str]) -> str:
    """Return names as text for people: the first ones, and the number of the others."""
    some = ", ".join(repr(name[:64]) for name in names[:_SHOWN])
    return some if len(names) <= _SHOWN else f"{some} and {len(names) - _SHOWN} more"


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
    """The result of the reading of one file.

    Attributes:
        records: number of good ones, each a row.
        bad: the others.
        refused: why nothing of the file is read.
        is_schema: it is refused because its columns differ from the declared ones.
    """

    records: int = 0
    bad: tuple[BadRecord, ...] = ()
    refused: str | None = None
    is_schema: bool = False

    @classmethod
    def of(cls, refused: Refused) -> FileVerdict:
        """Return the verdict on a file that is refused whole."""
        return cls(refused=str(refused), is_schema=isinstance(refused, OtherColumns))


class Readable(Protocol):
    """Bytes that are read by position."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` (inclusive) to `end` (exclusive); fewer at the end of the data."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Records as rows of the declared columns, and the faults of the bad ones.

    Attributes:
        rows: a row for each record, in order. If `on_schema` is "rescue" and records name their fields, `_rescued` is
            last.
        faults: place of a bad record in `rows` -> reason; its row is to be dropped.
        tombstones: places of records that are good and have no row; what is at these places is to be dropped.
    """

    rows: pa.Table
    faults: Mapping[int, str]
    tombstones: frozenset[int] = frozenset()

    @property
    def good(self) -> pa.Table:
        """Return the rows of the good records."""
        import numpy as np
        import pyarrow as pa

        if not self.faults and not self.tombstones:
            return self.rows
        is_good = np.ones(self.rows.num_rows, dtype=bool)
        is_good[[*self.faults, *self.tombstones]] = False
        return self.rows.filter(pa.array(is_good))
