"""Where the contract of tables is checked: a folder on a disk, and a bucket of an S3 server."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import canary
import pyarrow as pa
import pytest

from drainmark.resources.storage.folder import Folder, LocalFolder
from drainmark.resources.storage.object_store import ObjectStore
from drainmark.resources.storage.s3_folder import S3Folder

BUCKET = "contract"
CREDENTIALS = canary.CREDENTIALS
"""The environment of a child process, as `s3_credentials` makes it for this one."""

ON_A_DISK = pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.slow)], indirect=True)
"""On a disk; and in a bucket with the slow tests, as nothing that is new comes to the store."""


def place_at(uri: str, endpoint: str = "") -> Folder:
    """Return the folder of a uri, in whatever process; credentials are those of the environment."""
    if not uri.startswith("s3://"):
        return LocalFolder(Path(uri))
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return S3Folder(store_at(endpoint), bucket, prefix)


@functools.cache
def store_at(endpoint: str) -> ObjectStore:
    """Return a client; there is one a process."""
    return ObjectStore(endpoint, attempts=2, read_seconds=5.0)


def make_bucket(endpoint: str) -> ObjectStore:
    """Make the bucket of the contracts, unless it is there; return the client."""
    store = store_at(endpoint)
    client = store.connection.client
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=BUCKET)
    return store


def text_of(place: Folder, path: str) -> str:
    """Return what a file holds."""
    return str(pa.input_stream(place.source(path)).read(), "utf-8")


def folders(place: Folder, path: str) -> list[str]:
    """Return the folders below another one that hold files: some stores go on listing those that were emptied."""
    return sorted({file.path.removeprefix(f"{path}/").partition("/")[0] for file in place.everything(path)})


def remove(place: Folder, path: str) -> None:
    """Delete one file behind everybody's back."""
    if isinstance(place, S3Folder):
        place.store.delete(place.bucket, [f"{place.prefix}/{path}"])
    else:
        (Path(place.uri) / path).unlink()
