"""Formats of lines: files are inspected before Spark reads them, for faults that Spark would ignore or fail on.

A good file costs one pass over its bytes at the speed of memory. Only a file that fails this quick look is taken apart
line by line: its good lines go into a copy, which Spark reads instead, and each bad line is kept with its reason. If
lines are not records (multiLine, lineSep, an encoding other than UTF-8), the whole file is good or bad.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from drainmark.jobs.formats.bad_records import (
    CAPS,
    BadRecord,
    FileVerdict,
    Refused,
    require_fault_of_file,
    too_many,
)
from drainmark.jobs.formats.format import Expected, Format, Lines, Take
from drainmark.jobs.formats.lines.lossy_files import check_values
from drainmark.jobs.formats.values.text_columns import BAD, struct_of
from drainmark.jobs.frames.tags import CORRUPT

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader

BLANK = bytes(range(33))
"""The bytes that Spark's CSV and JSON readers trim; a line of only these is no record."""

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
FAIL_A_FILE = frozenset({"maxcolumns", "maxcharspercolumn", "unescapedquotehandling"})
"""Options with which Spark's parser fails on a whole file, and does not name the value."""

_NOT_COMPARED = "is compressed so that only Spark reads it, and its columns cannot be compared: use .gz, .bz2 or .zst"

PLAIN = ".data"
"""The ending of the names of files that are not compressed."""


def _open_zstd(file: Path | BinaryIO) -> Any:
    import pyarrow as pa

    source = pa.OSFile(str(file)) if isinstance(file, Path) else pa.PythonFile(_Lent(file), "r")
    return pa.CompressedInputStream(source, "zstd")


class _Lent:
    """A file that Arrow reads and does not close."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.read = file.read

    def close(self) -> None:
        """Leave the file open, as `gzip.open` does."""


_DECOMPRESSORS: Mapping[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".zst": _open_zstd}
"""By the ending that Spark sees; files with other compressions, such as `.lz4`, are judged by Spark alone."""


def inspect(path: Path, expected: Expected, cleaned: Path, take: Take = lambda piece: None) -> FileVerdict:
    """Judge one file; it is read at most twice, in pieces of bounded size.

    Args:
        path: has the ending that Spark sees (`.data`, `.gz`, …).
        cleaned: path of the copy with the good lines, written if some lines are bad.
        take: gets each piece of a file with one record per line, until a fault is found: whole lines, without byte
            order mark.
    """
    return expected.reads.judge(path, expected, cleaned, take)


class LineFormat(Format):
    """A format with one record per line, unless options say otherwise."""

    lines: ClassVar[Lines]

    def judge(self, path: Path, expected: Expected, cleaned: Path, take: Take) -> FileVerdict:
        if not can_be_read_here(path):
            why = _NOT_COMPARED if expected.on_schema is not None and self.has_schema else None
            return FileVerdict(refused=why, is_schema=True) if why else FileVerdict()
        try:
            if expected.has_records_in_lines:
                return _quick(path, expected, self.lines, take) or _separate(path, expected, self.lines, cleaned)
            return _whole(path, expected, self.lines)
        except Refused as refused:
            return FileVerdict.of(refused)

    def recount(self, path: Path, expected: Expected) -> int:
        """Count a good file's records without blank lines and comments, which takes longer and is exact."""
        records = sum(self.lines.count(chunk, expected) for chunk in _pieces(path))
        return max(0, records - (expected.header is not None))

    def values_of(self, path: Path, expected: Expected) -> Iterator[bytes] | None:
        """Return the lines that are records; None if it is not sure that each is one row."""
        is_plain = expected.has_records_in_lines and expected.has_row_a_record and can_be_read_here(path)
        is_plain = is_plain and not FAIL_A_FILE & expected.options.keys()
        return (text for _, text in numbered_records(path, expected, self.lines)) if is_plain else None

    def columns_of_values(self, value: str, ddl: str | None, options: Mapping[str, str]) -> tuple[str, ...]:
        return (f"cast({value} as string) as value",)


