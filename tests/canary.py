"""Credentials of the tests: if one of them is found afterwards, a credential has leaked (Z5)."""

import os

import pytest

CHECKS_SIGNATURES = os.environ.get("DRAINMARK_TEST_S3") == "seaweedfs"
"""Whether the S3 server of this run refuses unknown credentials: it has issued no session token."""

ACCESS_KEY = "AKIACANARYCANARY0001"
SECRET = "canary-secret-never-to-be-seen"  # noqa: S105
TOKEN = "canary-token-never-to-be-seen"  # noqa: S105

ALL = (ACCESS_KEY, SECRET, TOKEN)

KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
if not CHECKS_SIGNATURES:
    KEYS["AWS_SESSION_TOKEN"] = TOKEN
CREDENTIALS = {**KEYS, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
"""The environment variables with the credentials."""


def only_with_moto(why: str) -> pytest.MarkDecorator:
    """Return the mark of a test that fails on the other S3 server by its own fault; `why` calls the server `it`."""
    return pytest.mark.skipif(CHECKS_SIGNATURES, reason=f"SeaweedFS: {why}")
