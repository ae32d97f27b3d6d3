"""Requests to S3 that the common client cannot make: listings and keys as they are, and what only S3 has.

The common client (`jobs/tasks/buckets.py`) cannot name keys with empty segments, dots and control characters, and one
of them ends its listings; it copies inside one bucket only, and its deletions have no condition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drainmark.jobs.errors import ObjectChanged, StoreUnavailable
from drainmark.jobs.tasks.buckets import PAGE_KEYS, ObjectFacts, Page, etag_of
from drainmark.resources.storage.object_errors import AGAIN, code_of
from drainmark.resources.storage.s3_connection import S3Connection

_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class S3Requests:
    """Requests for the objects of one bucket.

    Args:
        address: of the bucket, `s3://NAME`.

    Raises:
        StoreUnavailable, StoreRefused: from any method.
    """

    connection: S3Connection
    address: str

    @property
    def name(self) -> str:
        """Return the name of the bucket."""
        return self.address.partition("://")[2]

    def page(self, prefix: str, place: Mapping[str, str], *, recursive: bool, limit: int = PAGE_KEYS) -> Page:
        """Return a page of a listing.

        Args:
            place: where it begins: `StartAfter` or `ContinuationToken`; {} for the beginning.
        """
        asked = {"Prefix": prefix, **({} if recursive else {"Delimiter": "/"})}
        size = {"MaxKeys": limit} if limit < PAGE_KEYS else {}
        with self._telling("list", prefix):
            answer = self.connection.client.list_objects_v2(Bucket=self.name, **asked, **place, **size)
        if "IsTruncated" not in answer:
            msg = f"the answer to a request for the listing of {self.address}/{prefix} is none"
            raise StoreUnavailable(msg, remedy=AGAIN)
        return Page(
            tuple(_facts(entry["Key"], entry, size=entry["Size"]) for entry in answer.get("Contents", ())),
            tuple(each["Prefix"] for each in answer.get("CommonPrefixes", ())),
            is_last=not answer["IsTruncated"],
            token=answer.get("NextContinuationToken", ""),
        )

    def head(self, key: str, version: str | None = None) -> ObjectFacts:
        """Return the facts of an object, as `Bucket.head`."""
        with self._telling("look at", key):
            answer = self.connection.client.head_object(Bucket=self.name, Key=key, **_of(version))
            return _facts(key, answer, size=answer["ContentLength"])

    def get(self, key: str, *, etag: str | None = None, version: str | None = None) -> bytes:
        """Return an object's bytes, as `Bucket.get`."""
        condition = {} if etag is None else {"IfMatch": f'"{etag}"'}
        with self._telling("read", key):
            answer = self.connection.client.get_object(Bucket=self.name, Key=key, **condition, **_of(version))
            with contextlib.closing(answer["Body"]) as body:
                if etag is not None and etag_of(answer.get("ETag", "")) != etag:
                    raise ObjectChanged(f"{self.address}/{key} is another object now")
                return b"".join(body.iter_chunks(_CHUNK))

    def pieces(self, key: str, size: int, *, etag: str, version: str | None = None) -> Iterator[bytes]:
        """Yield an object in one piece, as `Bucket.pieces`."""
        yield self.get(key, etag=etag, version=version)

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> str:
        """Write an object and return its etag, as `Bucket.put`."""
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        with self._telling("write", key):
            answer = self.connection.client.put_object(Bucket=self.name, Key=key, Body=content, **condition)
            return etag_of(answer["ETag"])

    def copy(self, key: str, to: str, to_key: str, etag: str | None) -> None:
        """Copy an object inside the store, a large one in parts; an object at the target is replaced.

        Args:
            to: address of the other bucket.

        Raises:
            ObjectMissing: the object does not exist.
            ObjectChanged: it has another etag. Some stores do not check.
        """
        condition = {"CopySourceIfMatch": f'"{etag}"'} if etag is not None else {}
        source, target = {"Bucket": self.name, "Key": key}, to.partition("://")[2]
        with self._telling("copy", key):
            self.connection.client.copy(source, target, to_key, ExtraArgs=condition)

    def delete(self, key: str, etag: str | None = None) -> None:
        """Delete an object; with an etag, only if it has it and the store can check it.

        Raises:
            ObjectChanged: it has another etag.
        """
        from botocore.exceptions import ClientError

        with self._telling("delete", key):
            condition = {"IfMatch": f'"{etag}"'} if etag is not None else {}
            try:
                self.connection.client.delete_object(Bucket=self.name, Key=key, **condition)
            except ClientError as error:
                if not condition or code_of(error.response) != "NotImplemented":
                    raise
                self.connection.client.delete_object(Bucket=self.name, Key=key)

    def _telling(self, verb: str, key: str) -> contextlib.AbstractContextManager[None]:
        return self.connection.translating(f"{verb} {self.address}/{key}")


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
