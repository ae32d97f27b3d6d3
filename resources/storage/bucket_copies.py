"""Copies on this machine of objects in a bucket, so that Spark needs no S3A bundle to read and write them.

Files are immutable, so a copy by path is sound.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from drainmark.resources.storage.bucket_prefix import BucketPrefix
from drainmark.resources.storage.copies import Copies
from drainmark.resources.storage.s3_connection import PARALLEL


class BucketCopies(Copies):
    """The copies that one process has of the objects of a prefix.

    Args:
        objects: what they are copies of.
        folder: where they are; None where Spark reads and writes nothing.
    """

    def __init__(self, objects: BucketPrefix, folder: Path | None) -> None:
        self.objects = objects
        self.folder = folder

    def local(self, path: str) -> Path:
        if self.folder is None:
            objects = self.objects
            raise ValueError(f"s3://{objects.bucket}/{objects.prefix} was opened without a place for copies")
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def push(self, paths: Sequence[str]) -> Mapping[str, str]:
        return dict(zip(paths, _all(self._pushed, paths), strict=True))

    def fetch(self, paths: Sequence[str]) -> list[Path]:
        return _all(self._fetched, paths)

    def keep(self, paths: Iterable[str]) -> None:
        if self.folder is None or not self.folder.is_dir():
            return
        kept = {self.folder / path for path in paths}
        for copy in [path for path in self.folder.rglob("*") if path.is_file() and path not in kept]:
            copy.unlink(missing_ok=True)

    def delete(self, path: str) -> None:
        """Delete the copies below a folder."""
        if self.folder:
            shutil.rmtree(self.folder / path, ignore_errors=True)

    def remove(self, paths: Sequence[str]) -> None:
        """Delete the copies of some files."""
        for path in paths if self.folder else ():
            self.local(path).unlink(missing_ok=True)

    def _pushed(self, path: str) -> str:
        """Return the etag of the object that a file became."""
        objects, key = self.objects, self.objects.key(path)
        objects.store.upload(objects.bucket, key, self.local(path))
        return objects.store.head(objects.bucket, key).etag

    def _fetched(self, path: str) -> Path:
        """Return a file's local copy; it appears whole or not at all."""
        copy = self.local(path)
        if not copy.is_file():
            store, bucket, key = self.objects.store, self.objects.bucket, self.objects.key(path)
            found = store.head(bucket, key)
            part = copy.with_name(f".{uuid.uuid4().hex}.part")
            store.fetch(bucket, key, part, etag=found.etag, size=found.size)
            part.rename(copy)
        return copy


def _all(action: Callable[[str], Any], paths: Sequence[str]) -> list[Any]:
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="s3") as pool:
        return list(pool.map(action, paths))
