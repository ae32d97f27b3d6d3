"""How much memory the values of a Parquet file take: by its footer, the headers of its pages, the lengths of its texts.

A page says by itself how long it is when it is decompressed, and the footer need not agree. A few bytes may stand for
gigabytes: a compressed page of zeros, a text in the dictionary that a million rows refer to, a text that begins as the
one before it, a run of equal values. Where texts may be shared in this way, it is counted how often: most files with a
long text, or with many short ones, are harmless.

Footer and headers are read here, and not by Arrow: it has no function for headers, and it ends the process if the facts
of a footer about a column contradict each other. Parquet's page "File Format" describes them, in Thrift's compact
protocol.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats.bad_records import CAPS, Refused
from drainmark.jobs.formats.lines.content import END, Readable, SeekableData

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_MAGIC = b"PAR1"
_HEADER_BYTES = 1 << 10
_TAIL_BYTES = _BUFFER_BYTES = 1 << 16
"""Bytes of the first read of a footer, and of each read of headers: often enough for all headers of a small column."""

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_DATA, _DICTIONARY, _DATA_2 = 5, 7, 8
"""Fields of a header: the kind of its page. The first field of each is the number of values."""

_DELTA_BYTE_ARRAY = 7
_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 5: "lz4_raw", 6: "zstd", 7: "lz4_raw"}
_HADOOP_LZ4 = 5
_COUNTED_ROWS = 65_536
_LARGEST_BLOCK = 1 << 16
"""Numbers in a block of packed numbers; all writers put 128 into one."""

_DAMAGED = "is no Parquet file that can be read: its footer or the header of a page is damaged"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One column of one row group, by the footer.

    Attributes:
        codec: number of the compression of its pages.
        start, end: places of its pages in the file.
    """

    name: str
    codec: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ParquetPage:
    """One page: its bytes as they are stored and decompressed, and its number of values.

    Attributes:
        encoding: number of the encoding of its values.
        levels: bytes before the values that are not compressed; None if the levels are compressed with the values.
        is_packed: whether the values are compressed, if the column is.
        at: place of its content in the file.
    """

    stored: int
    decompressed: int
    values: int
    is_dictionary: bool
    encoding: int
    levels: int | None
    is_packed: bool
    at: int


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes that values take in memory: all of them, and the longest text that others share, 0 if none is."""

    total: int
    shared: int = 0


@dataclass(frozen=True, slots=True)
class ParquetData:
    """A file whose footer has been read.

    Attributes:
        groups: the columns of each row group.
        metadata: the footer as Arrow has it.
    """

    data: Readable
    groups: Sequence[Sequence[Chunk]]
    metadata: pq.FileMetaData

    @classmethod
    def of(cls, data: Readable) -> ParquetData:
        """Read the footer of a file, once.

        Raises:
            Refused: the footer is damaged or encrypted, or its pages are in other files.
            pyarrow.ArrowException: Arrow cannot read the footer.
            OSError: the file cannot be read.
        """
        import pyarrow.parquet as pq

        tail = data.read(max(0, data.size - _TAIL_BYTES), data.size)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if tail[-4:] != _MAGIC or length > data.size:
            raise Refused(_DAMAGED)
        if length > len(tail):
            tail = cls._stream_at(data, data.size - length).read(length)
        footer = tail[-length:]
        try:
            groups = [_chunks(group, data.size) for group in _Compact(footer[:-8]).struct()[4]]
        except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise Refused(_DAMAGED) from error
        return cls(data, groups, pq.read_metadata(io.BytesIO(footer)))

    @staticmethod
    def _stream_at(data: Readable, place: int) -> BinaryIO:
        stream = io.BufferedReader(SeekableData(data), _BUFFER_BYTES)
        stream.seek(place)
        return stream

    def stream(self) -> BinaryIO:
        """Return a file object with a place of its own."""
        return self._stream_at(self.data, 0)

    def opened(self, **options: Any) -> pq.ParquetFile:
        """Return the file opened by Arrow, which does not read the footer again."""
        import pyarrow.parquet as pq

        return pq.ParquetFile(self.stream(), metadata=self.metadata, **options)

    def groups_in(self, start: int, end: int) -> list[int]:
        """Return the numbers of the row groups that begin in a range of bytes.

        Each is in one of the ranges that divide a file, and ranges in order have them in order: a row group whose
        first byte is before that of an earlier one, or behind the file, counts as if it were at the nearest place.
        """
        last = self.data.size - 1
        places = accumulate((min(group[0].start, last) if group else 0 for group in self.groups), max)
        return [number for number, place in enumerate(places) if start <= place < end]


def bytes_in_memory(file: ParquetData, start: int = 0, end: int = END) -> dict[int, Size]:
    """Return for each row group that begins in a range of bytes how many bytes its values take, when they are read.

    Raises:
        Refused: a page, or the range, holds more than the caps, or is damaged.
        pyarrow.ArrowException: texts, whose lengths are wanted, cannot be read.
        OSError: the file cannot be read.
    """
    schema = file.metadata.schema
    leaves = [schema.column(place) for place in range(len(schema))]
    sizes: dict[int, Size] = {}
    total, stream = 0, file.stream()
    for number in file.groups_in(start, end):
        group = file.groups[number]
        if [leaf.path for leaf in leaves] != [chunk.name for chunk in group]:
            raise Refused(_DAMAGED)
        found = [_column_bytes(file, stream, number, *each) for each in zip(group, leaves, strict=True)]
        sizes[number] = Size(sum(size.total for size in found), max((size.shared for size in found), default=0))
        total += sizes[number].total
        if total > CAPS.decompressed_bytes:
            raise Refused(f"holds more than {CAPS.decompressed_bytes} bytes when decompressed")
    return sizes


def _column_bytes(file: ParquetData, stream: BinaryIO, number: int, chunk: Chunk, leaf: pq.ColumnSchema) -> Size:
    """Return the bytes of the values of one column in a row group."""
    values = dictionary = size = shared = 0
    is_text, may_be_one_row = leaf.physical_type == "BYTE_ARRAY", bool(leaf.max_repetition_level)
    for page in _pages(stream, chunk):
        if _is_excessive(page.decompressed, page.stored):
            raise Refused(f"has a page of column {chunk.name!r} that holds more than {CAPS.ratio} times its bytes")
        if page.is_dictionary:
            dictionary = page.decompressed
            continue
        values += page.values
        size += page.decompressed
        if is_text and page.encoding == _DELTA_BYTE_ARRAY and page.values * page.decompressed > CAPS.ratio_free_bytes:
            beginnings = _beginnings(_content(stream, chunk, page, leaf), page.values)
            size, shared = size + beginnings.total, max(shared, beginnings.shared)
    if is_text:
        texts = Size(values * dictionary, dictionary)
        is_vast = may_be_one_row and _is_excessive(4 * values, chunk.end - chunk.start)
        if texts.total > CAPS.ratio_free_bytes and not is_vast:
            texts = _texts_of_dictionary(file, number, chunk.name)
        size, shared = size + 4 * values + texts.total, max(shared, texts.shared)
    else:
        size = max(size, values * (_WIDTHS.get(leaf.physical_type) or leaf.length))
    if may_be_one_row and _is_excessive(size, chunk.end - chunk.start):
        raise Refused(f"has arrays in column {chunk.name!r} that hold more than {CAPS.ratio} times their bytes")
    return Size(size, shared)


def _is_excessive(size: int, stored: int) -> bool:
    return size > CAPS.ratio_free_bytes and size > CAPS.ratio * stored


def _texts_of_dictionary(file: ParquetData, number: int, name: str) -> Size:
    """Return the bytes of the texts of a column in a row group, which is read without repeating any of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    total = longest = 0
    with file.opened(read_dictionary=[name]) as opened:
        for batch in opened.iter_batches(_COUNTED_ROWS, row_groups=[number], columns=[name]):
            for texts in _leaves(batch.columns):
                if not pa.types.is_dictionary(texts.type):  # numbers, whose bytes the dictionary shares
                    total += texts.nbytes
                    continue
                lengths = pc.binary_length(texts.dictionary)
                total += pc.sum(lengths.take(texts.indices).cast(pa.int64())).as_py() or 0
                longest = max(longest, pc.max(lengths).as_py() or 0)
            if total > CAPS.decompressed_bytes:
                break
    return Size(total, longest)


