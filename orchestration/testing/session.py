"""The Spark session that the tests of one process share: its start takes seconds, which each test would pay again."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

from drainmark.resources.spark.session import SparkEngine

MASTER = "local[2]"
"""Two cores: enough to run tasks in parallel, and small tests gain nothing from more."""

SETTINGS = {"spark.driver.memory": "2g"}


@functools.cache
def shared_engine() -> SparkEngine:
    """Return the engine of this process's tests; it starts Spark when its `session` is first read."""
    return SparkEngine(MASTER, SETTINGS, Path(tempfile.mkdtemp(prefix="drainmark-spark-")))


def stop_shared_engine() -> None:
    """Stop the session, if there is one, and remove its files from disk."""
    if shared_engine.cache_info().currsize:
        engine = shared_engine()
        shared_engine.cache_clear()
        engine.stop()
        shutil.rmtree(engine.scratch, ignore_errors=True)
