"""The Spark session that the tests of one process share: it starts in seconds, and each test would pay them again."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

from drainmark.resources.spark.session import SparkEngine

MASTER = "local[2]"
"""Two cores: enough to have tasks side by side, and small tests gain nothing from more."""

SETTINGS = {"spark.driver.memory": "2g"}


@functools.cache
def shared_engine() -> SparkEngine:
    """Return the session of this process's tests; it starts when it is first asked for its `session`."""
    return SparkEngine(MASTER, SETTINGS, Path(tempfile.mkdtemp(prefix="drainmark-spark-")))


def stop_shared_engine() -> None:
    """Stop the session, if there is one, and remove what it left on disk."""
    if shared_engine.cache_info().currsize:
        engine = shared_engine()
        shared_engine.cache_clear()
        engine.stop()
        shutil.rmtree(engine.scratch, ignore_errors=True)
