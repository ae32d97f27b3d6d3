"""JVMs of the tests with half the cost of start and warm-up: no optimising compiler, no generated code, classes from an
archive.

A test that starts Spark spends most CPU seconds on loading classes, and on compiling code that runs once: that of the
JVM, and the Java that Spark writes for each plan. A run of an hour sets a variable and compiles both, because there it
pays. As a program, this module makes the archive (`make test` does this); tests run without it, too. Benchmarks use
none of this.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
_COMPILER = "-XX:TieredStopAtLevel=1"  # it does not optimise
_INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
_SETTINGS = (
    "-XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
    " -XX:ReservedCodeCacheSize=240m"  # one compiler comes with 48 MB, and a run of tests uses up all of them
    " -XX:MetaspaceSize=256m"  # otherwise there is a full collection each time that classes need more room
    " -XX:InitialRAMPercentage=6 -XX:NewRatio=1"  # and so for the heap: half as many collections of new objects
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"  # it is for code that nobody trusts
)
_ENVIRONMENT = "SPARK_SUBMIT_OPTS"
"""The variable that Spark's launcher passes to every JVM of a driver or a Connect server."""

_LONG = "DRAINMARK_TEST_LONG"
"""The variable that is set if the tests take an hour and share a JVM."""


def quicken() -> None:
    """Let this process and its children start JVMs with these options; a setting of the environment stays."""
    os.environ.setdefault(_ENVIRONMENT, options())


def options(*, is_executor: bool = False) -> str:
    """Return the options of a JVM of the tests; Spark takes no settings of its own among those of executors."""
    quick = [] if os.environ.get(_LONG) else [_COMPILER] if is_executor else [_COMPILER, _INTERPRETED]
    archive = [f"-XX:SharedArchiveFile={ARCHIVE}"] if ARCHIVE.exists() else []
    return " ".join([*quick, _SETTINGS, *archive])


def main() -> None:
    """Run a little of Spark and Delta, and write the loaded classes to the archive."""
    unfinished = ARCHIVE.with_suffix(".tmp")
    options = f"{_COMPILER} {_INTERPRETED} {_SETTINGS} -XX:ArchiveClassesAtExit={unfinished}"
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