class ParsedFormat(LineFormat):
    """A format of lines that Spark parses; the text of a row that does not fit comes in a column of its own."""

    has_misfits = True

    def cannot_decode(self, expected: Expected) -> tuple[str, str] | None:
        if expected.encoding is None or expected.has_multiline or _has_lines(expected.encoding, expected.options):
            return None
        return "Spark cuts lines within the characters of this encoding", 'add the option "multiLine": "true"'

    def reader(self, reader: DataFrameReader, ddl: str | None) -> DataFrameReader:
        parsing = reader.schema(f"{ddl}, {CORRUPT} string").option("mode", "PERMISSIVE")
        return parsing.option("columnNameOfCorruptRecord", CORRUPT).format(self.name)

    def values_of(self, path: Path, expected: Expected) -> Iterator[bytes] | None:
        names = [name.lower() for name, _ in expected.columns or ()]
        return super().values_of(path, expected) if len(names) == len(set(names)) else None

    def columns_of_values(self, value: str, ddl: str | None, options: Mapping[str, str]) -> tuple[str, ...]:
        from pyspark.sql.types import StructType

        columns = StructType.fromDDL(ddl or "")
        names = [*(f"`{name.replace('`', '``')}`" for name in columns.names), f"{BAD} as {CORRUPT}"]
        parsed = struct_of(f"cast({value} as string)", self.name, columns, options)
        fields = ", ".join(f"parsed.{name}" for name in names)
        return (f"inline(transform(array({parsed}), parsed -> struct({fields})))",)


def _has_lines(encoding: str, options: Mapping[str, str]) -> bool:
    """Say whether Spark finds the ends of lines: it searches for the bytes of `lineSep`, by default for one byte."""
    try:
        if "linesep" in options:
            return not "".encode(encoding)  # else Java writes a byte order mark before the separator
        return "\n".encode(encoding) == b"\n"
    except LookupError:
        return True  # an encoding that Java knows and Python does not


def first_lines(file: BinaryIO, suffix: str) -> bytes:
    """Return the first piece of a file, decompressed; its last line may be cut. Empty if it cannot be read here."""
    if suffix not in (PLAIN, *_DECOMPRESSORS):
        return b""
    try:
        opened = file if suffix == PLAIN else _DECOMPRESSORS[suffix](file)
        found: bytes = opened.read(CAPS.piece_bytes)
    except (EOFError, zlib.error, OSError) as error:
        require_fault_of_file(error)
        return b""
    return found.removeprefix(UTF8_MARK)


def can_be_read_here(path: Path) -> bool:
    """Say whether Python can read the lines of a file; files with other compressions are judged by Spark alone."""
    return path.suffix in (PLAIN, *_DECOMPRESSORS)


def whole_content(path: Path) -> bytes:
    """Return the content of a file, decompressed, within the caps."""
    return b"".join(_raw_pieces(path))


def unpacked_bytes(path: Path, limit: int) -> int:
    """Return the decompressed size of a file, or a number above a limit; 0 if the file is not compressed.

    A file in a compression that is not known here counts as larger than the limit.
    """
    if path.suffix == PLAIN:
        return 0
    opener = _DECOMPRESSORS.get(path.suffix)
    if opener is None:
        return limit + 1
    total = 0
    with suppress(EOFError, zlib.error, OSError), opener(path) as stream:  # the inspection judges it
        while total <= limit and (piece := stream.read(CAPS.piece_bytes)):
            total += len(piece)
    return total


def numbered_records(path: Path, expected: Expected, lines: Lines) -> Iterator[tuple[int, bytes]]:
    """Yield (number of its line from 1, content) of every line that Spark makes a record of."""
    return ((number, content_of(line)) for number, line, is_record in _lines(path, expected, lines) if is_record)


# --- the quick look -----------------------------------------------------------------------------------------------


def _quick(path: Path, expected: Expected, lines: Lines, take: Take) -> FileVerdict | None:
    """Return the verdict on a file in which a quick look finds no fault, None if it must be taken apart.

    The number of records may be too high by blank lines and comments; if Spark's number differs, `recount` is asked.
    """
    records, awaits_header = 0, expected.header is not None
    for chunk in _pieces(path):
        awaits_header = awaits_header and not lines.has_header(chunk, expected)
        found = None if 0 in chunk or not is_utf8(chunk) else lines.good_records(chunk, expected)
        if found is None:
            return None
        take(chunk)
        records += found
    return FileVerdict(records=max(0, records - (expected.header is not None)), is_good=True)


