"""JVMs of the tests start and warm up at half the cost: without the optimising compiler, with classes from an archive.

Of the CPU seconds of a test that starts Spark most go to loading classes and to compiling what runs once. A run of an
hour says so in the environment, and gets the optimising compiler: there it pays. Run as a program, this makes the
archive (`make test` does); tests run without it, too. Benchmarks set nothing of this.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
_SETTINGS = (
    "-XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
    " -XX:ReservedCodeCacheSize=240m"  # of the 48 MB that go with one compiler a run of tests uses up all
    " -XX:MetaspaceSize=256m"  # else the heap is collected whole each time that classes need more room
)
_ENVIRONMENT = "SPARK_SUBMIT_OPTS"
"""Spark's launcher passes it to every JVM that runs a driver or a Connect server."""

_LONG = "DRAINMARK_TEST_LONG"
"""Set where the tests take an hour and share a JVM."""


def quicken() -> None:
    """Have this process and its children start JVMs so; what the environment says already stays."""
    os.environ.setdefault(_ENVIRONMENT, options())


def options() -> str:
    """Return what a JVM of the tests is started with."""
    compiler = [] if os.environ.get(_LONG) else [_QUICK_COMPILER]
    archive = [f"-XX:SharedArchiveFile={ARCHIVE}"] if ARCHIVE.exists() else []
    return " ".join([*compiler, _SETTINGS, *archive])


def main() -> None:
    """Run a little of Spark and Delta, and keep the classes that it took."""
    unfinished = ARCHIVE.with_suffix(".tmp")
    options = f"{_QUICK_COMPILER} {_SETTINGS} -XX:ArchiveClassesAtExit={unfinished}"
    subprocess.run([sys.executable, "-c", _WARM], env={**os.environ, _ENVIRONMENT: options}, check=True)
    unfinished.replace(ARCHIVE)


_WARM = """
import tempfile
from drainmark.orchestration.testing.session import shared_engine

engine = shared_engine()
session = engine.session
rows = session.range(1000).selectExpr("id", "id % 7 as k", "string(id) as text")
with tempfile.TemporaryDirectory() as folder:
    rows.write.format("delta").save(folder + "/table")
    found = session.read.format("delta").load(folder + "/table").groupBy("k").sum("id")
    found.toPandas()
    found.write.parquet(folder + "/sums")
    rows.write.csv(folder + "/lines", header=True)
    session.read.csv(folder + "/lines", schema="id bigint, k bigint, text string", header=True).toPandas()
    rows.mapInPandas(lambda frames: frames, "id bigint, k bigint, text string").toPandas()
jvm = session.sparkContext._gateway.proc
session.stop()
jvm.stdin.close()
jvm.wait()  # it writes the archive when it ends
"""

if __name__ == "__main__":
    main()
