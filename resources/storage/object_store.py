"""The objects of an S3 store: inputs and tables, read, listed and written through one connection.

Every call is retried with jitter within a bounded time; an error that remains becomes one of Drainmark's errors.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from drainmark.jobs import world
from drainmark.jobs.errors import ObjectChanged, StoreRefused, StoreUnavailable
from drainmark.jobs.runtime.scan.bucket_objects import ObjectFacts, may_be_altered
from drainmark.jobs.tasks.buckets import CONNECT_SECONDS, Bucket, etag_of
from drainmark.resources.storage.object_errors import AGAIN, code_of
from drainmark.resources.storage.object_listing import PAGE_KEYS, listed
from drainmark.resources.storage.s3_connection import ATTEMPTS, READ_SECONDS, S3Connection

if TYPE_CHECKING:
    from drainmark.resources.settings import Settings

_T = TypeVar("_T")

_CHUNK = 1024 * 1024
_DELETED_AT_ONCE = 1000
_BACK_OFF_SECONDS = 0.2
_WRITE_NO_LINK = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
"""Flags for a file of the spool: they follow no link, which would lead the copy to another place."""


class ObjectStore:
    """Objects of one store; safe for many threads, opened at first use.

    Args:
        endpoint_url: address of an S3-compatible server, None for AWS.
        profile: name of a profile of the AWS configuration, None for boto3's own chain (environment, role, default).
        region: None for that of the profile or the environment.
        connect_seconds, read_seconds: time-outs of one try.
        attempts: tries of one call.

    Attributes:
        fenced: names of buckets in which this process has seen that of several writers one puts an absent object.

    Raises:
        StoreUnavailable: from any method: no answer, or a temporary error (500, 503, a short body), after all tries.
        StoreRefused: from any method: no permission, no credentials, no such bucket, another region.
    """

    def __init__(
        self,
        endpoint_url: str | None = None,
        profile: str | None = None,
        region: str | None = None,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.fenced: set[str] = set()
        self.connection = S3Connection(
            endpoint_url,
            profile,
            region,
            connect_seconds=connect_seconds,
            read_seconds=read_seconds,
            attempts=attempts,
        )

    def bucket(self, name: str) -> Bucket:
        """Return a bucket for tasks of Spark, which reach it with their own credentials."""
        connection = self.connection
        return Bucket(name, connection.address, connection.region_name, connection.profile or "")

    # --- reading -----------------------------------------------------------------------------------------------------

    def head(self, bucket: str, key: str, version: str | None = None) -> ObjectFacts:
        """Return the facts of an object, or of one of its versions.

        Raises:
            ObjectMissing: the object does not exist.
        """
        with self.connection.translating("look at", bucket, key):
            answer = self.connection.client.head_object(Bucket=bucket, Key=key, **_of(version))
            return _facts(key, answer, size=answer["ContentLength"])

    def get(self, bucket: str, key: str) -> bytes:
        """Return an object's bytes.

        Raises:
            ObjectMissing: the object does not exist.
        """
        return self._read(bucket, key, b"".join)

    def keeps_versions(self, bucket: str) -> bool:
        """Say whether a bucket keeps overwritten versions; False without permission to ask."""
        try:
            with self.connection.translating("ask for versions", bucket):
                return bool(self.connection.client.get_bucket_versioning(Bucket=bucket).get("Status") == "Enabled")
        except StoreRefused:
            return False

    def fetch(self, bucket: str, key: str, path: Path, *, etag: str, size: int, version: str | None = None) -> None:
        """Copy an object, or one of its versions, to a file, if it has the etag. The file is complete if this returns.

        Raises:
            ObjectMissing, ObjectChanged: the object is gone, or has another etag.
        """

        def copy(chunks: Iterator[bytes]) -> None:
            with os.fdopen(os.open(path, _WRITE_NO_LINK, 0o600), "wb") as file:
                written = sum(file.write(chunk) for chunk in chunks)
            if written != size:
                raise StoreUnavailable(f"s3://{bucket}/{key} came with {written} of {size} bytes", remedy=AGAIN)

        self._read(bucket, key, copy, etag=etag, **_of(version))

    def pages(
        self,
        bucket: str,
        prefix: str = "",
        *,
        start_after: str = "",
        recursive: bool = True,
        first_page: int = PAGE_KEYS,
    ) -> Iterator[tuple[ObjectFacts, ...]]:
        """Yield the objects below a prefix in the order of their keys, page by page (1000 at most): all, or an error.

        Two objects may have the same key if the server alters keys in its answers: see `may_be_altered`.

        Args:
            start_after: leave out keys up to and including this one.
            recursive: also keys with a slash after the prefix.
            first_page: limit of the keys on the first page.

        Raises:
            StoreRefused: the server does not list as S3 does; `object_listing` says what it must keep to.
        """
        for page in listed(
            self.connection, bucket, prefix, start_after=start_after, recursive=recursive, first_page=first_page
        ):
            yield tuple(_facts(entry["Key"], entry, size=entry["Size"]) for entry in page.objects)

    def names(self, bucket: str, prefix: str) -> Iterator[str]:
        """Yield the names of the objects and folders directly below a prefix that ends in a slash, in their order.

        An object with the prefix itself as its key is left out: consoles create such an object for an empty folder.

        Raises:
            StoreRefused: as `pages`.
        """
        for page in listed(self.connection, bucket, prefix, recursive=False):
            found = [entry["Key"] for entry in page.objects if entry["Key"] != prefix]
            found += [folder.rstrip("/") for folder in page.folders]
            yield from sorted(key.removeprefix(prefix) for key in found)

    # --- writing -----------------------------------------------------------------------------------------------------

    def put(self, bucket: str, key: str, body: bytes, *, if_absent: bool = False) -> str:
        """Write an object and return its etag.

        Args:
            if_absent: a conditional put: exactly one of several writers succeeds.

        Raises:
            ObjectChanged: `if_absent`, and the object exists, perhaps from this call, if a reply was lost: read it.
        """
        with self.connection.translating("write", bucket, key):
            condition = {"IfNoneMatch": "*"} if if_absent else {}
            return etag_of(self.connection.client.put_object(Bucket=bucket, Key=key, Body=body, **condition)["ETag"])

    def copy(self, bucket: str, key: str, to_bucket: str, to_key: str, *, etag: str | None = None) -> None:
        """Copy an object inside the store, a large one in parts; an object at the target is replaced.

        Args:
            etag: that the object must have; None copies any object.

        Raises:
            ObjectMissing: the object does not exist.
            ObjectChanged: it has another etag. Some stores do not check: if that matters, call `head` just before.
        """
        condition = {"CopySourceIfMatch": f'"{etag}"'} if etag is not None else {}
        with self.connection.translating("copy", bucket, key):
            self.connection.client.copy({"Bucket": bucket, "Key": key}, to_bucket, to_key, ExtraArgs=condition)

    def delete_same(self, bucket: str, key: str, etag: str) -> None:
        """Delete an object if it has this etag. A check comes first; the deletion is conditional if the store can.

        Raises:
            ObjectMissing, ObjectChanged: the object is gone, or has another etag.
        """
        from botocore.exceptions import ClientError

        if self.head(bucket, key).etag != etag:
            raise ObjectChanged(f"s3://{bucket}/{key} is another object now")
        with self.connection.translating("delete", bucket, key):
            try:
                self.connection.client.delete_object(Bucket=bucket, Key=key, IfMatch=f'"{etag}"')
            except ClientError as error:
                if code_of(error.response) != "NotImplemented":
                    raise
                self.connection.client.delete_object(Bucket=bucket, Key=key)

    def delete(self, bucket: str, keys: Sequence[str]) -> None:
        """Delete objects; missing objects are no error."""
        odd = [key for key in keys if may_be_altered(key)]  # no list in XML can hold them
        for key in odd:
            with self.connection.translating("delete", bucket, key):
                self.connection.client.delete_object(Bucket=bucket, Key=key)
        plain = [key for key in keys if not may_be_altered(key)] if odd else keys
        for first in range(0, len(plain), _DELETED_AT_ONCE):
            objects = [{"Key": key} for key in plain[first : first + _DELETED_AT_ONCE]]
            with self.connection.translating("delete in", bucket, ""):
                answer = self.connection.client.delete_objects(
                    Bucket=bucket, Delete={"Objects": objects, "Quiet": True}
                )
            for failed in answer.get("Errors", ()):
                msg = f"cannot delete {bucket}/{failed['Key']}: {self.connection.redacted(failed['Code'])}"
                raise StoreUnavailable(msg, remedy=AGAIN)

    # --- the boundary ------------------------------------------------------------------------------------------------

    def _read(
        self, bucket: str, key: str, consume: Callable[[Iterator[bytes]], _T], *, etag: str | None = None, **asked: str
    ) -> _T:
        """Pass an object's bytes to a function, again if they break off: botocore retries only until the first byte.

        Args:
            etag: that the object must have. The answer's is compared as well: some servers ignore `If-Match`.
        """
        condition = asked if etag is None else {**asked, "IfMatch": f'"{etag}"'}
        for attempt in range(1, self.connection.attempts + 1):
            with self.connection.translating("read", bucket, key):
                answer = self.connection.client.get_object(Bucket=bucket, Key=key, **condition)
                body = answer["Body"]
                if etag is not None and etag_of(answer.get("ETag", "")) != etag:
                    body.close()
                    raise ObjectChanged(f"s3://{bucket}/{key} is another object now")
            try:
                with self.connection.translating("read", bucket, key), contextlib.closing(body):
                    return consume(body.iter_chunks(_CHUNK))
            except StoreUnavailable:
                if attempt == self.connection.attempts:
                    raise
            world.sleep(world.between(0.0, _BACK_OFF_SECONDS * 2**attempt))
        raise AssertionError("unreachable")


def object_store(settings: Settings) -> ObjectStore:
    """Return this process's store for the settings: inputs and tables share its connections."""
    return _store_at(settings.s3_endpoint_url, settings.s3_profile, settings.s3_region)


@functools.cache
def _store_at(endpoint_url: str | None, profile: str | None, region: str | None) -> ObjectStore:
    return ObjectStore(endpoint_url, profile, region)


def _of(version: str | None) -> dict[str, str]:
    return {} if version is None else {"VersionId": version}


def _facts(key: str, answer: Mapping[str, Any], *, size: int) -> ObjectFacts:
    return ObjectFacts(
        key=key,
        size=size,
        etag=etag_of(answer["ETag"]),
        modified=answer["LastModified"].timestamp(),
        version=answer.get("VersionId"),
    )
