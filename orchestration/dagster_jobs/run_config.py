"""A bound for the config of a run, which people and programs send through Dagster's page in any length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from drainmark.jobs.errors import UsageError

LONGEST_CONFIG = 128 * 1024
"""Characters of a config, as JSON: as many as Linux allows in an argument of a command. Texts of a config go into rows
of the checkpoint table, errors, events and tags, which are kept for ever."""


def require_short(config: Mapping[str, Any], whose: str) -> None:
    """Raise UsageError if a config is longer than LONGEST_CONFIG."""
    length = len(json.dumps(config, default=str))
    if length > LONGEST_CONFIG:
        msg = f"the config of {whose} has {length:,} characters, more than {LONGEST_CONFIG:,}; nothing was done"
        raise UsageError(msg, remedy="make it shorter: long texts and lists belong in a file that it names")
