"""The connection to an S3 server: what boto3 finds of credentials, region and address, and its client for odd requests.

Only `credentials` returns credentials: messages pass through `redacted`, and causes are not chained, since their text
and attributes contain the answer of the server.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from drainmark.jobs.errors import DrainmarkError, StoreRefused
from drainmark.jobs.tasks.bucket_clients import Patience
from drainmark.resources.storage.object_errors import redacted, translation

_READ_SECONDS = 20.0
"""With this time-out a call gives up within about two minutes, less than any drain_timeout."""

PARALLEL = 16
"""Requests at a time: enough to hide a bucket's latency; each has a connection that is kept open."""

_SHORTEST_SECRET = 12  # shorter ones belong to test servers, and may be words of messages


class S3Connection:
    """A client of one server; safe for many threads, opened at first use.

    Args:
        endpoint_url: address of an S3-compatible server, None for AWS.
        profile: name of a profile of the AWS configuration, None for boto3's own chain (environment, role, default).
        region: None for that of the profile or the environment.
        patience: time-outs and tries of one call.
    """

    def __init__(
        self, endpoint_url: str | None, profile: str | None, region: str | None, *, patience: Patience
    ) -> None:
        self.endpoint_url = endpoint_url
        self.profile = profile
        self.region = region
        self._patience = patience
        self._client: Any = None
        self._session: Any = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"S3Connection({redacted(self.endpoint_url or 'AWS')}, profile={self.profile}, region={self.region})"

    @property
    def client(self) -> Any:
        """Return the boto3 client; its errors are neither translated nor redacted."""
        with self._lock:
            if self._client is None:
                from botocore.config import Config

                patience = self._patience
                config = Config(
                    retries={"mode": "standard", "total_max_attempts": patience.retries + 1},
                    max_pool_connections=PARALLEL,
                    request_checksum_calculation="when_required",  # stores other than AWS refuse trailing checksums
                    connect_timeout=patience.connect_seconds,
                    read_timeout=min(_READ_SECONDS, patience.request_seconds),
                )
                with self.translating("open the store"):
                    self._client = self._opened().client("s3", endpoint_url=self.endpoint_url, config=config)
            return self._client

    def _opened(self) -> Any:
        if self._session is None:
            import boto3

            self._session = boto3.session.Session(profile_name=self.profile, region_name=self.region)
        return self._session

    @property
    def address(self) -> str:
        """Return the address that requests go to, from whichever setting it comes."""
        return str(self.client.meta.endpoint_url)

    @property
    def region_name(self) -> str:
        """Return the region that requests are signed for."""
        found = str(self.client.meta.region_name)
        return "us-east-1" if found == "aws-global" else found

    def credentials(self) -> tuple[str, str, str | None]:
        """Return access key, secret and token for another client, renewed if they expire. Do not store them."""
        with self.translating("find the credentials"):
            found = self._opened().get_credentials()
            if found is not None:
                access_key, secret, token = found.get_frozen_credentials()[:3]
                return access_key, secret, token
        raise StoreRefused("there are no credentials for S3", remedy="set s3_profile, or the AWS_* variables")

    @contextlib.contextmanager
    def translating(self, where: str) -> Iterator[None]:
        """Turn an error of boto3 inside the block into one of Drainmark's errors, without credentials.

        Args:
            where: the action and its object, in the infinitive, for the message.
        """
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
        """Return a text without the credentials of this store."""
        for secret in self._credentials():
            text = text.replace(secret, "***") if len(secret) >= _SHORTEST_SECRET else text
        return redacted(text)

    def _credentials(self) -> Sequence[str]:
        """Return access key, secret and token; none if reading them fails."""
        with contextlib.suppress(Exception):
            frozen = self._session.get_credentials().get_frozen_credentials()
            return [secret for secret in frozen[:3] if secret]
        return ()
