"""Buckets of S3, Google and Azure behind one client, for Spark's tasks and for the process that runs them.

Only names and addresses are sent with a task: the client takes the credentials of the process in which it is used.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from drainmark.jobs.errors import ObjectChanged, ObjectMissing
from drainmark.jobs.tasks.bucket_clients import PATIENCE, Patience, client_of, said, told

PAGE_KEYS = 1000
"""The most keys on a page of a listing."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PIECE_BYTES = 8 * 1024 * 1024
_PART_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """The facts about an object, from a listing or a HEAD request.

    Attributes:
        key: as the store has it, without any encoding.
        size: bytes.
        etag: without its quotes.
        modified: seconds since 1970, whole ones on most stores.
        version: version id, if the bucket keeps versions and the answer names it.
    """

    key: str
    size: int
    etag: str
    modified: float
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a listing.

    Attributes:
        folders: common prefixes of keys, each with its slash.
        is_last: no keys follow.
        token: the server's own place for the next page; "" if it names none.
    """

    objects: tuple[ObjectFacts, ...]
    folders: tuple[str, ...] = ()
    is_last: bool = True
    token: str = ""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket.

    Args:
        address: as in uris: `s3://NAME`, `gs://NAME`, `az://CONTAINER`, `abfss://CONTAINER@ACCOUNT.dfs…`; or
            `memory://NAME`, which only this process has.
        server: address of the server of S3; "" for the others.
        profile: of the AWS configuration on the machine of the task; "" for the default.

    Raises:
        OSError: from any method: no answer, or a refusal; the message contains no credentials.
    """

    address: str
    server: str = ""
    region: str = ""
    profile: str = ""
    patience: Patience = PATIENCE

    @property
    def _client(self) -> Any:
        return client_of(self.address, self.server, self.region, self.profile, self.patience)

    def uri(self, key: str) -> str:
        """Return the uri of an object."""
        return f"{self.address}/{key}"

    # --- reading -----------------------------------------------------------------------------------------------------

    def head(self, key: str, version: str | None = None) -> ObjectFacts:
        """Return the facts of an object, or of one of its versions.

        Raises:
            ObjectMissing: the object does not exist.
        """
        with self._asked(key):
            import obstore

            options = {"head": True, **({} if version is None else {"version": version})}
            return facts_of(obstore.get(self._client, key, options=options).meta)  # type: ignore[arg-type]

    def get(self, key: str, *, etag: str | None = None, version: str | None = None, part: slice | None = None) -> bytes:
        """Return an object's bytes, or a part of them, which must not be empty.

        Raises:
            ObjectMissing, ObjectChanged: the object is gone, or does not have the etag. That of the answer is compared
                as well, since some servers ignore `If-Match`.
        """
        options: dict[str, Any] = {} if version is None else {"version": version}
        if etag is not None:
            options["if_match"] = f'"{etag}"'
        if part is not None:
            options["range"] = (part.start, part.stop)
        try:
            with self._asked(key):
                import obstore

                answer = obstore.get(self._client, key, options=options)  # type: ignore[arg-type]
                facts = facts_of(answer.meta)
                if etag is not None and facts.etag != etag:
                    raise ObjectChanged(f"{self.uri(key)} is another object now")
                if part is not None or facts.size <= _PIECE_BYTES:
                    return bytes(answer.bytes())
        except ObjectChanged:
            self.head(key)  # some stores say so of an object that is gone: then it raises `ObjectMissing`
            raise
        return b"".join(self.pieces(key, facts.size, etag=facts.etag, version=version))

    def read_if_match(self, key: str, etag: str) -> None:
        """Read an object on the condition that it has an etag, and believe the store.

        Raises:
            ObjectChanged: it has another one.
        """
        with self._asked(key):
            import obstore

            obstore.get(self._client, key, options={"if_match": f'"{etag}"'})

    def pieces(self, key: str, size: int, *, etag: str, version: str | None = None) -> Iterator[bytes]:
        """Yield an object of `size` bytes piece by piece: small requests meet the timeout, however large the object is.

        Raises:
            ObjectMissing, ObjectChanged: as `get`; also if it is replaced between two requests.
        """
        for start in range(0, size, _PIECE_BYTES):
            part = slice(start, min(size, start + _PIECE_BYTES))
            yield self.get(key, etag=etag, version=version, part=part)
        if not size:
            yield self.get(key, etag=etag, version=version)

    def page(self, prefix: str, *, after: str = "", recursive: bool = True) -> Page:
        """Return the first objects below a prefix whose keys come after a key, in the order of the keys.

        Objects with keys that the client cannot name make it fail; an empty one whose key ends in a slash is left out.
        """
        import obstore

        folder, _, is_part = prefix.rpartition("/")
        with told(self.uri(prefix)):
            if not recursive:
                found = obstore.list_with_delimiter(self._client, folder or None)
                folders = [f"{name}/" for name in found["common_prefixes"]]
                listed = [facts_of(meta) for meta in found["objects"]]
                objects = [facts for facts in listed if facts.key > after and facts.key.startswith(prefix)]
                return Page(self._there(objects), tuple(name for name in folders if name.startswith(prefix)))
            while True:
                offset = max(after, prefix[:-1] if is_part else "")
                stream = obstore.list(self._client, folder or None, offset=offset or None, chunk_size=PAGE_KEYS)
                listed = [facts_of(meta) for meta in next(iter(stream), ())]
                objects = [facts for facts in listed if facts.key.startswith(prefix)]
                is_last = len(listed) < PAGE_KEYS or (bool(objects) and len(objects) < len(listed))
                if objects or is_last or listed[-1].key > prefix:
                    return Page(self._there(objects), is_last=is_last or not objects)
                after = listed[-1].key

    def _there(self, listed: Sequence[ObjectFacts]) -> tuple[ObjectFacts, ...]:
        return tuple(facts for facts in listed if facts.size or _is_named(self, facts.key, facts.etag))

    # --- writing -----------------------------------------------------------------------------------------------------

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> str:
        """Write an object and return its etag.

        Args:
            if_absent: a conditional put, the request with which `deltalake` commits: of several writers one succeeds.

        Raises:
            ObjectChanged: `if_absent`, and the object exists, perhaps from this call, if a reply was lost: read it.
        """
        with self._asked(key):
            import obstore

            answer = obstore.put(self._client, key, content, mode="create" if if_absent else "overwrite")
            return etag_of(answer["e_tag"] or "")

    def copy(self, key: str, to_key: str) -> None:
        """Copy an object inside the bucket; an object at the target is replaced."""
        with self._asked(key):
            import obstore

            obstore.copy(self._client, key, to_key)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing objects are no error."""
        import obstore

        if not keys:
            return
        with told(self.uri("")):
            try:
                obstore.delete(self._client, list(keys))
                return
            except FileNotFoundError:  # some stores end a deletion of several there
                if len(keys) == 1:
                    return
        for key in keys:
            self.delete([key])

    # --- files of rows -----------------------------------------------------------------------------------------------

    def reader(self, key: str) -> Any:
        """Return a file object for pyarrow over an object; it requests only the ranges that pyarrow reads.

        Raises:
            FileNotFoundError: there is none.
        """
        import obstore

        with told(self.uri(key)):
            return _Ranges(self.uri(key), obstore.open_reader(self._client, key))

    @contextmanager
    def writer(self, key: str) -> Iterator[Any]:
        """Write a new object, a large one in parts; it exists, complete, when the block ends without an error."""
        import obstore

        with told(self.uri(key)):
            sink = obstore.open_writer(self._client, key, buffer_size=_PART_BYTES)
            yield _Parts(self.uri(key), sink)
            sink.close()

    @contextmanager
    def _asked(self, key: str) -> Iterator[None]:
        """Turn the client's errors into those of the methods."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            with told(self.uri(key)):
                try:
                    yield
                except (PreconditionError, AlreadyExistsError):
                    raise ObjectChanged(f"{self.uri(key)} is another object now") from None
                except ValueError as error:  # the client cannot name this key
                    raise OSError(errno.EIO, said(error), self.uri(key)) from None
        except FileNotFoundError:
            raise ObjectMissing(f"{self.uri(key)} is gone") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object as a scan found it.

    Attributes:
        size: bytes.
        version: to read; None if the bucket keeps no versions.
    """

    bucket: Bucket
    key: str
    size: int
    etag: str
    version: str | None = None

    @property
    def can_be_named(self) -> bool:
        """Say whether tasks can fetch it: see the function."""
        return can_be_named(self.key)

    def pieces(self) -> Iterator[bytes]:
        """Yield the object piece by piece, if it is still the object that was scanned.

        Raises:
            ObjectMissing, ObjectChanged: it is gone, or was replaced by another one.
            OSError: no answer, or a refusal.
        """
        return self.bucket.pieces(self.key, self.size, etag=self.etag, version=self.version)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` (inclusive) to `end` (exclusive).

        Raises:
            ObjectMissing, ObjectChanged, OSError: as `pieces`.
        """
        if start >= end:
            return b""
        return self.bucket.get(self.key, etag=self.etag, version=self.version, part=slice(start, end))


