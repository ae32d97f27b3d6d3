"""Spark's own access to buckets, S3A, if a session has it.

No credentials pass through this module. A session that Drainmark starts finds its own, as boto3 does, from the
environment, a profile or a role; a cluster or a Connect server has those of its user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from drainmark.jobs.errors import StoreRefused
from drainmark.resources.storage.object_store import object_store

if TYPE_CHECKING:
    from drainmark.resources.settings import Settings
    from drainmark.resources.spark.session import SparkEngine

MODULE = "hadoop-aws"
_JARS = ("spark.jars.packages", "spark.jars")
_PREFIX = "spark.hadoop.fs.s3a"
_DEFAULT_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_PROFILE = "org.apache.hadoop.fs.s3a.auth.ProfileAWSCredentialsProvider"


def s3a_settings(settings: Settings) -> Mapping[str, str]:
    """Return the settings that lead S3A to the store of boto3, for a session of Drainmark's; none without the jar."""
    asked_for = any(MODULE in settings.spark_conf.get(name, "") for name in _JARS)
    if not asked_for or settings.master.startswith("sc://"):
        return {}
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


def can_read(engine: SparkEngine, address: str, settings: Settings) -> bool:
    """Say whether Spark is to read objects directly from the bucket.

    Args:
        address: `s3a://` path of an object; used to probe a session that was not probed yet.

    Raises:
        StoreRefused: `s3_reader` is `s3a`, and the session cannot read the object.
    """
    if settings.s3_reader == "spool":
        return False
    why = engine.cannot_read(address)
    if why is not None and settings.s3_reader == "s3a":
        told = object_store(settings).connection.redacted(why)
        remedy = f'add {MODULE} of Spark\'s Hadoop version to spark.jars.packages in spark_conf, or s3_reader = "auto"'
        raise StoreRefused(f"Spark cannot read {address}: {told}", remedy=remedy)
    return why is None
