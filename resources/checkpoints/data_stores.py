"""Two-level stores for handlers' checkpoints, in a folder and in a bucket; `delta_data_store` has the one in Delta.

A new store implements `DataStore` (`jobs/state/handlers/data_store.py`) and is opened in `data_store_of`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import ObjectChanged, ObjectMissing, StoreUnavailable
from drainmark.jobs.failpoints import StorePoint
from drainmark.jobs.state.handlers.data_store import VALUE_LIMIT, DataStore, DataStoreEntry
from drainmark.jobs.tasks.places import make_folder, sync_folder, write_durably
from drainmark.resources.storage.bucket_folder import folder_of
from drainmark.resources.storage.object_store import ObjectStore
from drainmark.resources.storage.s3_connection import PARALLEL

if TYPE_CHECKING:
    from drainmark.resources.settings import Settings

DELTA = "delta://"

_READABLE = re.compile(r"[^A-Za-z0-9_-]+")
_PART = ".part"
_MADE, _GONE, _LIFE = ".made-", ".gone-", ".entry"
_LONGEST_KEY = 100
_REMEDY = "look at the disk of state_store; a new attempt starts by itself"


class DirectoryDataStore(DataStore):
    """A folder for each entry, a file for each pair. Both appear by renaming, and are durable before a call returns.

    Args:
        root: the folder of all entries; made with the first entry.
        value_limit: bytes.
    """

    def __init__(self, root: Path, value_limit: int = VALUE_LIMIT) -> None:
        self.root = root
        self.value_limit = value_limit

    def create(self, name: str) -> DataStoreEntry:
        folder, made = self._folder(name), self.root / f"{_MADE}{world.token()}"
        with _disk(f"create {folder}"):
            if not folder.is_dir():
                sync_folder(*make_folder(made))
                write_durably(made / _LIFE, world.token().encode())
                sync_folder(made)
                with suppress(FileExistsError, OSError):  # another was faster: a folder with files stays
                    made.rename(folder)
                shutil.rmtree(made, ignore_errors=True)
                sync_folder(self.root)
            return _Directory(name, folder, self.value_limit)

    def exists(self, name: str) -> bool:
        return self._folder(name).is_dir()

    def delete(self, name: str) -> None:
        folder = self._folder(name)
        with _disk(f"delete {folder}"):
            for left in self.root.glob(f"{_GONE}*"):  # of a delete that was killed
                shutil.rmtree(left, ignore_errors=True)
            gone = self.root / f"{_GONE}{world.token()}"
            try:
                folder.rename(gone)
            except FileNotFoundError:
                return
            sync_folder(self.root)
            shutil.rmtree(gone, ignore_errors=True)

    def _folder(self, name: str) -> Path:
        return self.root / _file_name(name)


class _Directory(DataStoreEntry):
    def __init__(self, name: str, folder: Path, value_limit: int) -> None:
        self.name = name
        self.value_limit = value_limit
        self._path = folder
        self._life = (folder / _LIFE).read_bytes()

    def _folder(self) -> Path:
        """Return the entry's folder, after a check that the entry is still the one of this handle."""
        with suppress(FileNotFoundError):
            if (self._path / _LIFE).read_bytes() == self._life:
                return self._path
        raise ObjectMissing(f"there is no entry {self.name!r} any more", remedy="create it again")

    def _write(self, pairs: Mapping[bytes, bytes]) -> None:
        folder = self._folder()
        with _disk(f"write to {folder}"):
            for key, value in pairs.items():
                world.pass_point(StorePoint.PAIR_BEFORE)
                part = folder / f"{world.token()}{_PART}"
                write_durably(part, value)
                part.replace(folder / _key_name(key))
            sync_folder(folder)

    def get(self, key: bytes) -> bytes:
        folder = self._folder()
        with _disk(f"read from {folder}"):
            try:
                return (folder / _key_name(key)).read_bytes()
            except FileNotFoundError as error:
                raise KeyError(key) from error

    def exists(self, key: bytes) -> bool:
        return (self._folder() / _key_name(key)).is_file()

    def delete_all(self, keys: Iterable[bytes]) -> None:
        folder = self._folder()
        with _disk(f"delete in {folder}"):
            for key in keys:
                (folder / _key_name(key)).unlink(missing_ok=True)
            for left in folder.glob(f"*{_PART}"):  # of a write that was killed; one operator writes here
                left.unlink(missing_ok=True)
            sync_folder(folder)