class _ObjectFile(io.RawIOBase):
    """A file object over the client's file; it raises the client's errors as OSErrors."""

    def __init__(self, uri: str, file: Any) -> None:
        self._uri = uri
        self._file = file


class _Ranges(_ObjectFile):
    """A file object that reads ranges of an object."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        with told(self._uri):
            return bytes(self._file.read(size if size is not None and size >= 0 else None))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())


class _Parts(_ObjectFile):
    """A file object that writes a new object."""

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        with told(self._uri):
            return int(self._file.write(memoryview(content).tobytes()))  # a copy, since Arrow reuses its buffers


@lru_cache(maxsize=10_000)
def _is_named(bucket: Bucket, key: str, etag: str) -> bool:
    """Say whether an empty object of a listing has its key: the client leaves out a slash at a key's end."""
    try:
        return bucket.head(key).etag == etag
    except ObjectMissing:
        return False


def can_be_named(key: str) -> bool:
    """Say whether the client requests exactly this key: it removes dots and slashes from some keys."""
    return not {"", ".", ".."} & set(key.split("/")) and not _CONTROL.search(key)


def etag_of(quoted: str) -> str:
    """Return an ETag without quotes, and without the mark of proxies that compress: the object has the same content."""
    return quoted.removeprefix("W/").strip('"')


def facts_of(meta: Any) -> ObjectFacts:
    """Return the client's facts about an object."""
    return ObjectFacts(
        key=meta["path"],
        size=meta["size"],
        etag=etag_of(meta["e_tag"] or ""),
        modified=meta["last_modified"].timestamp(),
        version=meta["version"],
    )