def _leaves(arrays: Sequence[pa.Array]) -> Iterator[pa.Array]:
    """Yield the values within arrays, lists and structs of them."""
    import pyarrow as pa

    for array in arrays:
        if pa.types.is_nested(array.type):
            parts = array.flatten()
            yield from _leaves(parts if isinstance(parts, list) else [parts])
        else:
            yield array


def _content(file: BinaryIO, chunk: Chunk, page: ParquetPage, leaf: pq.ColumnSchema) -> bytes:
    """Return the encoded values of a page, decompressed."""
    import pyarrow as pa

    if chunk.codec not in _CODECS:
        raise Refused(f"has pages of column {chunk.name!r} in a compression that cannot be read")
    file.seek(page.at + (page.levels or 0))
    content = file.read(page.stored - (page.levels or 0))
    codec = _CODECS[chunk.codec] if page.is_packed else None
    size = page.decompressed - (page.levels or 0)
    if codec is not None and size > 0:
        parts = _hadoop_parts(content, size) if chunk.codec == _HADOOP_LZ4 else [(content, size)]
        content = b"".join(pa.decompress(part, length, codec, asbytes=True) for part, length in parts)
    if page.levels is None:
        for _ in range(bool(leaf.max_repetition_level) + bool(leaf.max_definition_level)):
            content = content[4 + int.from_bytes(content[:4], "little") :]
    return content


