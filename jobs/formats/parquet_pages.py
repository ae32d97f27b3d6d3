"""How much memory the values of a Parquet file take, by its footer and the headers of its pages: no page is read.

A page says by itself how long it is when it is decompressed, and the footer need not agree. A few bytes may stand for
gigabytes: a compressed page of zeros, a text in the dictionary that a million rows refer to, a run of equal values.

Both are read here, and not by Arrow: it has no function for the headers, and it ends the process if the footer's facts
about a column contradict each other. Parquet's page "File Format" describes them, in Thrift's compact protocol.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats.bad_records import CAPS, Refused

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MAGIC = b"PAR1"
_HEADER_BYTES = 1 << 10
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_DATA, _DICTIONARY, _DATA_2 = 5, 7, 8
"""Fields of a header: the kind of its page. The first field of each is the number of values."""

_DAMAGED = "is no Parquet file that can be read: its footer or the header of a page is damaged"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One column of one row group, by the footer.

    Attributes:
        rows: of the row group.
        start, end: places of its pages in the file.
        nulls: number of values that are null; None if it is not told.
        least, most: bounds of the values as they are stored; None if they are not told.
    """

    name: str
    rows: int
    start: int
    end: int
    nulls: int | None
    least: bytes | None
    most: bytes | None


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its bytes as they are stored and decompressed, and its number of values."""

    stored: int
    decompressed: int
    values: int
    is_dictionary: bool


def row_groups(path: Path) -> list[list[Chunk]]:
    """Return the columns of each row group of a file.

    Raises:
        Refused: the footer is damaged or encrypted, or its pages are in other files.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length + 8 > size:
            raise Refused(_DAMAGED)
        file.seek(size - 8 - length)
        content = file.read(length)
    try:
        return [_chunks(group, size) for group in _Compact(content).struct()[4]]
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise Refused(_DAMAGED) from error


def bytes_in_memory(path: Path, schema: pq.ParquetSchema) -> list[int]:
    """Return for each row group how many bytes its values take at most, when they are read.

    Raises:
        Refused: a page, or the file, holds more than the caps, or is damaged.
        OSError: the file cannot be read.
    """
    leaves = [schema.column(place) for place in range(len(schema))]
    sizes, total = [], 0
    with path.open("rb") as file:
        for number, group in enumerate(row_groups(path)):
            if [leaf.path for leaf in leaves] != [chunk.name for chunk in group]:
                raise Refused(_DAMAGED)
            sizes.append(sum(_column_bytes(file, path, number, *each) for each in zip(group, leaves, strict=True)))
            total += sizes[-1]
            if total > CAPS.decompressed_bytes:
                raise Refused(f"holds more than {CAPS.decompressed_bytes} bytes when decompressed")
    return sizes


def _column_bytes(file: BinaryIO, path: Path, number: int, chunk: Chunk, leaf: pq.ColumnSchema) -> int:
    """Return the bytes of the values of one column in a row group."""
    values = dictionary = size = 0
    for page in _pages(file, chunk):
        if _is_excessive(page.decompressed, page.stored):
            raise Refused(f"has a page of column {chunk.name!r} that holds more than {CAPS.ratio} times its bytes")
        if page.is_dictionary:
            dictionary = page.decompressed
        else:
            values += page.values
            size += page.decompressed
    if leaf.physical_type == "BYTE_ARRAY":
        if values * dictionary > CAPS.ratio_free_bytes:
            dictionary = _longest_text(path, number, chunk.name, dictionary)
        size += values * (4 + dictionary)
    else:
        size = max(size, values * (_WIDTHS.get(leaf.physical_type) or leaf.length))
    if leaf.max_repetition_level and _is_excessive(size, chunk.end - chunk.start):  # one row may have all items
        raise Refused(f"has arrays in column {chunk.name!r} that hold more than {CAPS.ratio} times their bytes")
    return size


