"""The process that forks Python workers: it ends only when it has none, and loads compiled modules."""

from __future__ import annotations

import subprocess
import sys

from drainmark.resources.spark.resident.python_daemon import without_zips

PROGRAM = """
import subprocess, sys
from drainmark.resources.spark.resident.python_daemon import idle_watch

ends = []
look = idle_watch(float(sys.argv[1]), lambda: ends.append(True))
child = subprocess.Popen(["sleep", "60"])
look()
print(len(ends))
child.kill()
child.wait()
look()
print(len(ends))
"""


def ends(idle_seconds: float) -> list[int]:
    """Return how often the daemon ended with a child, and after it; measured in a process without other children."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(idle_seconds)], capture_output=True, text=True, check=True
    )
    return [int(line) for line in told.stdout.split()]


def test_it_ends_without_children_and_not_with_one() -> None:
    assert ends(0.0) == [0, 1]


def test_it_waits_for_the_next_worker_for_a_while() -> None:
    assert ends(3600.0) == [0, 0]


def test_modules_of_a_zip_are_loaded_only_where_no_folder_has_them() -> None:
    zips = [f"site/pyspark/python/lib/{name}" for name in ("pyspark.zip", "py4j-src.zip")]
    assert without_zips([*zips, "mine", "site"]) == ["mine", "site"]
    assert without_zips([*zips, "mine"]) == [*zips, "mine"]
