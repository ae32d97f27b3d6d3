"""Addresses in buckets: `s3://BUCKET/KEY`, with the key as the store has it, without any encoding."""

from __future__ import annotations

import re

from drainmark.jobs.errors import UsageError

SCHEME = "s3://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


def is_object(uri: str) -> bool:
    """Say whether a path or uri is in a bucket."""
    return uri.startswith(SCHEME)


def address_of(uri: str) -> tuple[str, str]:
    """Return bucket and key (or prefix) of an address.

    Raises:
        UsageError: it names no bucket, or holds something like a credential; the message does not repeat it.
    """
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    if not is_object(uri) or not _BUCKET.fullmatch(bucket):
        msg = "an address in a bucket is s3://BUCKET/KEY; credentials, ports and access points have no place in it"
        raise UsageError(msg, remedy="credentials: s3_profile or the AWS_* variables; the server: s3_endpoint_url")
    return bucket, key


def prefix_of(location: str) -> tuple[str, str]:
    """Return bucket and prefix of a folder in a bucket; the prefix is empty or ends in a slash.

    Raises:
        UsageError: as `address_of`.
    """
    bucket, prefix = address_of(location)
    return bucket, prefix if not prefix or prefix.endswith("/") else f"{prefix}/"


def object_uri(bucket: str, key: str) -> str:
    """Return the uri of an object."""
    return f"{SCHEME}{bucket}/{key}"
