"""Access of tasks to buckets: one client, with the credentials of the process that the task runs in.

Only names and addresses are sent with a task. If boto3 is installed and its chain (environment, profile, role) finds
credentials, they are used; otherwise those of the client's own chain (environment, role).
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from drainmark.jobs.errors import ObjectChanged, ObjectMissing

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 30.0
RETRIES = 4
RETRY_SECONDS = 40.0
"""One call gives up after at most `REQUEST_SECONDS + RETRY_SECONDS`, less than any drain_timeout."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PIECE_BYTES = 8 * 1024 * 1024
_PART_BYTES = 8 * 1024 * 1024
_BODY = re.compile(r"(?s)[<{].*|, body:.*")  # the body of an answer: it may repeat what was sent


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket.

    Args:
        address: of the server.
        profile: of the AWS configuration on the machine of the task; "" for the default.

    Raises:
        OSError: from any method: no answer, or a refusal; the message contains no credentials.
    """

    name: str
    address: str
    region: str
    profile: str

    def get(self, key: str, options: Any) -> bytes:
        """Return an object's bytes, or the range of them that the options of the client ask for.

        Raises:
            ObjectMissing, ObjectChanged: it is gone, or does not match the condition in the options. The answer's ETag
                is compared as well, since some servers ignore `If-Match`.
        """
        import obstore
        from obstore.exceptions import PreconditionError

        with told(self, key):
            try:
                answer = obstore.get(_store(self), key, options=options)
                if "if_match" in options and etag_of(answer.meta["e_tag"] or "") != etag_of(options["if_match"]):
                    raise ObjectChanged(f"s3://{self.name}/{key} is another object now")
                return bytes(answer.bytes())
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise OSError(errno.ENOENT, "there is no such bucket", f"s3://{self.name}/{key}") from None
                raise ObjectMissing(f"s3://{self.name}/{key} is gone") from None
            except PreconditionError:
                raise ObjectChanged(f"s3://{self.name}/{key} is another object now") from None

    def put_absent(self, key: str, content: bytes) -> bool:
        """Put an object if there is none, by the request with which `deltalake` commits; return whether it was put."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with told(self, key):
            try:
                obstore.put(_store(self), key, content, mode="create")
            except AlreadyExistsError:
                return False
            return True

    def size(self, key: str) -> int:
        """Return an object's size in bytes.

        Raises:
            FileNotFoundError: there is none.
        """
        import obstore

        with told(self, key):
            return int(obstore.head(_store(self), key)["size"])

    def reader(self, key: str) -> Any:
        """Return a file object for pyarrow over an object; it requests only the ranges that pyarrow reads.

        Raises:
            FileNotFoundError: there is none.
        """
        import obstore

        with told(self, key):
            return _Ranges(self, key, obstore.open_reader(_store(self), key))

    @contextmanager
    def writer(self, key: str) -> Iterator[Any]:
        """Write a new object, a large one in parts; it exists, complete, when the block ends without an error."""
        import obstore

        with told(self, key):
            sink = obstore.open_writer(_store(self), key, buffer_size=_PART_BYTES)
            yield _Parts(self, key, sink)
            sink.close()


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
        for start in range(0, self.size, _PIECE_BYTES):  # small requests meet the timeout, however large the object is
            yield self.read(start, min(self.size, start + _PIECE_BYTES))
        if not self.size:
            yield self.bucket.get(self.key, self._condition)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` (inclusive) to `end` (exclusive).

        Raises:
            ObjectMissing, ObjectChanged, OSError: as `pieces`.
        """
        return self.bucket.get(self.key, {**self._condition, "range": (start, end)}) if start < end else b""

    @property
    def _condition(self) -> dict[str, str]:
        return {"if_match": f'"{self.etag}"', **({} if self.version is None else {"version": self.version})}


class _ObjectFile(io.RawIOBase):
    """A file object over the client's file; it raises the client's errors as OSErrors."""

    def __init__(self, bucket: Bucket, key: str, file: Any) -> None:
        self._bucket = bucket
        self._key = key
        self._file = file


class _Ranges(_ObjectFile):
    """A file object that reads ranges of an object."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        with told(self._bucket, self._key):
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
        with told(self._bucket, self._key):
            return int(self._file.write(memoryview(content).tobytes()))  # a copy, since Arrow reuses its buffers


def can_be_named(key: str) -> bool:
    """Say whether the client requests exactly this key: it removes dots and slashes from some keys."""
    return not {"", ".", ".."} & set(key.split("/")) and not _CONTROL.search(key)


def etag_of(quoted: str) -> str:
    """Return an ETag without quotes, and without the mark of proxies that compress: the object has the same content."""
    return quoted.removeprefix("W/").strip('"')


@contextmanager
def told(bucket: Bucket, key: str) -> Iterator[None]:
    """Turn an error of the client inside the block into an OSError, without the body of the store's answer."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        text = error.strerror if error.errno else "there is no such object"
        raise FileNotFoundError(errno.ENOENT, text, f"s3://{bucket.name}/{key}") from None
    except (BaseError, OSError) as error:  # the client raises both kinds
        if isinstance(error, OSError) and error.filename is not None:
            raise  # an inner block has translated it
        text = f"{type(error).__name__}: {_BODY.sub('', str(error))[:300].rstrip()}"
        raise OSError(errno.EIO, text, f"s3://{bucket.name}/{key}") from None


@lru_cache(maxsize=16)
def _store(bucket: Bucket) -> Any:
    from obstore.store import S3Store

    return S3Store(
        bucket.name,
        endpoint=bucket.address,
        region=bucket.region,
        client_options={
            "allow_http": bucket.address.startswith("http://"),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
        },
        retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        credential_provider=_credentials(bucket.profile),
    )


def _credentials(profile: str) -> Any:
    """Return a provider that gives the client credentials and renews them; None lets the client find its own."""
    try:
        import boto3
    except ImportError:
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.session.Session(profile_name=profile or None)
    return Boto3CredentialProvider(session) if session.get_credentials() is not None else None
