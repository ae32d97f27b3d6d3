"""The clock of the Python processes that Drainmark starts: UTC, whatever the zone of the machine.

pyspark turns a timestamp into a `datetime` of the local zone, and back: in a zone with summer time two instants of the
repeated hour have the same local time, and `mktime` guesses which one is meant.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

UTC: Mapping[str, str] = {"TZ": "UTC"}
"""For the environment of a process."""


def have_utc() -> None:
    """Give this process the clock; only for a process that Drainmark started: others have code of their own in it."""
    os.environ.update(UTC)
    time.tzset()
