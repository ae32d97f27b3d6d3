"""The choice of Spark for a process: its own, the home's resident one, or a foreign one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from drainmark.resources.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from drainmark.resources.spark.resident.access import ResidentEngine
    from drainmark.resources.spark.session import SparkEngine
    from drainmark.resources.storage.folder import Folder

OWNER_VARIABLE = "DRAINMARK_SPARK_OWNER"
"""Pid of the process with which the resident Spark ends; `drainmark dev` sets it for all processes it starts."""


def make_engine(settings: Settings, *, is_service: bool) -> SparkEngine:
    """Return the engine that the settings ask for; nothing is started or connected yet."""
    resident = resident_engine(settings, is_service=is_service)
    if resident is not None:
        return resident
    from drainmark.resources.spark.session import SparkEngine

    return SparkEngine(settings.master, _conf(settings), settings.home / "spark", *stores_of(settings))


def stores_of(settings: Settings) -> tuple[list[Path], Folder | None]:
    """Return the folders that executors are to share with this process, and a folder of the tables' bucket, if any."""
    from drainmark.resources.storage.folder import LocalFolder
    from drainmark.resources.storage.urls import tables_folder

    tables = tables_folder(settings)
    if isinstance(tables, LocalFolder):
        return list(dict.fromkeys([settings.home, tables.path])), None
    return [settings.home], tables / "_staged"


def resident_engine(settings: Settings, *, is_service: bool) -> ResidentEngine | None:
    """Return an engine on the resident Spark; None if the settings choose another one."""
    if not settings.wants_resident(by_default=is_service):
        return None
    from drainmark.resources.spark.resident.access import ResidentEngine

    owner = _owner() if is_service else None
    return ResidentEngine(
        settings.master, _conf(settings), settings.home / "spark", idle_seconds=settings.spark_idle_seconds, owner=owner
    )


def _conf(settings: Settings) -> dict[str, str]:
    from drainmark.resources.storage.s3a import s3a_settings

    return {**s3a_settings(settings), **settings.spark_conf}


def _owner() -> int:
    """Return the pid of the process that the server is kept for: the one named, else the code server."""
    import multiprocessing

    if os.environ.get(OWNER_VARIABLE, "").isdecimal():
        return int(os.environ[OWNER_VARIABLE])
    parent = multiprocessing.parent_process()
    return os.getpid() if parent is None or parent.pid is None else parent.pid
