"""One S3 client for everything that lies in buckets: inputs and tables (D13–D17, Z5, Z15).

Every call is retried with jitter inside a bounded time; what is left of a failure is one of our errors. Nothing that
leaves this module holds a credential: messages pass `redacted`, and causes are not chained, since their text and
attributes hold what the server sent back.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from drainmark.jobs.errors import DrainmarkError, ObjectChanged, StoreRefused, StoreUnavailable
from drainmark.jobs.runtime.scan.bucket_objects import ObjectFacts
from drainmark.resources.storage.object_errors import AGAIN, code_of, redacted, translation

if TYPE_CHECKING:
    from drainmark.resources.settings import Settings

_T = TypeVar("_T")

CONNECT_SECONDS = 5.0
READ_SECONDS = 20.0
ATTEMPTS = 4
"""With the time-outs a call gives up within about 100 s, less than any drain_timeout; a slow-down is over by then."""

PARALLEL = 16
"""Requests at a time: a bucket's latency is hidden by then, and one connection each is kept open."""

PAGE_KEYS = 1000
"""Keys that a store puts on a page of a listing at most."""

_CHUNK = 1024 * 1024
_DELETED_AT_ONCE = 1000
_BACK_OFF_SECONDS = 0.2
_SHORTEST_SECRET = 12  # shorter ones are of test servers, and words of messages
_LAST = "\U0010ffff"  # sorts after every key below a folder: a listing goes on behind the folder
_WRITE_NO_LINK = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
"""A file of the spool is made here: a link in its place would lead a copy elsewhere."""


