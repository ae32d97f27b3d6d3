"""The process from which a Connect server's Python workers are forked; it ends after a minute without workers.

Spark starts one for each session that runs a Python function, and keeps it for as long as the server lives
(SPARK-54055): 50 MB for each run, until the memory of the machine is full. Spark starts it again if a session needs
another worker. It loads the modules that every worker imports, so that a worker starts in some milliseconds. It takes
them from compiled folders: Spark's own daemon compiles a zip of PySpark, which takes a second.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

IDLE_SECONDS = 60.0
_LOOK_SECONDS = 10.0


def idle_watch(idle_seconds: float, end: Callable[[], None]) -> Callable[..., None]:
    """Return a function to call from time to time; it calls `end` after `idle_seconds` without a child process."""
    busy_at = time.monotonic()

    def look(*_: object) -> None:
        nonlocal busy_at
        if _has_children():
            busy_at = time.monotonic()
        elif time.monotonic() - busy_at >= idle_seconds:
            end()

    return look


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def without_zips(path: Sequence[str]) -> list[str]:
    """Return the import path without the zips of a PySpark that the path has as a folder, too."""
    zips = {os.path.join(folder, "pyspark", "python", "lib") for folder in path}
    return [entry for entry in path if os.path.dirname(entry) not in zips]


def main() -> None:
    """Serve as `pyspark.daemon` does. Workers inherit no timer, and load the Drainmark that was sent to them."""
    sys.path[:] = without_zips(sys.path)
    import pandas  # noqa: F401 - loaded for the workers
    import pyarrow.parquet  # noqa: F401
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    for name in [name for name in list(sys.modules) if name.partition(".")[0] == "drainmark"]:
        del sys.modules[name]
    signal.signal(signal.SIGALRM, idle_watch(IDLE_SECONDS, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
    manager()


if __name__ == "__main__":
    main()