class BucketDataStore(DataStore):
    """A marker object for each entry, and an object for each pair below the name that the marker contains.

    An entry that is deleted and created again gets another name in its marker, so pairs that are left of the old entry
    are never seen.

    Args:
        store: the client.
        bucket: its address.
        prefix: of all keys, without a slash at its ends.
        value_limit: bytes.
    """

    def __init__(self, store: ObjectStore, bucket: str, prefix: str, value_limit: int = VALUE_LIMIT) -> None:
        self.store = store
        self.bucket = bucket
        self.prefix = prefix
        self.value_limit = value_limit

    def create(self, name: str) -> DataStoreEntry:
        life = world.token()
        try:
            self.store.put(self.bucket, self._marker(name), life.encode(), if_absent=True)
        except ObjectChanged:  # of another process, or of ours, if the reply was lost
            life = self.store.get(self.bucket, self._marker(name)).decode()
        return _Prefix(name, self, life)

    def exists(self, name: str) -> bool:
        return self.life_of(name) is not None

    def delete(self, name: str) -> None:
        self.store.delete(self.bucket, [self._marker(name)])
        for page in self.store.pages(self.bucket, f"{self._folder(name)}/pairs/"):
            self.store.delete(self.bucket, [found.key for found in page])

    def life_of(self, name: str) -> str | None:
        """Return the name below which an entry's pairs are, None if there is no entry."""
        try:
            return self.store.get(self.bucket, self._marker(name)).decode()
        except ObjectMissing:
            return None

    def key_of(self, name: str, life: str, key: bytes) -> str:
        return f"{self._folder(name)}/pairs/{life}/{_key_name(key)}"

    def _marker(self, name: str) -> str:
        return f"{self._folder(name)}/entry"

    def _folder(self, name: str) -> str:
        return f"{self.prefix}/{_file_name(name)}".lstrip("/")


class _Prefix(DataStoreEntry):
    def __init__(self, name: str, of: BucketDataStore, life: str) -> None:
        self.name = name
        self.value_limit = of.value_limit
        self._of = of
        self._life = life

    def _key(self, key: bytes) -> str:
        return self._of.key_of(self.name, self._life, key)

    def _require(self) -> None:
        if self._of.life_of(self.name) != self._life:
            raise ObjectMissing(f"there is no entry {self.name!r} any more", remedy="create it again")

    def _write(self, pairs: Mapping[bytes, bytes]) -> None:
        self._require()
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="s3") as pool:
            puts = [pool.submit(self._put, key, value) for key, value in pairs.items()]
            for put in puts:
                put.result()

    def _put(self, key: bytes, value: bytes) -> None:
        world.pass_point(StorePoint.PAIR_BEFORE)
        self._of.store.put(self._of.bucket, self._key(key), value)

    def get(self, key: bytes) -> bytes:
        try:
            return self._of.store.get(self._of.bucket, self._key(key))
        except ObjectMissing as error:
            self._require()
            raise KeyError(key) from error

    def exists(self, key: bytes) -> bool:
        try:
            self._of.store.head(self._of.bucket, self._key(key))
        except ObjectMissing:
            self._require()
            return False
        return True

    def delete_all(self, keys: Iterable[bytes]) -> None:
        self._require()
        self._of.store.delete(self._of.bucket, [self._key(key) for key in keys])


def data_store_of(url: str, settings: Settings) -> DataStore:
    """Return the store of a setting: a folder, a prefix of a bucket, or `delta://` before either."""
    from drainmark.resources.checkpoints.delta_data_store import DeltaDataStore
    from drainmark.resources.storage.bucket_folder import BucketFolder

    folder = folder_of(url.removeprefix(DELTA), settings)
    if url.startswith(DELTA):
        return DeltaDataStore(folder)
    if isinstance(folder, BucketFolder):
        return BucketDataStore(folder.store, folder.bucket, folder.prefix)
    return DirectoryDataStore(Path(folder.uri))


def _file_name(name: str) -> str:
    """Return a file's name for any text: its plain characters, and a hash, so that no two texts share one."""
    return f"{_READABLE.sub('-', name)[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:20]}"


def _key_name(key: bytes) -> str:
    """Return a file's name for any key: the key itself if it is plain, else its hex, or the hash of a long key."""
    if re.fullmatch(rb"[a-z0-9][a-z0-9.]{0,99}", key) and not key.endswith(_PART.encode()):
        return key.decode()
    return f"x-{key.hex()}" if len(key) <= _LONGEST_KEY else f"h-{hashlib.sha256(key).hexdigest()}"


@contextmanager
def _disk(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"cannot {doing}: {error}", remedy=_REMEDY) from error
