"""The last step of `make setup`: fetch delta-spark's jars once, so that every later start is fast and quiet.

Ivy writes pages to the terminal while it resolves, so a child process does it; its output is shown only if it fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

from drainmark.jobs.errors import StoreUnavailable

FETCH_TIMEOUT_SECONDS = 900
_QUOTED_LINES = 8
_MARKS = ("download failed", "unresolved dependency", "server access error", "exception in thread", "not found")
_START = """
import sys
from pathlib import Path
from drainmark.resources.spark.session import SparkEngine
SparkEngine("local[1]", {}, Path(sys.argv[1])).session.range(1).collect()
"""


def fetch_jars() -> bool:
    """Start one Spark session unless the jars are cached; return whether it was started.

    Raises:
        JavaMissing: there is no Java runtime.
        StoreUnavailable: the session did not start.
    """
    from drainmark.resources.spark.session import check_java

    check_java()
    if are_cached():
        return False
    with tempfile.TemporaryDirectory() as scratch:
        try:
            child = subprocess.run(
                [sys.executable, "-c", _START, scratch],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=FETCH_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _not_fetched(f"no answer for {FETCH_TIMEOUT_SECONDS} s", "") from error
    if child.returncode != 0:
        raise _not_fetched(f"the first start ended with {child.returncode}", child.stdout)
    return True


def are_cached() -> bool:
    """Say whether a session starts without a request to a Maven repository."""
    from drainmark.resources.spark.session_settings import delta_settings

    return "spark.jars.packages" not in delta_settings()


def _not_fetched(reason: str, output: str) -> StoreUnavailable:
    """Return the error, with the last relevant lines of Ivy's output."""
    from drainmark.resources.spark.unnamed_user import user_homes

    caches = [cache for home in user_homes() for cache in (home / ".m2" / "repository", *home.glob(".ivy2*"))]
    half_filled = [str(folder) for folder in caches if folder.exists()]
    told = [line.strip() for line in output.splitlines() if any(mark in line.lower() for mark in _MARKS)]
    known = any("fail" in line.lower() for line in told)
    clear = f"clear {' and '.join(half_filled)} (half-filled, it makes Ivy fail)" if half_filled else ""
    network = "see whether this machine reaches a Maven repository"
    remedies = [clear, network] if known else [network, clear]
    quoted = "\n".join(f"  {line}" for line in (told or output.splitlines())[-_QUOTED_LINES:])
    return StoreUnavailable(
        f"the jars of delta-spark could not be fetched: {reason}\n{quoted}".rstrip(),
        remedy="; ".join(filter(None, remedies)) + "; then `make setup` again",
    )


def main() -> None:
    """Fetch the jars and print one line about it."""
    from drainmark.jobs.errors import DrainmarkError

    try:
        fetched = fetch_jars()
    except DrainmarkError as error:
        sys.exit(str(error))
    print("The jars of delta-spark were fetched." if fetched else "The jars of delta-spark are there.")


if __name__ == "__main__":
    main()