def is_utf8(chunk: bytes) -> bool:
    """Say whether all of it is UTF-8."""
    if chunk.isascii():
        return True
    try:
        chunk.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- line by line -------------------------------------------------------------------------------------------------


def _separate(path: Path, expected: Expected, lines: Lines, cleaned: Path) -> FileVerdict:
    """Write the good lines of a file into a copy; return a verdict with the bad ones."""
    with cleaned.open("xb") as copy:
        records, bad = separate(_lines(path, expected, lines), expected, lines, copy.write)
    if not bad or len(bad) > CAPS.bad_rows:
        cleaned.unlink()
    if len(bad) > CAPS.bad_rows:
        raise too_many(bad, expected.on_schema)
    return FileVerdict(records=records, bad=tuple(bad), cleaned=cleaned if bad else None)


def separate(
    found: Iterable[tuple[int, bytes, bool]], expected: Expected, lines: Lines, keep: Callable[[bytes], object]
) -> tuple[int, list[BadRecord]]:
    """Give the good lines to `keep`; return their number of records, and the bad lines; stop if these are too many.

    Args:
        found: number, line with its end, whether Spark makes a record of it.
    """
    records = 0
    bad: list[BadRecord] = []
    for number, line, is_record in found:
        reason = fault_in(line, expected, lines) if is_record else None
        if reason is None:
            keep(line)
            records += is_record
            continue
        bad.append(BadRecord.of(number, content_of(line), reason))
        if len(bad) > CAPS.bad_rows:
            break
    return records, bad


def _lines(path: Path, expected: Expected, lines: Lines) -> Iterator[tuple[int, bytes, bool]]:
    """Yield (number from 1, line with its end, whether Spark makes a record of it)."""
    number, awaits_header, is_one = 0, expected.header is not None, lines.records_test(expected)
    for chunk in _pieces(path):
        for line in chunk.splitlines(keepends=True):
            number += 1
            is_record = is_one(line)
            if is_record and awaits_header:
                lines.has_header(line, expected)
                is_record = awaits_header = False
            yield number, line, is_record


def fault_in(line: bytes, expected: Expected, lines: Lines) -> str | None:
    """Return why a line is bad, None if it is good."""
    content = content_of(line)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte 0x{content[error.start]:02x} at {error.start + 1}"
    if "\0" in text:
        return f"has a NUL byte at {text.index(chr(0)) + 1}"
    return lines.fault_of(text, expected)


def content_of(line: bytes) -> bytes:
    """Return a line without its end."""
    return line.rstrip(b"\r\n")


# --- files without lines ------------------------------------------------------------------------------------------


def _whole(path: Path, expected: Expected, lines: Lines) -> FileVerdict:
    """Judge a file that one bad byte makes ambiguous as a whole: it is good, or refused."""
    if expected.encoding is not None:
        _check_encoding(path, expected.encoding, expected, lines)
        check_values(_raw_pieces(path), expected, lines)
        return FileVerdict()
    offset, kept, awaits_header = _mark_bytes(path), bytearray(), expected.header is not None
    for chunk in _pieces(path):
        awaits_header = awaits_header and not lines.has_header(chunk, expected)
        require_text(chunk, offset)
        offset += len(chunk)
        if expected.has_multiline:
            kept += chunk
            _require_short_document(len(kept))
    _require_document(kept.decode(), expected, lines)
    check_values(_raw_pieces(path), expected, lines)
    return FileVerdict()


def _require_short_document(size: int) -> None:
    if size > CAPS.document_bytes:
        raise Refused(f"is longer than {CAPS.document_bytes} bytes, too long to be read with multiLine")


def _require_document(text: str, expected: Expected, lines: Lines) -> None:
    """Raise Refused for the fault of a file that is read with `multiLine`: Spark reads only the first of two values."""
    if expected.has_multiline and (fault := lines.fault_of_document(text, expected)):
        raise Refused(fault)


def require_text(chunk: bytes, offset: int) -> None:
    """Raise Refused for the first byte of a piece that is no text.

    Args:
        offset: of the piece in the file.
    """
    text = len(chunk)
    if not is_utf8(chunk):
        try:
            chunk.decode()
        except UnicodeDecodeError as error:
            text = error.start
    if 0 in chunk[:text]:
        raise Refused(f"has a NUL byte at {offset + chunk.index(0) + 1}")
    if text < len(chunk):
        raise Refused(f"is not UTF-8: byte 0x{chunk[text]:02x} at {offset + text + 1}")


