"""Folders and prefixes in which tasks read and write files: on a disk that executors share, or in a bucket.

A place is sent to executors unchanged; it holds no credentials. Executors take the credentials for a bucket from their
own environment.
"""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import ObjectMissing
from drainmark.jobs.tasks.buckets import Bucket, StoredObject

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE_BYTES = 1024 * 1024
MARK_BYTES = 64 * 1024
"""The number of bytes at a file's end from which its mark is computed. They are all of a small file; of a larger one
the end of the footer, with offsets, sizes and bounds of pages and the name of the writer, or all of it and bytes before
it."""


class Place(ABC):
    """A folder of files that are written once, under names that are used once.

    Attributes:
        is_kept: its files outlive the attempt; if not, they are neither synced to disk nor compressed.
    """

    is_kept: bool

    @abstractmethod
    def new_file(self, name: str) -> Any:
        """Return a context in which a new file is written; at its end the file exists, and is durable if `is_kept`.

        Raises:
            OSError: it cannot be written.
        """

    @abstractmethod
    def opened(self, name: str) -> Any:
        """Return the path or file object that pyarrow opens to read a file.

        Raises:
            OSError: there is none, or it cannot be read.
        """

    @abstractmethod
    def stamp(self, name: str) -> tuple[int, str]:
        """Return a file's size in bytes and its mark; the mark is "" if the place has its own, such as ETags.

        Raises:
            FileNotFoundError: there is none.
        """

    def take_in(self, path: Path, name: str) -> None:
        """Move a file of this machine to the place, as a new file.

        Raises:
            OSError: it cannot be written.
        """
        with path.open("rb") as file, self.new_file(name) as sink:
            shutil.copyfileobj(file, sink, _PIECE_BYTES)
        path.unlink()

    def for_an_attempt(self) -> Place:
        """Return the place for files that are not needed after this attempt."""
        return self


@dataclass(frozen=True, slots=True)
class LocalPlace(Place):
    """A folder that this process and the executors reach by the same path."""

    folder: str
    is_kept: bool = True

    def __str__(self) -> str:
        return self.folder

    @contextmanager
    def new_file(self, name: str) -> Iterator[Any]:
        path = os.path.join(self.folder, name)
        grown = make_folder(os.path.dirname(path))
        with open(path, "xb") as sink:
            yield sink
            if self.is_kept:
                sink.flush()
                os.fsync(sink.fileno())
        if self.is_kept:
            sync_folder(os.path.dirname(path), *grown)

    def opened(self, name: str) -> Any:
        return os.path.join(self.folder, name)

    def stamp(self, name: str) -> tuple[int, str]:
        return stamp_of(os.path.join(self.folder, name))

    def for_an_attempt(self) -> Place:
        return replace(self, is_kept=False)

    def take_in(self, path: Path, name: str) -> None:
        target = Path(self.folder, name)
        if target != path:
            Place.take_in(self, path, name)


@dataclass(frozen=True, slots=True)
class BucketPlace(Place):
    """A prefix of a bucket."""

    bucket: Bucket
    prefix: str
    is_kept: bool = True

    def __str__(self) -> str:
        return self.bucket.uri(self.prefix)

    @contextmanager
    def new_file(self, name: str) -> Iterator[Any]:
        with self.bucket.writer(self._key(name)) as sink:
            yield sink

    def opened(self, name: str) -> Any:
        return self.bucket.reader(self._key(name))

    def stamp(self, name: str) -> tuple[int, str]:
        try:
            return self.bucket.head(self._key(name)).size, ""
        except ObjectMissing as error:
            raise FileNotFoundError(name) from error

    def stored(self, name: str, size: int, etag: str) -> StoredObject:
        """Return a file as tasks fetch it: with this ETag, or not at all."""
        return StoredObject(bucket=self.bucket, key=self._key(name), size=size, etag=etag)

    def _key(self, name: str) -> str:
        return "/".join(filter(None, (self.prefix, name)))


class TooLarge(Exception):
    """Rows have more values, or their files more bytes, than this process should hold."""


@dataclass(slots=True)
class MemoryPlace(Place):
    """Files of this process. Files of rows stay Arrow tables, and become Parquet only if somebody opens them.

    Attributes:
        most_values: how many values the rows of all files may have together.
    """

    most_values: int = sys.maxsize
    is_kept: bool = False
    _rows: dict[str, list[pa.Table]] = field(default_factory=dict)
    _bytes: dict[str, bytes] = field(default_factory=dict)
    _values: int = 0

    def add(self, name: str, rows: pa.Table) -> None:
        """Add rows to a file.

        Raises:
            TooLarge: the place has more values than it should.
        """
        self._values += rows.num_rows * rows.num_columns
        if self._values > self.most_values:
            raise TooLarge
        self._rows.setdefault(name, []).append(rows)

    def tables(self, names: Sequence[str]) -> list[pa.Table]:
        """Return the rows of files, in their order."""
        return [rows for name in names for rows in self._rows[name]]

    @contextmanager
    def new_file(self, name: str) -> Iterator[Any]:
        sink = io.BytesIO()
        yield sink
        self._bytes[name] = sink.getvalue()

    def opened(self, name: str) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if name in self._rows:
            sink = pa.BufferOutputStream()
            pq.write_table(pa.concat_tables(self._rows[name]), sink)
            return pa.BufferReader(sink.getvalue())
        self.stamp(name)
        return pa.BufferReader(self._bytes[name])

    def stamp(self, name: str) -> tuple[int, str]:
        if name in self._rows:
            return sum(rows.nbytes for rows in self._rows[name]), ""
        if name in self._bytes:
            return len(self._bytes[name]), ""
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def __str__(self) -> str:
        return "memory"


def write_durably(path: Path, content: bytes | pa.Buffer, *, mode: str = "xb") -> None:
    """Write a file; its bytes are durable when this returns, its name is after `sync_folder`."""
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_folder(folder: str | os.PathLike[str], mode: int = 0o777) -> list[Path]:
    """Make a folder, and those above it, if they are missing; a name is durable once `sync_folder` got its folder.

    Args:
        mode: of the last one.

    Returns:
        the folders that have a new name, the lowest one first; none if there was nothing to make.
    """
    last = Path(folder)
    if last.is_dir():
        return []
    missing = [last, *itertools.takewhile(lambda each: not each.exists(), last.parents)]  # a file on the way: an error
    for each in reversed(missing):
        each.mkdir(mode if each == last else 0o777, exist_ok=True)
    return [each.parent for each in missing]


def sync_folder(*folders: str | os.PathLike[str]) -> None:
    """Make the names in folders durable."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def stamp_of(path: str | os.PathLike[str]) -> tuple[int, str]:
    """Return a file's size in bytes and its mark.

    Raises:
        FileNotFoundError: there is none.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MARK_BYTES))
        return size, mark_of(file.read(MARK_BYTES))


def mark_of(tail: Any) -> str:
    """Return the mark of a file from its last bytes, at most `MARK_BYTES` of them."""
    return hashlib.blake2b(tail, digest_size=16).hexdigest()
