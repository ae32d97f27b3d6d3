"""Addresses in buckets: `s3://BUCKET/KEY`, with the key as the store has it, without any encoding."""

from __future__ import annotations

import re

from drainmark.jobs.errors import UsageError

SCHEME = "s3://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_HOST = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PLAIN_KEY = re.compile(r"(?:(?!\.\.?/)[A-Za-z0-9._=-]+/)*(?![._])[A-Za-z0-9._=-]+(?<!\._COPYING_)")
_CODEC = re.compile(r"\.(?:gz|bz2|deflate|lz4|snappy|zst)", re.IGNORECASE)


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


def hadoop_address(uri: str) -> str | None:
    """Return the `s3a://` path of an object; None if Hadoop, or Spark, would read another object or none.

    A key must be safe from escaping, globbing, hiding and cutting in all layers above the store: letters, digits and
    `-._=/`, no empty segment, no name that begins with `_` or `.`, endings of compressed files in lower case.
    """
    bucket, key = address_of(uri)
    if not _HOST.fullmatch(bucket) or not _PLAIN_KEY.fullmatch(key):
        return None
    ending = key[key.rfind(".") :] if "." in key else ""
    return None if _CODEC.fullmatch(ending) and not ending.islower() else f"s3a://{bucket}/{key}"


def object_uri(bucket: str, key: str) -> str:
    """Return the uri of an object."""
    return f"{SCHEME}{bucket}/{key}"