def _mark_bytes(path: Path) -> int:
    first = next(_raw_pieces(path), b"")
    return len(UTF8_MARK) if first.startswith(UTF8_MARK) else 0


def _check_encoding(path: Path, encoding: str, expected: Expected, lines: Lines) -> None:
    try:
        decoder = codecs.getincrementaldecoder(encoding)()
    except LookupError:
        return  # an encoding that Java knows and Python does not: left to Spark
    kept, size = [], 0
    try:
        for number, piece in enumerate(_raw_pieces(path)):
            text = decoder.decode(piece)
            if "\0" in text:
                raise Refused("has a NUL character")
            if number == 0 and expected.header is not None:  # later pieces may begin within a line
                lines.has_header(text.encode(errors="replace"), expected)
            if expected.has_multiline:
                kept.append(text)
                size += len(piece)
                _require_short_document(size)
        decoder.decode(b"", final=True)
    except UnicodeError as error:
        raise Refused(f"is not {encoding}, as options say: {error}") from error
    _require_document("".join(kept).removeprefix("\ufeff"), expected, lines)


# --- bytes --------------------------------------------------------------------------------------------------------


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield a file's content, without a byte order mark, in pieces that end at the end of a line.

    Raises:
        Refused: the first bytes show another format, a cap is exceeded, or a line is too long.
    """
    rest, is_first = b"", True
    for piece in _raw_pieces(path):
        if is_first:
            refuse_by_mark(piece)
        rest += piece.removeprefix(UTF8_MARK) if is_first else piece
        is_first = False
        cut = rest.rfind(b"\n") + 1
        if cut:
            require_short_line(rest)
            yield rest[:cut]
            rest = rest[cut:]
        require_short_line(rest)
    if rest:
        yield rest


def require_short_line(lines: bytes) -> None:
    """Raise Refused if the first line is too long; the lines behind it are in one piece, shorter than the cap."""
    if len(lines) > CAPS.line_bytes and not 0 <= lines.find(b"\n") <= CAPS.line_bytes:
        raise Refused(f"has a line of more than {CAPS.line_bytes} bytes")


def refuse_by_mark(piece: bytes) -> None:
    """Raise Refused if a file's first bytes show another encoding or format."""
    for mark, encoding in _MARKS.items():
        if piece.startswith(mark):
            option = f'options={{"encoding": "{encoding}", "multiLine": "true"}}'
            raise Refused(f"is {encoding} by its byte order mark; CSV and JSON documents are read so with {option}")
    for magic, kind in _MAGIC.items():
        if piece.startswith(magic):
            raise Refused(kind)


def _raw_pieces(path: Path) -> Iterator[bytes]:
    """Yield the decompressed content of a file in pieces, within the caps."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix != PLAIN:
            yield from unpacked(file, path.suffix, size)
            return
        total = 0
        while piece := file.read(CAPS.piece_bytes):
            total += len(piece)
            _require_sized(total, size)
            yield piece


def unpacked(file: BinaryIO, suffix: str, size: int) -> Iterator[bytes]:
    """Yield the decompressed content of an open file of `size` bytes in pieces.

    Raises:
        Refused: it is larger than the caps, or cannot be decompressed.
        OSError: the file cannot be read.
    """
    total = 0
    try:
        with _DECOMPRESSORS[suffix](file) as stream:
            while piece := stream.read(CAPS.piece_bytes):
                _require_sized(file.tell(), size)
                total += len(piece)
                if total > CAPS.decompressed_bytes:
                    raise Refused(f"holds more than {CAPS.decompressed_bytes} bytes when decompressed")
                if total > CAPS.ratio_free_bytes and total > CAPS.ratio * file.tell():
                    raise Refused(f"holds more than {CAPS.ratio} times its bytes when decompressed")
                yield piece
    except (EOFError, zlib.error, OSError) as error:
        require_fault_of_file(error)
        raise Refused(f"cannot be decompressed: {error}") from error


def _require_sized(read: int, size: int) -> None:
    """Raise Refused for a file with more bytes than its size, such as in /proc: Spark would read none of them."""
    if read > size:
        raise Refused(f"holds more than the {size} bytes of its size: it is no file of a disk, or is being written to")