def _is_excessive(size: int, stored: int) -> bool:
    return size > CAPS.ratio_free_bytes and size > CAPS.ratio * stored


def _longest_text(path: Path, number: int, name: str, limit: int) -> int:
    """Return the length of the longest text in a dictionary, or its limit if Arrow cannot read it alone."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, read_dictionary=[name]) as opened:
        batch = next(opened.iter_batches(1, row_groups=[number], columns=[name]), None)
    found = batch.column(0) if batch is not None else None
    if found is None or not pa.types.is_dictionary(found.type):
        return limit
    return min(limit, pc.max(pc.binary_length(found.dictionary)).as_py() or 0)


# --- footer and headers -------------------------------------------------------------------------------------------


def _chunks(group: dict[int, Any], size: int) -> list[Chunk]:
    """Return the columns of a row group of a file of `size` bytes."""
    rows, chunks = _whole(group[3]), []
    for column in group[1]:
        facts = column[3]
        known = facts.get(12, {})
        starts = (_whole(facts.get(11, 0)), _whole(facts[9]))  # dictionary, data; a writer may say 0 for "none"
        start = min((place for place in starts if place), default=0)
        end = start + _whole(facts[7])
        if column.keys() & {1, 8, 9} or end > size:  # in another file, or encrypted
            raise Refused(_DAMAGED)
        name = ".".join(part.decode() for part in facts[3])
        chunks.append(Chunk(name, rows, start, end, known.get(3), known.get(6), known.get(5)))
    return chunks


def _whole(number: Any) -> int:
    if not isinstance(number, int) or number < 0:
        raise Refused(_DAMAGED)
    return number


def _pages(file: BinaryIO, chunk: Chunk) -> Iterator[Page]:
    at = chunk.start
    while at < chunk.end:
        header, size = _header(file, at, chunk.end)
        page = _page_of(header)
        yield page
        at += size + page.stored


def _page_of(header: dict[int, Any]) -> Page:
    kind = next((header[field] for field in (_DATA, _DATA_2, _DICTIONARY) if field in header), {1: 0})
    if not isinstance(kind, dict):
        raise Refused(_DAMAGED)
    stored, decompressed, values = (_whole(number) for number in (header.get(3), header.get(2), kind.get(1)))
    return Page(stored, decompressed, values, is_dictionary=_DICTIONARY in header)


def _header(file: BinaryIO, at: int, end: int) -> tuple[dict[int, Any], int]:
    """Return the header of the page at a place of a file, and its length; bounds in it may be long."""
    length = _HEADER_BYTES
    while True:
        file.seek(at)
        content = file.read(min(length, end - at))
        try:
            reader = _Compact(content)
            return reader.struct(), reader.at
        except IndexError:
            if length >= end - at or length > CAPS.line_bytes:
                raise Refused(_DAMAGED) from None
            length *= 8


class _Compact:
    """A reader of Thrift's compact protocol. A struct is a dict of its fields by their number, a text is bytes."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the struct at this place.

        Raises:
            IndexError: it does not end within the content.
            Refused: it is no struct.
        """
        found: dict[int, Any] = {}
        field = 0
        while mark := self._byte():
            field = field + (mark >> 4) if mark >> 4 else self._number()
            kind = mark & 15
            found[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self._number()
        if kind in (7, 8):
            return self._bytes(8 if kind == 7 else self._varint())
        if kind == 9 and depth < 16:
            return self._list(depth + 1)
        if kind == 12 and depth < 16:
            return self.struct(depth + 1)
        raise Refused(_DAMAGED)  # sets and maps are in no footer and no header

    def _list(self, depth: int) -> Sequence[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self.content) - self.at:  # each item takes a byte at least
            raise IndexError
        return [self._value(head & 15, depth) for _ in range(count)]

    def _byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 63:
                return value

    def _number(self) -> int:
        """Return a number in zigzag: 0, -1, 1, -2 …"""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self.content):
            raise IndexError
        return self.content[self.at - count : self.at]
