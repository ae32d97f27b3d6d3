"""The process from which a Connect server's Python workers are forked; it ends once it has had none for a minute.

Spark starts one for each session that runs a Python function, and keeps it for as long as the server lives
(SPARK-54055): 50 MB a run, until the memory of the machine is full. Spark starts it anew where a session needs a worker
again. What every worker imports is loaded here, so that a worker starts in some milliseconds; and from where it is
compiled, while Spark has its daemon compile a zip of PySpark, which takes a second.
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
    """Return what, called from time to time, ends this process once it has had no child for so long."""
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
    """Return what modules are looked for in, less the zips of a PySpark whose folder is there as well."""
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
