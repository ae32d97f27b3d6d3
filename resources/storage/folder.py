"""Folders of tables: on this machine, or a prefix of a bucket, behind one small set of methods.

All other code names files by their path relative to a table, as checkpoint rows do. Only `resources/storage` knows the
place of such a path on a disk or in a bucket.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, StoreUnavailable
from drainmark.jobs.errors.machine_faults import machine_fault
from drainmark.jobs.failpoints import FilePoint
from drainmark.jobs.tasks.parquet_files import as_written, require_as_written
from drainmark.jobs.tasks.places import (
    MARK_BYTES,
    LocalPlace,
    Place,
    make_folder,
    mark_of,
    stamp_of,
    sync_folder,
    write_durably,
)
from drainmark.jobs.world import Seam, crosses

if TYPE_CHECKING:
    import pyarrow as pa

PART = ".part"
"""The ending of names of files that are being written; a file that a crash left is never read."""

_FEW_ROWS = 10_000
"""One thread decodes a file of at most so many rows faster than several do."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """An existing file: path relative to the `Folder`, bytes, time of the last change in seconds since 1970."""

    path: str
    size: int
    modified: float


_PIECE_BYTES = 4 * 2**20
"""The largest file, in bytes, that is read at once."""


class Folder(ABC):
    """A folder of immutable files. Paths are relative to it, separated by `/`; a file is never written twice.

    Attributes:
        uri: its address in messages and for `deltalake`.
        origin: the folder that it was made from by `/`, and the path.
    """

    uri: str
    origin: tuple[Folder, str] | None = None

    def __str__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @abstractmethod
    def __truediv__(self, path: str) -> Folder:
        """Return the folder below this one; see `below`."""

    @property
    @abstractmethod
    def place(self) -> Place:
        """Return the place through which tasks of Spark reach the folder."""

    # --- for deltalake ---------------------------------------------------------------------------------------------

    @abstractmethod
    def storage_options(self) -> dict[str, str] | None:
        """Return options for `deltalake` to reach the folder now. Never store or show them: they may hold credentials.

        Raises:
            StoreRefused, StoreUnavailable: there are no credentials, or they cannot be renewed.
        """

    @abstractmethod
    def is_failure(self, error: BaseException) -> bool:
        """Say whether the store below `deltalake` caused its error, so that the table is not at fault."""

    @abstractmethod
    def failure(self, doing: str, error: BaseException) -> DrainmarkError:
        """Return Drainmark's error for an error that the store caused; `doing` is the action, in the infinitive."""

    @abstractmethod
    def require_put_if_absent(self) -> None:
        """Check that only one of several commits of the same version can succeed here.

        Raises:
            StoreRefused: the store overwrites existing objects.
        """

    # --- files -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def write(self, path: str, data: pa.Buffer) -> str:
        """Write a new file atomically, and return its mark. The file is durable when this returns.

        Raises:
            FileExistsError: there is a file with this path.
        """

    @abstractmethod
    def size(self, path: str) -> int:
        """Return a file's size in bytes.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def stamp(self, path: str) -> tuple[int, str]:
        """Return a file's size in bytes and its mark, which another file at its path would not have.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def source(self, path: str) -> Any:
        """Return the path or file object that pyarrow opens to read one file."""

    @abstractmethod
    def read(
        self,
        paths: Sequence[str],
        schema: pa.Schema,
        columns: Sequence[str] | None = None,
        where: pa.compute.Expression | None = None,
    ) -> pa.Table:
        """Return the rows of Parquet files that match `where`, in the types of `schema`, in no order."""

    @abstractmethod
    def read_each(self, paths: Sequence[str], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of each Parquet file, in the order of the paths, in the types of the file."""

    def read_pieces(self, path: str, size: int, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a Parquet file of `size` bytes, as `read_each`; of a large file, one row group at a time.

        Raises:
            FileDamaged: the file cannot be read as it was written.
            StoreUnavailable: the object store does not answer.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if size <= _PIECE_BYTES:
            yield from self.read_each([path], columns)
            return
        try:
            with pq.ParquetFile(self.place.opened(path)) as file:
                for number in range(file.num_row_groups):
                    yield file.read_row_group(number, list(columns) if columns is not None else None)
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None and not isinstance(self, LocalFolder):
                raise self.failure("read", error) from None
            with as_written(self / path):
                raise

    # --- listing and deleting --------------------------------------------------------------------------------------

    @abstractmethod
    def names(self, path: str = "") -> Iterator[str]:
        """Yield the names of the files and folders directly below, sorted; none if the folder does not exist."""

    @abstractmethod
    def modified(self, path: str) -> Mapping[str, float]:
        """Return the files directly below by name, with the time of their last change in seconds since 1970."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a folder with all its content; a missing folder is no error."""

    @abstractmethod
    def everything(self, path: str) -> Iterator[FileEntry]:
        """Yield all files below a folder, at any depth, in no order; hidden ones too."""

    @abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Delete files, and folders that are empty then; missing files are no error."""


F = TypeVar("F", bound=Folder)


def below(found: F, outer: Folder, path: str) -> F:
    """Let a folder know from which it was made by `/`; return it."""
    found.origin = outer, path
    return found


def around(folder: Folder) -> Iterator[Folder]:
    """Yield the folders around one, the nearest first, up to the one from which all were made by `/`."""
    if folder.origin is not None:
        outer, path = folder.origin
        yield from (outer / str(part) for part in PurePosixPath(path).parents if part.name)
        yield outer
        yield from around(outer)


class LocalFolder(Folder):
    """A folder on a disk of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = str(path)

    def __truediv__(self, path: str) -> LocalFolder:
        return below(LocalFolder(self.path / path), self, path)

    @property
    def place(self) -> LocalPlace:
        return LocalPlace(str(self.path))

    def storage_options(self) -> None:
        return None

    def is_failure(self, error: BaseException) -> bool:
        return isinstance(error, OSError)

    def failure(self, doing: str, error: BaseException) -> DrainmarkError:
        fault = machine_fault(error)
        remedy = fault.remedy if fault is not None else None
        return StoreUnavailable(f"cannot {doing} {self.uri}: {error}", remedy=remedy, table=self.uri)

    def require_put_if_absent(self) -> None:
        """Do nothing: a file gets its name by link(2), which never overwrites."""

    def write(self, path: str, data: pa.Buffer) -> str:
        target = self.path / path
        part = target.with_name(f".{world.token()}{PART}")
        try:
            _write(part, data)
            world.pass_point(FilePoint.WRITTEN)
            _link(part, target)
        finally:
            _unlink(part)
        return mark_of(data.slice(max(0, data.size - MARK_BYTES)))

    def size(self, path: str) -> int:
        return _size(self.path / path)

    def stamp(self, path: str) -> tuple[int, str]:
        return _stamp(self.path / path)

    def source(self, path: str) -> Any:
        return str(self.path / path)

    def read(
        self,
        paths: Sequence[str],
        schema: pa.Schema,
        columns: Sequence[str] | None = None,
        where: pa.compute.Expression | None = None,
    ) -> pa.Table:
        import pyarrow as pa
        import pyarrow.dataset as ds

        if not paths:
            return nothing(schema, columns)
        files = [str(self.path / path) for path in paths]

        def rows() -> pa.Table:
            dataset = ds.dataset(files, schema=schema, format="parquet", partitioning=None)
            try:
                return dataset.to_table(columns=list(columns) if columns is not None else None, filter=where)
            except FileNotFoundError:
                raise
            except (pa.ArrowInvalid, OSError):  # which tell no file
                for file in files:
                    require_as_written(file, file)
                raise

        return world.across(Seam.STORE_READ, rows, self.path)

    def read_each(self, paths: Sequence[str], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        for path in paths:
            yield _rows_of(self.path / path, columns)

    def names(self, path: str = "") -> Iterator[str]:
        return iter(_names(self.path / path))

    def modified(self, path: str) -> Mapping[str, float]:
        return _modified(self.path / path)

    def delete(self, path: str) -> None:
        _delete(self.path / path)

    def everything(self, path: str) -> Iterator[FileEntry]:
        return iter(_everything(self.path / path, self.path))

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            _unlink(self.path / path)
        parents = {parent.as_posix() for path in paths for parent in Path(path).parents}
        for parent in sorted(parents - {"."}, reverse=True):
            _rmdir(self.path / parent)


@crosses(Seam.STORE_WRITE)
def _write(path: Path, data: pa.Buffer) -> None:
    grown = make_folder(path.parent)
    write_durably(path, data)
    sync_folder(*grown)


@crosses(Seam.STORE_WRITE)
def _link(path: Path, target: Path) -> None:
    """Give a file its name; a rename would overwrite the file of another writer."""
    os.link(path, target)
    sync_folder(target.parent)


@crosses(Seam.STORE_READ)
def _size(path: Path) -> int:
    return path.stat().st_size


@crosses(Seam.STORE_READ)
def _stamp(path: Path) -> tuple[int, str]:
    return stamp_of(path)


@crosses(Seam.STORE_READ)
def _rows_of(path: Path, columns: Sequence[str] | None) -> pa.Table:
    import pyarrow.parquet as pq

    with as_written(path), pq.ParquetFile(path) as file:
        is_large = file.metadata.num_rows > _FEW_ROWS
        return file.read(columns=list(columns) if columns is not None else None, use_threads=is_large)


@crosses(Seam.STORE_READ)
def _traits(folder: Path, paths: Sequence[str]) -> Mapping[str, object]:
    found: dict[str, object] = {}
    for path in paths:
        with suppress(OSError):  # whoever reads it is told
            facts = os.stat(f"{folder}/{path}")
            found[path] = facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
    return found


@crosses(Seam.STORE_LIST)
def _names(folder: Path) -> Sequence[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else ()


@crosses(Seam.STORE_LIST)
def _modified(folder: Path) -> Mapping[str, float]:
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_mtime for entry in entries if entry.is_file()}


@crosses(Seam.STORE_LIST)
def _everything(folder: Path, root: Path) -> Sequence[FileEntry]:
    found = []
    for below, _, names in os.walk(folder):
        for place in (Path(below, name) for name in names):
            with suppress(FileNotFoundError):
                facts = place.lstat()
                found.append(FileEntry(place.relative_to(root).as_posix(), facts.st_size, facts.st_mtime))
    return found


def _delete(folder: Path) -> None:
    """Delete a folder as far as it can be."""
    with suppress(OSError):
        world.across(Seam.STORE_REMOVE, lambda: shutil.rmtree(folder, ignore_errors=True), folder)


@crosses(Seam.STORE_REMOVE)
def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _rmdir(folder: Path) -> None:
    with suppress(OSError):  # not empty
        world.across(Seam.STORE_REMOVE, folder.rmdir, folder)


def traits(folder: Folder, paths: Sequence[str]) -> Mapping[str, object]:
    """Return, of each file that is there, what another file at its path would not have, at less cost than reading.

    Files of which only a request to a store tells it are left out: a small file costs no more than a request.
    """
    return _traits(folder.path, paths) if isinstance(folder, LocalFolder) else {}


def folder_at(place: Path | Folder) -> Folder:
    """Return a folder; for a path, the local folder at it."""
    return LocalFolder(place) if isinstance(place, Path) else place


def nothing(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Table:
    """Return an empty table, as a reader of no files does."""
    empty = schema.empty_table()
    return empty.select(list(columns)) if columns is not None else empty


def write_whole(path: Path, text: str) -> None:
    """Replace a file with a text atomically, so that no process reads half of it; create its folder if needed.

    Raises:
        OSError: the file was not changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{world.token()}")
    try:
        hidden.write_text(text, encoding="utf-8")
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
