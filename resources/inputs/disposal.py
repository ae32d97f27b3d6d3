"""Moving or deleting of processed input files, each only if it is still the file that was processed.

Each file is checked just before: another file that has its name now was not processed, and stays.
"""

from __future__ import annotations

import errno
import filecmp
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import ObjectChanged, ObjectMissing, StoreUnavailable
from drainmark.jobs.failpoints import FilePoint
from drainmark.jobs.protocol.records.addresses import address_of, is_object, prefix_of
from drainmark.jobs.scan.bucket_objects import identity_of_object
from drainmark.jobs.scan.folder import identity_of, path_of
from drainmark.jobs.tasks.buckets import ObjectFacts
from drainmark.jobs.tasks.places import make_folder, sync_folder
from drainmark.resources.storage.folder import PART
from drainmark.resources.storage.object_store import ObjectStore

File = tuple[str, Mapping[str, Any], int]
"""Uri, identity at the scan, sequence id."""


def dispose(files: Sequence[File], *, objects: ObjectStore, location: str, move_to: str | None) -> int:
    """Move files to a folder or prefix, or delete them; files that are gone or were replaced are left alone.

    After a crash between the copy to another place and the deletion, a file is at both places; the next call finds the
    copy. For a large object, which is copied in parts, a second copy may remain: the copy may have another etag.

    Args:
        location: the folder or prefix that was scanned; a file keeps its path relative to it below `move_to`.
        move_to: None to delete. If another file has the name there already, the sequence id is appended to the name.

    Returns:
        how many were moved or deleted.

    Raises:
        StoreUnavailable, StoreRefused: a file could not be moved or deleted.
    """
    return sum(_disposed(file, objects, location, move_to) for file in files)


def _disposed(file: File, objects: ObjectStore, location: str, move_to: str | None) -> bool:
    uri, identity, number = file
    if is_object(uri):
        known = _Object(objects=objects, uri=uri, identity=identity, number=number)
        return known.delete() if move_to is None else known.move(location, move_to)
    path = _ProcessedFile(path=Path(path_of(uri)), identity=identity, number=number)
    try:
        return path.delete() if move_to is None else path.move(Path(location), Path(move_to))
    except OSError as error:
        what = "delete" if move_to is None else "move"
        msg = f"cannot {what} {path.path}, which is processed: {error}"
        raise StoreUnavailable(msg, remedy="look at the permissions of the folder; it is tried again") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProcessedFile:
    path: Path
    identity: Mapping[str, Any]
    number: int

    def is_there(self) -> bool:
        try:
            return _is_same(self.identity, identity_of(self.path.stat()))
        except FileNotFoundError:
            return False

    def delete(self) -> bool:
        if not self.is_there():
            return False
        self.path.unlink(missing_ok=True)
        return True

    def move(self, location: Path, move_to: Path) -> bool:
        relative = self.path.relative_to(location) if self.path.is_relative_to(location) else Path(self.path.name)
        for folder in reversed([move_to / parent for parent in relative.parents[:-1]]):
            if folder.is_symlink():  # whoever may write to `move_to` could have files put anywhere
                msg = f"cannot move {self.path}, which is processed: {folder} is a symbolic link"
                raise StoreUnavailable(msg, remedy="put a folder in its place; it is tried again")
        sync_folder(*make_folder((move_to / relative).parent))
        if not self.is_there():
            return False
        for name in _names(str(move_to / relative), self.number):
            target = Path(name)
            if target.is_symlink():
                continue
            if not target.exists():
                return self._move(target)
            if self._is_copy(target):
                return self.delete()
        raise AssertionError("unreachable")

    def _is_copy(self, other: Path) -> bool:
        """Say whether the file was copied there before a crash; a hard link to the file itself is no copy."""
        here, there = self.path.stat(), other.stat()
        is_alike = (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)
        return is_alike and not os.path.samestat(here, there) and filecmp.cmp(self.path, other, shallow=False)

    def _move(self, target: Path) -> bool:
        """Rename the file, or copy it to another disk: at any moment it is complete at one place, or at both."""
        try:
            self.path.rename(target)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return self._copy(target)
        return True

    def _copy(self, target: Path) -> bool:
        part = target.with_name(f".{world.token()}{PART}")
        try:
            shutil.copy2(self.path, part)
            with part.open("rb") as copied:
                os.fsync(copied.fileno())
            if not self.is_there():  # the file was replaced during the copy, which may mix both files
                return False
            part.rename(target)
        finally:
            part.unlink(missing_ok=True)
        sync_folder(target.parent)
        world.pass_point(FilePoint.COPIED)
        return self.delete()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    objects: ObjectStore
    uri: str
    identity: Mapping[str, Any]
    number: int

    def delete(self) -> bool:
        bucket, key = address_of(self.uri)
        try:
            self.objects.delete_same(bucket, key, str(self.identity["etag"]))
        except (ObjectMissing, ObjectChanged):
            return False
        return True

    def move(self, location: str, move_to: str) -> bool:
        bucket, key = address_of(self.uri)
        to_bucket, prefix = prefix_of(move_to)
        try:
            facts = self.objects.head(bucket, key)
            if not _is_same(self.identity, identity_of_object(facts)):
                return False
            to_key = self._free(to_bucket, prefix + key.removeprefix(prefix_of(location)[1]), facts)
            if to_key is not None:
                self.objects.copy(bucket, key, to_bucket, to_key, etag=facts.etag)
                world.pass_point(FilePoint.COPIED)
        except (ObjectMissing, ObjectChanged):
            return False
        return self.delete()

    def _free(self, bucket: str, key: str, facts: ObjectFacts) -> str | None:
        """Return a key that is free; None if the object was copied before a crash."""
        for name in _names(key, self.number):
            try:
                there = self.objects.head(bucket, name)
            except ObjectMissing:
                return name
            if (there.etag, there.size) == (facts.etag, facts.size):
                return None
        raise AssertionError("unreachable")


def _names(name: str, number: int) -> Iterator[str]:
    """Yield the names to try: the name itself, then with the sequence id, then with a further number."""
    yield name
    yield f"{name}.{number}"
    yield from (f"{name}.{number}.{further}" for further in itertools.count(2))


def _is_same(known: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return all(known.get(name) == value for name, value in now.items())
