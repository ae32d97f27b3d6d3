"""The places of the contract of tables: a folder on a disk, and a bucket of an S3 server."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import canary
import pyarrow as pa
import pytest

from drainmark.jobs.protocol.records.addresses import address_of
from drainmark.jobs.tasks.bucket_clients import Patience
from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.folder import Folder, LocalFolder
from drainmark.resources.storage.object_store import ObjectStore

BUCKET = "s3://contract"
CREDENTIALS = canary.CREDENTIALS
"""The environment variables of a child process; `s3_credentials` sets the same ones for this process."""

ON_A_DISK = pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.slow)], indirect=True)
"""Run on a disk; in a bucket only with the slow tests, because the test sends the store nothing new."""


def place_at(uri: str, endpoint: str = "") -> Folder:
    """Return the folder of a uri, in any process; the credentials come from the environment."""
    if not uri.startswith("s3://"):
        return LocalFolder(Path(uri))
    return BucketFolder(store_at(endpoint), *address_of(uri))


@functools.cache
def store_at(endpoint: str) -> ObjectStore:
    """Return the client of an endpoint; a process makes one."""
    return ObjectStore(endpoint, patience=Patience(request_seconds=30.0, retries=1))


def make_bucket(endpoint: str) -> ObjectStore:
    """Make the bucket of the contracts, unless it is there; return the client."""
    store = store_at(endpoint)
    client = store.connection.client
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=BUCKET.removeprefix("s3://"))
    return store


def text_of(place: Folder, path: str) -> str:
    """Return the content of a file."""
    return str(pa.input_stream(place.source(path)).read(), "utf-8")


def folders(place: Folder, path: str) -> list[str]:
    """Return the folders below `path` that hold files: some stores still list emptied folders."""
    return sorted({file.path.removeprefix(f"{path}/").partition("/")[0] for file in place.everything(path)})


def remove(place: Folder, path: str) -> None:
    """Delete one file without the knowledge of any table."""
    if isinstance(place, BucketFolder):
        place.store.delete(place.bucket, [f"{place.prefix}/{path}"])
    else:
        (Path(place.uri) / path).unlink()
