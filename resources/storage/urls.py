"""Folders for settings: a path of this machine, or a prefix of a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs.protocol.records.addresses import address_of, is_object
from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.folder import Folder, LocalFolder
from drainmark.resources.storage.object_store import object_store

if TYPE_CHECKING:
    from drainmark.resources.settings import Settings


def tables_folder(settings: Settings) -> Folder:
    """Return the folder that holds `checkpoints/`, `state/` and `lake/`: the setting `tables_url`, else home."""
    return folder_of(settings.tables_url, settings) if settings.tables_url else LocalFolder(settings.home)


def folder_of(url: str, settings: Settings) -> Folder:
    """Return the folder of an address in a bucket, or of a path relative to the project's root.

    Raises:
        UsageError: it is no address of a bucket.
    """
    if not is_object(url):
        return LocalFolder(settings.project_root / url)
    bucket, prefix = address_of(url)
    return BucketFolder(object_store(settings), bucket, prefix.strip("/"))
