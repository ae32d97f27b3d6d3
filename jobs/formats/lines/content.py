"""The content of a file of lines: decompressed, in UTF-8, read by position and in pieces of bounded size."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from drainmark.jobs.formats.bad_records import CAPS, Refused, require_fault_of_file
from drainmark.jobs.formats.bad_records import Readable as Readable  # noqa: PLC0414

PLAIN = ".data"
"""The ending of the names of files that are not compressed."""

END = 2**62
"""The end of content whose size is not known before it is read."""

UTF8_MARK = codecs.BOM_UTF8
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_MAGIC = {
    b"PK\x03\x04": "is a zip archive",
    b"PAR1": "is a Parquet file",
    b"\x1f\x8b": "is compressed with gzip, and its name does not end in .gz",
}
_HEAD_BYTES = 8
_STEP_BYTES = 64 * 1024
"""Bytes that are read first beyond a range, to the end of the line that crosses the cut; then twice as many."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes in memory."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, start: int, end: int) -> bytes:
        return self.content[start:end]


@dataclass(frozen=True, slots=True)
class LocalFile:
    """An open file on a disk."""

    descriptor: int
    size: int

    @classmethod
    def of(cls, file: BinaryIO) -> LocalFile:
        """Return an open file.

        Raises:
            Refused: it has more bytes than its size, such as those in /proc: a reader of its size would read none.
        """
        size = os.fstat(file.fileno()).st_size
        if os.pread(file.fileno(), 1, size):
            raise Refused(f"has more than its {size} bytes: it is no file of a disk, or is being written to")
        return cls(file.fileno(), size)

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self.descriptor, end - start, start) if start < end else b""


class SeekableData(io.RawIOBase):
    """A seekable file object over data that are read by byte ranges; one read gives a piece at most."""

    def __init__(self, data: Readable) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._data.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self._data.read(self._at, min(self._data.size, self._at + len(buffer), self._at + CAPS.piece_bytes))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


class StreamedContent:
    """Content that is read once from its beginning to its end; only the piece of the last read can be read again."""

    size = END

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._begin, self._piece = pieces, 0, b""

    def read(self, start: int, end: int) -> bytes:
        """Return bytes from `start` on, to the end of a piece at most; none at the end of the content."""
        while start >= self._begin + len(self._piece):
            self._begin += len(self._piece)
            self._piece = next(self._pieces, b"")
            if not self._piece:
                return b""
        return self._piece[start - self._begin : end - self._begin]


def content_of(data: Readable, suffix: str, encoding: str | None) -> Readable:
    """Return the content of a file of lines, in UTF-8.

    Args:
        suffix: ending of the file's name; it tells the compression.
        encoding: of the decompressed file; None for UTF-8.

    Raises:
        Refused: from `read`, if it cannot be decompressed or decoded, or is larger than the caps.
        OSError: from `read`, if the file cannot be read.
    """
    if suffix == PLAIN and encoding is None:
        return data
    file = io.BufferedReader(SeekableData(data), CAPS.piece_bytes)
    pieces = _unpacked(file, suffix, data.size) if suffix != PLAIN else iter(lambda: file.read(CAPS.piece_bytes), b"")
    return StreamedContent(pieces if encoding is None else _in_utf8(pieces, encoding))


def read_whole(content: Readable) -> bytes:
    """Return all of the content.

    Raises:
        Refused: it has more than `CAPS.document_bytes`.
    """
    pieces, size = [], 0
    while piece := content.read(size, min(content.size, size + CAPS.piece_bytes)):
        pieces.append(piece)
        size += len(piece)
        if size > CAPS.document_bytes:
            raise Refused(f"is longer than {CAPS.document_bytes} bytes, too long to be read as one document")
    refuse_by_mark(pieces[0] if pieces else b"")
    return b"".join(pieces).removeprefix(UTF8_MARK)


# --- compression --------------------------------------------------------------------------------------------------


def _by_arrow(codec: str) -> Callable[[Path | BinaryIO], Any]:
    """Return a function that opens a file; Python's `bz2` would pass over a damaged stream behind a whole one."""

    def opened(file: Path | BinaryIO) -> Any:
        import pyarrow as pa

        source = pa.OSFile(str(file)) if isinstance(file, Path) else pa.PythonFile(_Lent(file), "r")
        return pa.CompressedInputStream(source, codec)

    return opened