def _hadoop_parts(content: bytes, size: int) -> list[tuple[bytes, int]]:
    """Return the parts of a page as Hadoop's LZ4 writes it, each with its length; the whole if it is plain LZ4."""
    found, at = list[tuple[bytes, int]](), 0
    while at + 8 <= len(content):
        length, stored = (int.from_bytes(content[at + skip : at + skip + 4], "big") for skip in (0, 4))
        at += 8 + stored
        found.append((content[at - stored : at], length))
    return found if at == len(content) and sum(length for _, length in found) == size else [(content, size)]


def _beginnings(content: bytes, values: int) -> Size:
    """Return the bytes that texts share with the text before each: their lengths are packed differences.

    Raises:
        Refused: it is not encoded in this way.
    """
    import numpy as np

    reader = _Compact(content)
    try:
        block, parts, count, last = reader.varint(), reader.varint(), reader.varint(), reader.number()
        if not 0 < block <= _LARGEST_BLOCK or not parts or block % parts or count > values:
            raise Refused(_DAMAGED)
        total, longest, left, each = last, last, count - 1, block // parts
        while left > 0:
            least = reader.number()
            for width in reader.bytes(parts):
                taken = min(each, left)
                if taken <= 0:
                    break
                if width > 32 or abs(least) >> 32:
                    raise Refused(_DAMAGED)
                bits = np.unpackbits(np.frombuffer(reader.bytes(each * width // 8), np.uint8), bitorder="little")
                steps = bits[: taken * width].reshape(taken, width) @ (1 << np.arange(width, dtype=np.int64)) + least
                lengths = last + np.cumsum(steps)
                last, left = int(lengths[-1]), left - taken
                total, longest = total + int(lengths.sum()), max(longest, int(lengths.max()))
                if lengths.min() < 0:
                    raise Refused(_DAMAGED)
    except (IndexError, ValueError) as error:
        raise Refused(_DAMAGED) from error
    return Size(total, longest)


# --- footer and headers -------------------------------------------------------------------------------------------


def _chunks(group: dict[int, Any], size: int) -> list[Chunk]:
    """Return the columns of a row group of a file of `size` bytes."""
    chunks = []
    for column in group[1]:
        facts = column[3]
        starts = (_whole(facts.get(11, 0)), _whole(facts[9]))  # dictionary, data; a writer may say 0 for "none"
        start = min((place for place in starts if place), default=0)
        end = start + _whole(facts[7])
        if column.keys() & {1, 8, 9} or end > size:  # in another file, or encrypted
            raise Refused(_DAMAGED)
        name = ".".join(part.decode() for part in facts[3])
        chunks.append(Chunk(name, _whole(facts[4]), start, end))
    return chunks


def _whole(number: Any) -> int:
    if not isinstance(number, int) or number < 0:
        raise Refused(_DAMAGED)
    return number


def _pages(file: BinaryIO, chunk: Chunk) -> Iterator[ParquetPage]:
    at = chunk.start
    while at < chunk.end:
        header, size = _header(file, at, chunk.end)
        page = _page_of(header, at + size)
        yield page
        at += size + page.stored


def _page_of(header: dict[int, Any], at: int) -> ParquetPage:
    """Return the page with a header, whose content is at a place of the file."""
    kind = next((header[field] for field in (_DATA, _DATA_2, _DICTIONARY) if field in header), {1: 0})
    if not isinstance(kind, dict):
        raise Refused(_DAMAGED)
    stored, decompressed, values = (_whole(number) for number in (header.get(3), header.get(2), kind.get(1)))
    is_second = _DATA_2 in header
    levels = _whole(kind.get(5, 0)) + _whole(kind.get(6, 0)) if is_second else None
    if (levels or 0) > min(stored, decompressed):
        raise Refused(_DAMAGED)
    encoding = _whole(kind.get(4 if is_second else 2, 0))
    is_packed = not is_second or kind.get(7) is not False
    return ParquetPage(stored, decompressed, values, _DICTIONARY in header, encoding, levels, is_packed, at)


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
            field = field + (mark >> 4) if mark >> 4 else self.number()
            kind = mark & 15
            found[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self.number()
        if kind in (7, 8):
            return self.bytes(8 if kind == 7 else self.varint())
        if kind == 9 and depth < 16:
            return self._list(depth + 1)
        if kind == 12 and depth < 16:
            return self.struct(depth + 1)
        raise Refused(_DAMAGED)  # sets and maps are in no footer and no header

    def _list(self, depth: int) -> Sequence[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self.varint()
        if count > len(self.content) - self.at:  # each item takes a byte at least
            raise IndexError
        return [self._value(head & 15, depth) for _ in range(count)]

    def _byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 63:
                return value

    def number(self) -> int:
        """Return a number in zigzag: 0, -1, 1, -2 …"""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def bytes(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self.content):
            raise IndexError
        return self.content[self.at - count : self.at]
