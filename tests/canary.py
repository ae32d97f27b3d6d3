"""Credentials of the tests; where one of them is found afterwards, a credential has leaked (Z5)."""

ACCESS_KEY = "AKIACANARYCANARY0001"
SECRET = "canary-secret-never-to-be-seen"  # noqa: S105
TOKEN = "canary-token-never-to-be-seen"  # noqa: S105

ALL = (ACCESS_KEY, SECRET, TOKEN)

KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
CREDENTIALS = {**KEYS, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
"""The environment that has them."""