class _Lent:
    """A file that Arrow reads and does not close."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.read = file.read

    def close(self) -> None:
        """Leave the file open, as `gzip.open` does."""


_DECOMPRESSORS: Mapping[str, Any] = {".gz": gzip.open, ".bz2": _by_arrow("bz2"), ".zst": _by_arrow("zstd")}
OTHER_COMPRESSIONS = frozenset({".deflate", ".lz4", ".snappy"})
"""Endings of files whose compression is not read here."""


def require_unpackable(suffix: str) -> None:
    """Raise Refused for an ending that tells a compression that is not read."""
    if suffix in OTHER_COMPRESSIONS:
        raise Refused(f"is compressed as {suffix}, which is not read: compress it as {', '.join(_DECOMPRESSORS)}")


def unpacked_bytes(path: Path, limit: int) -> int:
    """Return the decompressed size of a file, or a number above a limit; 0 if the file is not compressed."""
    if path.suffix not in _DECOMPRESSORS:
        return 0
    total = 0
    with suppress(EOFError, zlib.error, OSError), _DECOMPRESSORS[path.suffix](path) as stream:  # its reader judges it
        while total <= limit and (piece := stream.read(CAPS.piece_bytes)):
            total += len(piece)
    return total


def first_lines(file: BinaryIO, suffix: str) -> bytes:
    """Return the first piece of a file, decompressed; its last line may be cut. Empty if it cannot be read."""
    if suffix not in (PLAIN, *_DECOMPRESSORS):
        return b""
    try:
        opened = file if suffix == PLAIN else _DECOMPRESSORS[suffix](file)
        found: bytes = opened.read(CAPS.piece_bytes)
    except (EOFError, zlib.error, OSError) as error:
        require_fault_of_file(error)
        return b""
    return found.removeprefix(UTF8_MARK)


def _unpacked(file: BinaryIO, suffix: str, size: int) -> Iterator[bytes]:
    """Yield the decompressed content of an open file of `size` bytes in pieces."""
    require_unpackable(suffix)
    total = 0
    try:
        with _DECOMPRESSORS[suffix](file) as stream:
            while piece := stream.read(CAPS.piece_bytes):
                total += len(piece)
                if total > CAPS.decompressed_bytes:
                    raise Refused(f"holds more than {CAPS.decompressed_bytes} bytes when decompressed")
                if total > CAPS.ratio_free_bytes and total > CAPS.ratio * file.tell():
                    raise Refused(f"holds more than {CAPS.ratio} times its bytes when decompressed")
                yield piece
    except (EOFError, zlib.error, OSError) as error:
        require_fault_of_file(error)
        raise Refused(f"cannot be decompressed: {error}") from error


# --- encoding -----------------------------------------------------------------------------------------------------


def _in_utf8(pieces: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for piece in pieces:
            if text := decoder.decode(piece):
                yield text.encode()
        if text := decoder.decode(b"", final=True):
            yield text.encode()
    except UnicodeError as error:
        raise Refused(f"is not {encoding}, as options say: {error}") from error


def is_utf8(chunk: bytes) -> bool:
    """Say whether all of it is UTF-8."""
    if chunk.isascii():
        return True
    try:
        chunk.decode()
    except UnicodeDecodeError:
        return False
    return True


def fault_of_text(content: bytes) -> str | None:
    """Return why bytes are no text, None if they are UTF-8 without NUL."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte 0x{content[error.start]:02x} at {error.start + 1}"
    return f"has a NUL byte at {content.index(0) + 1}" if 0 in content else None


# --- lines --------------------------------------------------------------------------------------------------------


def whole_lines(data: Readable, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (place, lines) of the lines that begin in a range, piece by piece, without a byte order mark.

    Lines end with a line feed, except the file's last one. So no range begins behind a carriage return alone.

    Raises:
        Refused: the file's first bytes show another format, or a line is too long.
    """
    if start == 0:
        head = data.read(0, min(data.size, _HEAD_BYTES))
        refuse_by_mark(head)
        at = len(UTF8_MARK) if head.startswith(UTF8_MARK) else 0
        end = min(max(end, at + 1), data.size)  # a mark is no line, even if the cut is in it
    else:
        found = _line_feed(data, start - 1, end - 1)
        if found is None:
            return
        at = found + 1
    rest, read = b"", at
    while read < end and (piece := data.read(read, min(end, read + CAPS.piece_bytes))):
        read += len(piece)
        rest += piece
        cut = rest.rfind(b"\n") + 1
        if cut:
            _require_short_line(rest)
            yield at, rest[:cut]
            at += cut
            rest = rest[cut:]
        _require_short_line(rest)
    while rest and (piece := data.read(read, min(data.size, read + _step(rest)))):  # to the end of the last line
        read += len(piece)
        cut = piece.find(b"\n") + 1
        rest += piece[:cut] if cut else piece
        _require_short_line(rest)
        if cut:
            break
    if rest:
        yield at, rest


def separated(data: Readable, separator: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (place, records) of content whose records end with a text of their own.

    Raises:
        Refused: as `whole_lines`.
    """
    refuse_by_mark(data.read(0, min(data.size, _HEAD_BYTES)))
    rest, at = b"", 0
    while piece := data.read(at, min(data.size, at + CAPS.piece_bytes)):
        rest = rest + piece if at else piece.removeprefix(UTF8_MARK)
        *records, rest = rest.split(separator)
        if any(len(record) > CAPS.line_bytes for record in (*records, rest)):
            raise Refused(f"has a record of more than {CAPS.line_bytes} bytes")
        yield at, records
        at += len(piece)
    if rest.strip(b"\r\n"):  # editors end a file with a line end
        yield at, [rest]


def _require_short_line(lines: bytes) -> None:
    """Raise Refused if the first line is too long; the lines behind it are in one piece, shorter than the cap."""
    if len(lines) > CAPS.line_bytes and not 0 <= lines.find(b"\n") <= CAPS.line_bytes:
        raise Refused(f"has a line of more than {CAPS.line_bytes} bytes")


def refuse_by_mark(piece: bytes) -> None:
    """Raise Refused if a file's first bytes show another encoding or format."""
    for mark, encoding in _MARKS.items():
        if piece.startswith(mark):
            raise Refused(f'is {encoding} by its byte order mark: options={{"encoding": "{encoding}"}} reads it')
    for magic, kind in _MAGIC.items():
        if piece.startswith(magic):
            raise Refused(kind)


def _step(rest: bytes) -> int:
    return max(_STEP_BYTES, min(len(rest), CAPS.piece_bytes))


def _line_feed(data: Readable, start: int, end: int) -> int | None:
    """Return the place of the first line feed from `start` (inclusive) to `end` (exclusive), None if there is none."""
    while start < end:
        piece = data.read(start, min(end, start + CAPS.piece_bytes))
        if not piece:
            return None
        found = piece.find(b"\n")
        if found >= 0:
            return start + found
        start += len(piece)
    return None
