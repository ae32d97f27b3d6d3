"""Input files that are done with are moved or deleted, each if it is still the one that was processed (V153)."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs.errors import ObjectMissing, StoreUnavailable
from jobs.protocol.addresses import address_of, is_object, prefix_of
from jobs.runtime.scanning import path_of
from resources.object_store import ObjectStore

File = tuple[str, Mapping[str, Any], int]
"""Uri, identity at the scan, sequence id."""


def dispose(
    files: Sequence[File],
    *,
    objects: ObjectStore,
    lost: Callable[[Sequence[tuple[str, Mapping[str, Any]]]], tuple[tuple[str, ...], tuple[str, ...]]],
    location: str,
    move_to: str | None,
) -> int:
    """Move files to a folder or prefix, or delete them; those that are gone, or other ones now, are left alone.

    Args:
        lost: which are gone, and which are others, as `Inputs.lost`.
        location: the folder or prefix that was scanned: what lies below it keeps its path below `move_to`.
        move_to: None to delete. A name that is taken there gets the sequence id.

    Returns:
        how many were moved or deleted.
    """
    gone, changed = lost([(uri, identity) for uri, identity, _ in files])
    left = {*gone, *changed}
    done = 0
    for uri, _, number in files:
        if uri not in left:
            if is_object(uri):
                _dispose_object(objects, uri, location, move_to)
            else:
                _dispose_file(Path(path_of(uri)), Path(location), Path(move_to) if move_to else None, number)
            done += 1
    return done


def _dispose_file(path: Path, location: Path, move_to: Path | None, number: int) -> None:
    try:
        if move_to is None:
            path.unlink(missing_ok=True)
            return
        relative = path.relative_to(location) if path.is_relative_to(location) else Path(path.name)
        target = move_to / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target = target.with_name(f"{target.name}.{number}")
        with suppress(FileNotFoundError):
            _move(path, target)
    except OSError as error:
        what = "delete" if move_to is None else "move"
        msg = f"cannot {what} {path}, which is processed: {error}"
        raise StoreUnavailable(msg, remedy="look at the permissions of the folder; it is tried again") from error


def _move(path: Path, target: Path) -> None:
    """Rename, or copy to another disk: the file is at one place whole, or at both."""
    try:
        path.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        part = target.with_name(f".{uuid.uuid4().hex}.part")
        shutil.copy2(path, part)
        with part.open("rb") as copied:
            os.fsync(copied.fileno())
        part.rename(target)
        path.unlink()


def _dispose_object(objects: ObjectStore, uri: str, location: str, move_to: str | None) -> None:
    bucket, key = address_of(uri)
    if move_to is not None:
        _, below = prefix_of(location)
        to_bucket, prefix = prefix_of(move_to)
        with suppress(ObjectMissing):
            objects.copy(bucket, key, to_bucket, prefix + key.removeprefix(below))
    objects.delete(bucket, [key])
