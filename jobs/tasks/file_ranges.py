"""Files of a group and their ranges, each a work item of Spark's tasks; tasks that look at files without reading rows.

A task reads its range from the file's disk or bucket (an object with `If-Match`), in pieces of some megabytes. A
compressed file of lines, and one whose records are found only from its beginning on, is one range.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import BinaryIO

from drainmark.jobs.errors import ObjectChanged, ObjectMissing
from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.formats.file_columns import FileColumns, file_columns
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.lines.content import END, PLAIN, LocalFile, Readable, SeekableData
from drainmark.jobs.formats.lines.record_ranges import EdgeFacts, edge_facts
from drainmark.jobs.tasks.buckets import StoredObject
from drainmark.jobs.tasks.executor import Executor, Facts

_HEAD_BYTES = 64 * 1024
_PIECE_BYTES = 4 * 1024 * 1024
"""The bytes of one request for a part of an object that is read out of order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file of a group.

    Attributes:
        number: its sequence id.
        path: to read it; executors reach it by the same path if tasks read it. For an object: the name of its copy.
        size: bytes, about.
        stored: the object to fetch; None for a file.
    """

    number: int
    path: str
    size: int
    stored: StoredObject | None = None

    @property
    def suffix(self) -> str:
        """Return the ending that tells the compression."""
        return os.path.splitext(self.path)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """The lines, records or row groups of a file that begin at or after byte `start` and before byte `end`.

    Attributes:
        end: `END` if the size of the content is not known.
        is_whole: it is the only range of its file.
        is_quoted: it begins within quotes.
    """

    file: InputFile
    start: int
    end: int
    is_whole: bool = False
    is_quoted: bool = False

    @property
    def size(self) -> int:
        return (self.end if self.end != END else self.file.size) - self.start


def ranges_of(file: InputFile, expected: Expected, range_bytes: int) -> list[FileRange]:
    """Return the ranges of a file, in their order."""
    if not has_cuts(expected) or (expected.lines is not None and file.suffix != PLAIN):
        return [FileRange(file=file, start=0, end=END, is_whole=True)]
    size = file.stored.size if file.stored is not None else os.path.getsize(file.path)
    starts = range(0, size, range_bytes) or [0]
    is_whole = len(starts) == 1
    return [FileRange(file=file, start=each, end=min(size, each + range_bytes), is_whole=is_whole) for each in starts]


def has_cuts(expected: Expected) -> bool:
    """Say whether records can be found from a place within a file that is not compressed."""
    if expected.lines is None:
        return expected.reads.has_ranges
    is_document = expected.is_whole_text or (expected.is_multiline and expected.lines.has_documents)
    return not is_document and expected.line_end is None and expected.encoding is None


@contextmanager
def opened(file: InputFile) -> Iterator[Readable]:
    """Open a file for reads by position.

    Raises:
        Refused, OSError: it is no file of a disk, or cannot be opened.
    """
    if file.stored is not None:
        yield file.stored
        return
    with open(file.path, "rb") as found:
        yield LocalFile.of(found)


@dataclass(slots=True)
class FetchedOnce:
    """Data that are fetched piece by piece, each once, when it is first read, and kept in a file.

    Readers of Parquet come back to bytes, and jump over others.

    Args:
        copy: an empty file.
    """

    data: Readable
    copy: BinaryIO
    _fetched: set[int] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    @property
    def size(self) -> int:
        return self.data.size

    def read(self, start: int, end: int) -> bytes:
        """Return bytes as `Readable.read`; several threads may call it."""
        if start >= min(end, self.size):
            return b""
        with self._lock:
            for number in range(start // _PIECE_BYTES, -(-min(end, self.size) // _PIECE_BYTES)):
                if number not in self._fetched:
                    at = number * _PIECE_BYTES
                    self.copy.seek(at)
                    self.copy.write(self.data.read(at, min(self.size, at + _PIECE_BYTES)))
                    self._fetched.add(number)
            self.copy.flush()
        return os.pread(self.copy.fileno(), end - start, start)


# --- looks at files -----------------------------------------------------------------------------------------------


def edges_of(executor: Executor, ranges: Sequence[FileRange], expected: Expected) -> list[EdgeFacts | str]:
    """Return how each range begins and ends, for records that may have several lines; "gone" or "changed" if lost.

    Raises:
        OSError, StoreUnavailable: a disk or a store failed.
    """
    told = executor.run(EdgeTask(expected), executor.shares_of(ranges))
    found = ((answer["lost"] if "lost" in answer else answer["edges"]) for answer in told)
    return [
        each if isinstance(each, str) else EdgeFacts(**{**each, "quoted_after": tuple(each["quoted_after"])})
        for each in found
    ]


def digests_of(executor: Executor, files: Sequence[InputFile]) -> list[str | None]:
    """Return the digest of each object's bytes; None if the object is gone or has changed.

    Raises:
        OSError, StoreUnavailable: a store failed.
    """
    return [answer.get("digest") for answer in executor.run(DigestTask(), executor.shares_of(_wholes(files)))]


def layouts_of(executor: Executor, files: Sequence[InputFile], expected: Expected) -> list[FileColumns | None]:
    """Return the columns of each file (`file_columns.file_columns`); None also if an object is gone or has changed.

    Raises:
        OSError, StoreUnavailable: a disk or a store failed.
    """
    found = [answer.get("layout") for answer in executor.run(LayoutTask(expected), executor.shares_of(_wholes(files)))]
    return [FileColumns(each["ddl"], tuple(each["unread"])) if each is not None else None for each in found]


def _wholes(files: Sequence[InputFile]) -> list[FileRange]:
    return [FileRange(file=file, start=0, end=file.size) for file in files]


@dataclass(frozen=True, slots=True)
class _InspectionTask:
    """A look at files that reads no rows; a share is some ranges."""

    def work(self, share: Sequence[FileRange]) -> Iterator[Facts]:
        """Yield the facts of each range, or as `lost` that its object is "gone" or "changed"."""
        for wanted in share:
            try:
                with opened(wanted.file) as data:
                    yield self._found(data, wanted)
            except ObjectMissing:
                yield {"lost": "gone"}
            except ObjectChanged:
                yield {"lost": "changed"}

    def _found(self, data: Readable, wanted: FileRange) -> Facts:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class EdgeTask(_InspectionTask):
    """A look at how ranges begin and end, for records that may have several lines."""

    expected: Expected

    def _found(self, data: Readable, wanted: FileRange) -> Facts:
        return {"edges": asdict(edge_facts(data, wanted.start, wanted.end, self.expected.dialect))}


@dataclass(frozen=True, slots=True)
class DigestTask(_InspectionTask):
    """The digests of files: the first 32 hex digits of SHA-256."""

    def _found(self, data: Readable, wanted: FileRange) -> Facts:
        digest = hashlib.sha256()
        for start in range(0, data.size, CAPS.piece_bytes):
            digest.update(data.read(start, min(data.size, start + CAPS.piece_bytes)))
        return {"digest": digest.hexdigest()[:32]}


@dataclass(frozen=True, slots=True)
class LayoutTask(_InspectionTask):
    """A look at the columns that files declare; it reads only the bytes needed for that."""

    expected: Expected

    def _found(self, data: Readable, wanted: FileRange) -> Facts:
        layout = file_columns(io.BufferedReader(SeekableData(data), _HEAD_BYTES), wanted.file.suffix, self.expected)
        return {"layout": asdict(layout) if layout is not None else None}
