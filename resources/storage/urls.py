"""Folders for settings: a path of this machine, or a prefix of a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.resources.storage.folder import S3, Folder, LocalFolder
from drainmark.resources.storage.object_store import object_store
from drainmark.resources.storage.s3_folder import S3Folder

if TYPE_CHECKING:
    from drainmark.resources.settings import Settings


def tables_folder(settings: Settings) -> Folder:
    """Return the folder that holds `checkpoints/`, `state/` and `lake/`: the setting `tables_url`, else home."""
    return folder_of(settings.tables_url, settings) if settings.tables_url else LocalFolder(settings.home)


def folder_of(url: str, settings: Settings) -> Folder:
    """Return the folder of an `s3://bucket/prefix`, or of a path relative to the project's root."""
    if not url.startswith(S3):
        return LocalFolder(settings.project_root / url)
    bucket, _, prefix = url.removeprefix(S3).partition("/")
    return S3Folder(object_store(settings), bucket, prefix.strip("/"))
