"""Credentials of the tests; where one of them is found afterwards, a credential has leaked (Z5)."""

ACCESS_KEY = "AKIACANARYCANARY0001"
SECRET = "canary-secret-never-to-be-seen"  # noqa: S105
TOKEN = "canary-token-never-to-be-seen"  # noqa: S105

ALL = (ACCESS_KEY, SECRET, TOKEN)