class ObjectStore:
    """Objects of one store; safe for many threads, opened at first use.

    Args:
        endpoint_url: address of an S3-compatible server, None for AWS.
        profile: name of a profile of the AWS configuration, None for boto3's own chain (environment, role, default).
        region: None for that of the profile or the environment.
        connect_seconds, read_seconds: time-outs of one try.
        attempts: tries of one call.

    Raises:
        StoreUnavailable: from any method: no answer, or a passing one (500, 503, a short body), after all tries.
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
        self.endpoint_url = endpoint_url
        self.profile = profile
        self.region = region
        self.attempts = attempts
        self._timeouts = {"connect_timeout": connect_seconds, "read_timeout": read_seconds}
        self._client: Any = None
        self._session: Any = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ObjectStore({redacted(self.endpoint_url or 'AWS')}, profile={self.profile}, region={self.region})"

    @property
    def client(self) -> Any:
        """The boto3 client; what it raises is not translated, and not redacted."""
        with self._lock:
            if self._client is None:
                from botocore.config import Config

                config = Config(
                    retries={"mode": "standard", "total_max_attempts": self.attempts},
                    max_pool_connections=PARALLEL,
                    request_checksum_calculation="when_required",  # stores other than AWS refuse trailing checksums
                    **self._timeouts,
                )
                with self._translating("open the store"):
                    self._client = self._opened().client("s3", endpoint_url=self.endpoint_url, config=config)
            return self._client

    def _opened(self) -> Any:
        if self._session is None:
            import boto3

            self._session = boto3.session.Session(profile_name=self.profile, region_name=self.region)
        return self._session

    @property
    def address(self) -> str:
        """The address that requests go to, however it was set."""
        return str(self.client.meta.endpoint_url)

    @property
    def region_name(self) -> str:
        """The region that requests are signed for."""
        found = str(self.client.meta.region_name)
        return "us-east-1" if found == "aws-global" else found

    def credentials(self) -> tuple[str, str, str | None]:
        """Return access key, secret and token for another client, renewed where they expire; not to be kept (D17)."""
        with self._translating("find the credentials"):
            found = self._opened().get_credentials()
            if found is not None:
                access_key, secret, token = found.get_frozen_credentials()[:3]
                return access_key, secret, token
        raise StoreRefused("there are no credentials for S3", remedy="set s3_profile, or the AWS_* variables")

    # --- reading -----------------------------------------------------------------------------------------------------

    def head(self, bucket: str, key: str, version: str | None = None) -> ObjectFacts:
        """Return the facts of an object, or of one of its versions.

        Raises:
            ObjectMissing: it is not there.
        """
        with self._translating("look at", bucket, key):
            answer = self.client.head_object(Bucket=bucket, Key=key, **_of(version))
            return _facts(key, answer, size=answer["ContentLength"])

    def get(self, bucket: str, key: str) -> bytes:
        """Return an object's bytes.

        Raises:
            ObjectMissing: it is not there.
        """
        return self._read(bucket, key, b"".join)

    def keeps_versions(self, bucket: str) -> bool:
        """Say whether a bucket keeps what is overwritten; no, where one may not ask."""
        try:
            with self._translating("ask for versions", bucket):
                return bool(self.client.get_bucket_versioning(Bucket=bucket).get("Status") == "Enabled")
        except StoreRefused:
            return False

    def fetch(self, bucket: str, key: str, path: Path, *, etag: str, size: int, version: str | None = None) -> None:
        """Copy an object, or one of its versions, to a file, if it is what was named; the file is whole or it raises.

        Raises:
            ObjectMissing, ObjectChanged: it is gone, or has another etag (D16).
        """

        def copy(chunks: Iterator[bytes]) -> None:
            with os.fdopen(os.open(path, _WRITE_NO_LINK, 0o600), "wb") as file:
                written = sum(file.write(chunk) for chunk in chunks)
            if written != size:
                raise StoreUnavailable(f"s3://{bucket}/{key} came with {written} of {size} bytes", remedy=AGAIN)

        self._read(bucket, key, copy, IfMatch=f'"{etag}"', **_of(version))

    def pages(
        self, bucket: str, prefix: str = "", *, start_after: str = "", recursive: bool = True,
        first_page: int = PAGE_KEYS,
    ) -> Iterator[tuple[ObjectFacts, ...]]:  # fmt: skip
        """Yield the objects below a prefix in the order of their keys, page by page (1000 at most).

        Each page is asked for by the last key of the one before. A page that fails after all tries raises: what was
        yielded until then is no listing (D15).

        Args:
            start_after: leave out keys up to this one.
            recursive: also keys with a slash after the prefix.
            first_page: keys that the first page may hold.
        """
        arguments: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, **({} if recursive else {"Delimiter": "/"})}
        cursor, size = start_after, {"MaxKeys": first_page} if first_page < PAGE_KEYS else {}
        while True:
            with self._translating("list", bucket, prefix):
                page = self.client.list_objects_v2(**arguments, **({"StartAfter": cursor} if cursor else {}), **size)
                found = tuple(_facts(entry["Key"], entry, size=entry["Size"]) for entry in page.get("Contents", ()))
                folders = [item["Prefix"] + _LAST for item in page.get("CommonPrefixes", ())]
                is_last = not page["IsTruncated"]
            reached = max([entry.key for entry in found] + folders, default=cursor)
            if not is_last and reached <= cursor:
                msg = f"the listing of {bucket}/{prefix} does not advance: its pages are not in the order of the keys"
                raise StoreRefused(msg, remedy="a general purpose bucket lists in order, a directory bucket does not")
            yield found
            if is_last:
                return
            cursor, size = reached, {}

    def names(self, bucket: str, prefix: str) -> Iterator[str]:
        """Yield the names of the objects and folders directly below a prefix that ends in a slash, in their order."""
        going_on: dict[str, str] = {}
        while True:
            with self._translating("list", bucket, prefix):
                page = self.client.list_objects_v2(Bucket=bucket, Prefix=prefix, Delimiter="/", **going_on)
                found = [entry["Key"] for entry in page.get("Contents", ())]
                found += [entry["Prefix"].rstrip("/") for entry in page.get("CommonPrefixes", ())]
            yield from sorted(key.removeprefix(prefix) for key in found)
            if not page["IsTruncated"]:
                return
            going_on = {"ContinuationToken": page["NextContinuationToken"]}

    # --- writing -----------------------------------------------------------------------------------------------------

    def put(self, bucket: str, key: str, body: bytes, *, if_absent: bool = False) -> str:
        """Write an object and return its etag.

        Args:
            if_absent: a conditional put: exactly one of several writers succeeds.

        Raises:
            ObjectChanged: `if_absent`, and it is there. A reply that was lost looks the same: read it back (D14).
        """
        with self._translating("write", bucket, key):
            condition = {"IfNoneMatch": "*"} if if_absent else {}
            return _etag(self.client.put_object(Bucket=bucket, Key=key, Body=body, **condition)["ETag"])

    def upload(self, bucket: str, key: str, path: Path) -> None:
        """Write an object from a file, a large one in parts; whatever was there is replaced."""
        from boto3.exceptions import S3UploadFailedError

        with self._translating("write", bucket, key):
            try:
                self.client.upload_file(str(path), bucket, key)
            except S3UploadFailedError as error:  # tells of the cause in words only
                raise (error.__context__ if isinstance(error.__context__, Exception) else error) from None

    def copy(self, bucket: str, key: str, to_bucket: str, to_key: str, *, etag: str | None = None) -> None:
        """Copy an object inside the store, a large one in parts; whatever was there is replaced.

        Args:
            etag: of what is to be copied, and nothing else.

        Raises:
            ObjectMissing: it is not there.
            ObjectChanged: it has another etag. Some stores do not look: who has to know asks right before.
        """
        condition = {"CopySourceIfMatch": f'"{etag}"'} if etag is not None else {}
        with self._translating("copy", bucket, key):
            self.client.copy({"Bucket": bucket, "Key": key}, to_bucket, to_key, ExtraArgs=condition)

    def delete_same(self, bucket: str, key: str, etag: str) -> None:
        """Delete an object if it is what was named: by a condition, and where a store knows none, by a look before.

        Raises:
            ObjectMissing, ObjectChanged: it is gone, or has another etag.
        """
        from botocore.exceptions import ClientError

        if self.head(bucket, key).etag != etag:
            raise ObjectChanged(f"s3://{bucket}/{key} is another object now")
        with self._translating("delete", bucket, key):
            try:
                self.client.delete_object(Bucket=bucket, Key=key, IfMatch=f'"{etag}"')
            except ClientError as error:
                if code_of(error.response) != "NotImplemented":
                    raise
                self.client.delete_object(Bucket=bucket, Key=key)

    def delete(self, bucket: str, keys: Sequence[str]) -> None:
        """Delete objects; what is not there is no error."""
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            objects = [{"Key": key} for key in keys[first : first + _DELETED_AT_ONCE]]
            with self._translating("delete in", bucket, ""):
                answer = self.client.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
            for failed in answer.get("Errors", ()):
                msg = f"cannot delete {bucket}/{failed['Key']}: {self.redacted(failed['Code'])}"
                raise StoreUnavailable(msg, remedy=AGAIN)

    # --- the boundary ------------------------------------------------------------------------------------------------

    def _read(self, bucket: str, key: str, consume: Callable[[Iterator[bytes]], _T], **condition: str) -> _T:
        """Give an object's bytes to a function, anew where they break off: botocore tries again up to the first one."""
        for attempt in range(1, self.attempts + 1):
            with self._translating("read", bucket, key):
                body = self.client.get_object(Bucket=bucket, Key=key, **condition)["Body"]
            try:
                with self._translating("read", bucket, key), contextlib.closing(body):
                    return consume(body.iter_chunks(_CHUNK))
            except StoreUnavailable:
                if attempt == self.attempts:
                    raise
            time.sleep(_BACK_OFF_SECONDS * 2**attempt * random.random())  # noqa: S311 jitter is no secret
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def _translating(self, verb: str, bucket: str = "", key: str = "") -> Iterator[None]:
        where = f"{verb} s3://{bucket}/{key}" if bucket else verb
        try:
            yield
        except DrainmarkError:
            raise
        except Exception as error:
            translated = translation(where, error, self.redacted)
            if translated is None:
                raise
            raise translated from None

    def redacted(self, text: str) -> str:
        """Return a text without the credentials of this store (Z5)."""
        for secret in self._credentials():
            text = text.replace(secret, "***") if len(secret) >= _SHORTEST_SECRET else text
        return redacted(text)

    def _credentials(self) -> Sequence[str]:
        """Return access key, secret and token; none where it is the credentials that fail."""
        with contextlib.suppress(Exception):
            frozen = self._session.get_credentials().get_frozen_credentials()
            return [secret for secret in frozen[:3] if secret]
        return ()


def object_store(settings: Settings) -> ObjectStore:
    """Return this process's store of the settings: inputs and tables share its connections."""
    return _store_at(settings.s3_endpoint_url, settings.s3_profile, settings.s3_region)


@functools.cache
def _store_at(endpoint_url: str | None, profile: str | None, region: str | None) -> ObjectStore:
    return ObjectStore(endpoint_url, profile, region)


def _of(version: str | None) -> dict[str, str]:
    return {} if version is None else {"VersionId": version}


def _facts(key: str, answer: Mapping[str, Any], *, size: int) -> ObjectFacts:
    return ObjectFacts(
        key=key, size=size, etag=_etag(answer["ETag"]), modified=answer["LastModified"].timestamp(),
        version=answer.get("VersionId"),
    )  # fmt: skip


def _etag(quoted: str) -> str:
    return quoted.strip('"')
