"""Addresses in buckets: that of the bucket, a slash, and the key as the store has it, without any encoding.

s3://BUCKET/KEY   gs://BUCKET/KEY   az://CONTAINER/KEY   abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY
"""

from __future__ import annotations

import re

from drainmark.jobs.errors import UsageError

S3 = "s3://"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}"
_CONTAINER = r"[a-z0-9$][a-z0-9-]{1,62}"
_BUCKET = re.compile(rf"(s3|gs)://{_NAME}|az://{_CONTAINER}|abfss://{_CONTAINER}@[a-z0-9]{{3,24}}\.dfs(\.[a-z0-9-]+)+")
_SCHEMES = (S3, "gs://", "az://", "abfss://")


def is_object(uri: str) -> bool:
    """Say whether a path or uri is in a bucket."""
    return uri.startswith(_SCHEMES)


def address_of(uri: str) -> tuple[str, str]:
    """Return the bucket's address and the key (or prefix) of an address.

    Raises:
        UsageError: it names no bucket, or holds something like a credential; the message does not repeat it.
    """
    scheme, separator, rest = uri.partition("://")
    name, _, key = rest.partition("/")
    bucket = f"{scheme}{separator}{name}"
    if not _BUCKET.fullmatch(bucket):
        msg = (
            "an address in a bucket is s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or"
            " abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY; credentials, ports and access points have no place"
            " in it"
        )
        remedy = "credentials: the environment (s3_profile or the AWS_* variables for S3); the server: s3_endpoint_url"
        raise UsageError(msg, remedy=remedy)
    return bucket, key


def prefix_of(location: str) -> tuple[str, str]:
    """Return the bucket's address and the prefix of a folder in a bucket; the prefix is empty or ends in a slash.

    Raises:
        UsageError: as `address_of`.
    """
    bucket, prefix = address_of(location)
    return bucket, prefix if not prefix or prefix.endswith("/") else f"{prefix}/"


def object_uri(bucket: str, key: str) -> str:
    """Return the uri of an object."""
    return f"{bucket}/{key}"
