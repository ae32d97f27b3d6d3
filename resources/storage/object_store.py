"""The objects of buckets: inputs and tables, read, listed and written by one client in all stores.

Every call is retried with jitter within a bounded time; an error that remains becomes one of Drainmark's errors. Only
S3's listings, odd keys, copies and conditional deletions are other requests (`s3_requests.py`).
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.errors import ObjectChanged, StoreUnavailable
from drainmark.jobs.protocol.records.addresses import S3
from drainmark.jobs.tasks.bucket_clients import PATIENCE, Patience
from drainmark.jobs.tasks.buckets import PAGE_KEYS, Bucket, ObjectFacts, Page, can_be_named
from drainmark.resources.storage.object_errors import AGAIN, failure
from drainmark.resources.storage.object_listing import listed
from drainmark.resources.storage.s3_connection import S3Connection
from drainmark.resources.storage.s3_requests import S3Requests

if TYPE_CHECKING:
    from drainmark.resources.settings import Settings

_DELETED_AT_ONCE = 1000
_WRITE_NO_LINK = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
"""Flags for a file of the spool: they follow no link, which would lead the copy to another place."""


class ObjectStore:
    """Objects of buckets, which are named by their addresses; safe for many threads, opened at first use.

    Args:
        endpoint_url: address of an S3-compatible server, None for AWS.
        profile: name of a profile of the AWS configuration, None for boto3's own chain (environment, role, default).
        region: None for that of the profile or the environment.
        patience: time-outs and tries of one call.

    Attributes:
        fenced: addresses of buckets in which this process has seen that of several writers one puts an absent object.

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
        patience: Patience = PATIENCE,
    ) -> None:
        self.fenced: set[str] = set()
        self.connection = S3Connection(endpoint_url, profile, region, patience=patience)
        self._patience = patience
        self._buckets: dict[str, Bucket] = {}
        self._lock = threading.Lock()

    def bucket(self, address: str) -> Bucket:
        """Return a bucket for tasks of Spark, which reach it with their own credentials."""
        with self._lock:
            if address not in self._buckets:
                self._buckets[address] = self._opened(address)
            return self._buckets[address]

    def _opened(self, address: str) -> Bucket:
        if not address.startswith(S3):
            return Bucket(address, patience=self._patience)
        connection = self.connection
        connection.credentials()  # without any, the client would ask for a role's at an address of AWS, for minutes
        return Bucket(
            address, connection.address, connection.region_name, connection.profile or "", patience=self._patience
        )

    # --- reading -----------------------------------------------------------------------------------------------------

    def head(self, bucket: str, key: str, version: str | None = None) -> ObjectFacts:
        """Return the facts of an object, or of one of its versions.

        Raises:
            ObjectMissing: the object does not exist.
        """
        with self.reaching("look at", bucket, key):
            return self._requests(bucket, key).head(key, version)

    def get(self, bucket: str, key: str) -> bytes:
        """Return an object's bytes.

        Raises:
            ObjectMissing: the object does not exist.
        """
        with self.reaching("read", bucket, key):
            return self._requests(bucket, key).get(key)

    def fetch(self, bucket: str, key: str, path: Path, *, etag: str, size: int, version: str | None = None) -> None:
        """Copy an object, or one of its versions, to a file, if it has the etag. The file is complete if this returns.

        Raises:
            ObjectMissing, ObjectChanged: the object is gone, or has another etag.
        """
        with self.reaching("read", bucket, key):
            pieces = self._requests(bucket, key).pieces(key, size, etag=etag, version=version)
            first = next(pieces)  # before there is a file
            with os.fdopen(os.open(path, _WRITE_NO_LINK, 0o600), "wb") as file:
                written = sum(file.write(piece) for piece in itertools.chain([first], pieces))
            if written != size:
                raise StoreUnavailable(f"{bucket}/{key} came with {written} of {size} bytes", remedy=AGAIN)

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
            first_page: limit of the keys on the first page, where the store takes one.

        Raises:
            StoreRefused: the server does not list as S3 does; `object_listing` says what it must keep to.
        """
        for page in self._listed(bucket, prefix, start_after, recursive=recursive, first_page=first_page):
            yield page.objects

    def names(self, bucket: str, prefix: str) -> Iterator[str]:
        """Yield the names of the objects and folders directly below a prefix that ends in a slash, in their order.

        An object with the prefix itself as its key is left out: consoles create such an object for an empty folder.

        Raises:
            StoreRefused: as `pages`.
        """
        for page in self._listed(bucket, prefix, recursive=False):
            found = [facts.key for facts in page.objects if facts.key != prefix]
            found += [folder.rstrip("/") for folder in page.folders]
            yield from sorted(key.removeprefix(prefix) for key in found)

    def _listed(
        self, bucket: str, prefix: str, start_after: str = "", *, recursive: bool, first_page: int = PAGE_KEYS
    ) -> Iterator[Page]:
        def ask(place: Mapping[str, str], is_first: bool) -> Page:
            if bucket.startswith(S3):
                limit = first_page if is_first else PAGE_KEYS
                return S3Requests(self.connection, bucket).page(prefix, place, recursive=recursive, limit=limit)
            after = place.get("StartAfter", "")
            with suppress(StoreUnavailable), self.reaching("list", bucket, prefix):
                return self.bucket(bucket).page(prefix, after=after, recursive=recursive)
            with self.reaching("list", bucket, prefix):  # the client never tries a page again that came short
                return self.bucket(bucket).page(prefix, after=after, recursive=recursive)

        return listed(f"{bucket}/{prefix}", prefix, ask, start_after=start_after)

    # --- writing -----------------------------------------------------------------------------------------------------

    def put(self, bucket: str, key: str, body: bytes, *, if_absent: bool = False) -> str:
        """Write an object and return its etag.

        Args:
            if_absent: a conditional put: exactly one of several writers succeeds.

        Raises:
            ObjectChanged: `if_absent`, and the object exists, perhaps from this call, if a reply was lost: read it.
        """
        with self.reaching("write", bucket, key):
            return self._requests(bucket, key).put(key, body, if_absent=if_absent)

    def copy(self, bucket: str, key: str, to_bucket: str, to_key: str, *, etag: str | None = None) -> None:
        """Copy an object inside the store, on most stores by the store itself; an object at the target is replaced.

        Args:
            etag: that the object must have; None copies any object.

        Raises:
            ObjectMissing: the object does not exist.
            ObjectChanged: it has another etag. Some stores do not check: if that matters, call `head` just before.
        """
        if bucket.startswith(S3) and to_bucket.startswith(S3):
            S3Requests(self.connection, bucket).copy(key, to_bucket, to_key, etag)
            return
        with self.reaching("copy", bucket, key):
            source = self.bucket(bucket)
            found = source.head(key)
            if etag is not None and found.etag != etag:
                raise ObjectChanged(f"{bucket}/{key} is another object now")
            if bucket == to_bucket:
                source.copy(key, to_key)
                return
            with self.bucket(to_bucket).writer(to_key) as sink:
                for piece in source.pieces(key, found.size, etag=found.etag):
                    sink.write(piece)

    def delete_same(self, bucket: str, key: str, etag: str) -> None:
        """Delete an object if it has this etag. A check comes first; the deletion is conditional if the store can.

        Raises:
            ObjectMissing, ObjectChanged: the object is gone, or has another etag.
        """
        if self.head(bucket, key).etag != etag:
            raise ObjectChanged(f"{bucket}/{key} is another object now")
        if bucket.startswith(S3):
            S3Requests(self.connection, bucket).delete(key, etag)
        else:
            self.delete(bucket, [key])

    def delete(self, bucket: str, keys: Sequence[str]) -> None:
        """Delete objects; missing objects are no error."""
        for key in keys:
            if not self._is_plain(bucket, key):
                S3Requests(self.connection, bucket).delete(key)
        plain = [key for key in keys if self._is_plain(bucket, key)]
        for first in range(0, len(plain), _DELETED_AT_ONCE):
            with self.reaching("delete in", bucket, ""):
                self.bucket(bucket).delete(plain[first : first + _DELETED_AT_ONCE])

    # --- the boundary ------------------------------------------------------------------------------------------------

    def _is_plain(self, bucket: str, key: str) -> bool:
        return can_be_named(key) or not bucket.startswith(S3)

    def _requests(self, bucket: str, key: str) -> Bucket | S3Requests:
        return self.bucket(bucket) if self._is_plain(bucket, key) else S3Requests(self.connection, bucket)

    @contextmanager
    def reaching(self, verb: str, bucket: str, key: str) -> Iterator[None]:
        """Turn an error of the client inside the block into one of Drainmark's errors, without credentials."""
        try:
            yield
        except OSError as error:
            if error.filename is None or not str(error.filename).startswith(bucket):  # of this machine's disk
                remedy = "make room where DRAINMARK_HOME is; a new attempt starts by itself"
                raise StoreUnavailable(f"cannot {verb} {bucket}/{key}: {error}", remedy=remedy) from None
            raise failure(f"{verb} {bucket}/{key}", error, self.connection.redacted) from None


def object_store(settings: Settings) -> ObjectStore:
    """Return this process's store for the settings: inputs and tables share its connections."""
    return _store_at(settings.s3_endpoint_url, settings.s3_profile, settings.s3_region)


@functools.cache
def _store_at(endpoint_url: str | None, profile: str | None, region: str | None) -> ObjectStore:
    return ObjectStore(endpoint_url, profile, region)
