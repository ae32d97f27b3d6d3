"""The choice of Spark for a process: its own, the home's resident one, or a foreign one; and its access to buckets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from drainmark.resources.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from drainmark.resources.spark.resident.access import ResidentEngine
    from drainmark.resources.spark.session import SparkEngine
    from drainmark.resources.storage.folder import Folder

OWNER_VARIABLE = "DRAINMARK_SPARK_OWNER"
"""Pid of the process with which the resident Spark ends; `drainmark dev` sets it for all processes it starts."""

MODULE = "hadoop-aws"
_JARS = ("spark.jars.packages", "spark.jars")
_PREFIX = "spark.hadoop.fs.s3a"
_DEFAULT_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_PROFILE = "org.apache.hadoop.fs.s3a.auth.ProfileAWSCredentialsProvider"


def make_engine(settings: Settings, *, is_service: bool) -> SparkEngine:
    """Return the engine that the settings ask for, and make home; nothing is started or connected yet."""
    settings.make_home()  # before Spark's files, whose parents anybody could read
    resident = resident_engine(settings, is_service=is_service)
    if resident is not None:
        return resident
    from drainmark.resources.spark.session import SparkEngine

    return SparkEngine(settings.master, _conf(settings), settings.home / "spark", *stores_of(settings))


def stores_of(settings: Settings) -> tuple[list[Path], Folder | None]:
    """Return the folders that executors are to share with this process, and a folder of the tables' bucket, if any."""
    from drainmark.resources.storage.bucket_folder import tables_folder
    from drainmark.resources.storage.folder import LocalFolder

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
    return {**s3a_settings(settings), **settings.spark_conf}


def s3a_settings(settings: Settings) -> Mapping[str, str]:
    """Return the settings that lead S3A to the store of boto3, for a session of Drainmark's; none without the jar.

    S3A is for the tables and files that functions of authors read. No credentials pass through here: a session that
    Drainmark starts finds its own, as boto3 does, from the environment, a profile or a role; a cluster or a Connect
    server has those of its user.
    """
    asked_for = any(MODULE in settings.spark_conf.get(name, "") for name in _JARS)
    if not asked_for or settings.master.startswith("sc://"):
        return {}
    from drainmark.resources.storage.object_store import object_store

    store = object_store(settings)
    found = {
        f"{_PREFIX}.endpoint.region": store.connection.region_name,
        f"{_PREFIX}.aws.credentials.provider": _PROFILE if settings.s3_profile else _DEFAULT_CHAIN,
    }
    if settings.s3_profile:
        found["spark.hadoop.fs.s3a.auth.profile.name"] = settings.s3_profile
    if settings.s3_endpoint_url:
        found |= {f"{_PREFIX}.endpoint": settings.s3_endpoint_url, f"{_PREFIX}.path.style.access": "true"}
    return found


def _owner() -> int:
    """Return the pid of the process that the server is kept for: the one named, else the code server."""
    import multiprocessing

    if os.environ.get(OWNER_VARIABLE, "").isdecimal():
        return int(os.environ[OWNER_VARIABLE])
    parent = multiprocessing.parent_process()
    return os.getpid() if parent is None or parent.pid is None else parent.pid
