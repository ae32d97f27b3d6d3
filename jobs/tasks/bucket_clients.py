"""Clients of object stores, one a bucket, with the credentials of the process; and the translation of their errors.

A client of S3 has what boto3's chain (environment, profile, role) finds, if boto3 is installed; else, and for Azure and
Google, it finds credentials in the environment (`AWS_*`, `AZURE_*`, `GOOGLE_*`) or those of the machine by itself.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

_RENEWED = timedelta(minutes=6)
"""The client asks boto3 again when less than five minutes of this are left; boto3 itself keeps what is valid."""

_CODE = re.compile(r"(?s)[<{].*?<Code>(\w+)</Code>|[<{].*?\"code\":\s*\"?(\w+)")
_BODY = re.compile(r"(?s)[<{].*|, body:.*|Debug source:.*")  # the body of an answer: it may repeat what was sent
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client tries.

    Attributes:
        connect_seconds, request_seconds: time-outs of one try; what comes of a body until then is kept.
        retries: further tries of one call.
        retry_seconds: after which no further try begins.
    """

    connect_seconds: float = 5.0
    request_seconds: float = 30.0
    retries: int = 4
    retry_seconds: float = 40.0

    def options(self) -> Mapping[str, str]:
        """Return the same as options of `deltalake`."""
        return {
            "connect_timeout": f"{self.connect_seconds:g}s",
            "timeout": f"{self.request_seconds:g}s",
            "max_retries": str(self.retries),
            "retry_timeout": f"{self.retry_seconds:g}s",
        }


PATIENCE = Patience()


@lru_cache(maxsize=64)
def client_of(address: str, server: str, region: str, profile: str, patience: Patience) -> Any:
    """Return the client of a bucket (see `Bucket`); a process makes one. Never print it: that of Azure aborts."""
    from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

    scheme, _, place = address.partition("://")
    name, _, host = place.partition("@")
    if scheme == "memory":
        return MemoryStore()
    shared: dict[str, Any] = {
        "client_options": {
            "allow_http": server.startswith("http://"),
            "connect_timeout": timedelta(seconds=patience.connect_seconds),
            "timeout": timedelta(seconds=patience.request_seconds),
        },
        "retry_config": {
            "max_retries": patience.retries,
            "retry_timeout": timedelta(seconds=patience.retry_seconds),
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
        },
    }
    if scheme == "s3":
        return S3Store(name, endpoint=server, region=region, credential_provider=_credentials(profile), **shared)
    if scheme == "gs":
        return GCSStore(name, **shared)
    account: dict[str, Any] = {"account_name": host.partition(".")[0]} if host else {}
    return AzureStore(name, **account, **shared)


def _credentials(profile: str) -> Any:
    """Return a provider that gives the client credentials and renews them; None lets the client find its own."""
    try:
        import boto3
    except ImportError:
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.session.Session(profile_name=profile or None)
    return Boto3CredentialProvider(session, ttl=_RENEWED) if session.get_credentials() is not None else None


@contextmanager
def told(uri: str) -> Iterator[None]:
    """Turn an error of the client inside the block into an OSError, without the body of the store's answer.

    Raises:
        FileNotFoundError: there is no such object.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        text = str(error)
        if any(code in text for code in _NO_BUCKET):
            raise OSError(errno.EIO, f"there is no such bucket: {said(error)}", uri) from None
        raise FileNotFoundError(errno.ENOENT, "there is no such object", uri) from None
    except (BaseError, OSError) as error:  # the client raises both kinds
        if isinstance(error, OSError) and error.filename is not None:
            raise  # an inner block has translated it
        raise OSError(errno.EIO, said(error), uri) from None


def said(error: Exception) -> str:
    """Return the text of an error: of an answer's body only its code."""
    text = str(error)
    code = _CODE.search(text)
    plain = _BODY.sub("", text)[:300].rstrip(": \n")
    return f"{type(error).__name__}: {plain}" + (f": {code[1] or code[2]}" if code else "")
