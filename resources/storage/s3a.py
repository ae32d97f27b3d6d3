"""Spark's own access to buckets, S3A, for the tables and files that functions of authors read.

No credentials pass through this module. A session that Drainmark starts finds its own, as boto3 does, from the
environment, a profile or a role; a cluster or a Connect server has those of its user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from drainmark.resources.storage.object_store import object_store

if TYPE_CHECKING:
    from drainmark.resources.settings import Settings

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
