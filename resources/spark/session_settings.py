"""The settings of a Spark session: for correct results, for fast small groups, of the user, and of Delta."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drainmark.resources.settings import is_local
from drainmark.resources.spark.unnamed_user import java_options, user_homes

UTC: Mapping[str, str] = {"TZ": "UTC"}
"""For the environment of a Python process that Drainmark starts: its clock, whatever the zone of the machine.

pyspark turns a timestamp into a `datetime` of the local zone, and back: in a zone with summer time two instants of the
repeated hour have the same local time, and `mktime` guesses which one is meant.
"""


def have_utc() -> None:
    """Give this process the clock; only for a process that Drainmark started: others have code of their own in it."""
    os.environ.update(UTC)
    time.tzset()


DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
DELTA_JARS = ("io.delta_delta-spark_4.2_2.13-4.4.0.jar", "io.delta_delta-storage-4.4.0.jar")
_LISTS = {"spark.jars", "spark.jars.packages", "spark.jars.excludes", "spark.sql.extensions"}
_OPTIONS = "spark.driver.extraJavaOptions"
_JAVA_CLOCK = "-Duser.timezone=UTC"
_COMPILER = " ".join(
    (
        "-XX:+IgnoreUnrecognizedVMOptions",  # of a JVM that is no HotSpot, or has one compiler
        "-XX:Tier4InvocationThreshold=50000",
        "-XX:Tier4MinInvocationThreshold=6000",
        "-XX:Tier4CompileThreshold=150000",
        "-XX:Tier4BackEdgeThreshold=400000",
    )
)
"""Ten times Java's limits above which its second compiler compiles a method again. Spark generates code for each plan,
most of which runs for moments, and on two cores that compiler took most of the JVM's time: with these limits the JVM
needs a fifth less of it for small groups, and no more for large ones. The user's own options win."""
_EXCLUDES = "io.unitycatalog:*,org.slf4j:*,org.apache.logging.log4j:*,com.google.code.findbugs:*"

CORRECTNESS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.csv.parser.columnPruning.enabled": "false",  # else the columns decide which rows are corrupt
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # Otherwise a Python function without arguments waits forever over Parquet (Spark 4.2).
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
}
"""Settings that results depend on; the user's own configuration cannot override them."""

_WORKERS: Mapping[str, str] = {f"spark.executorEnv.{name}": value for name, value in UTC.items()}
"""The same, for the Python of workers: only a start can give it to them."""

SPEED: Mapping[str, str] = {
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # no Spark job to list 1000 files
    "spark.sql.files.openCostInBytes": "65536",  # 1000 small files are 2 tasks, not 32
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # saves two calls to the JVM for each Column
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.localRelationThreshold": "1m",  # each rule of the optimiser goes through all these rows
    "spark.sql.codegen.cache.maxEntries": "2000",  # a group of some operators fills 100, and is compiled each time
    "spark.sql.maxPlanStringLength": "200000",
    "spark.sql.debug.maxToStringFields": "10000",  # the walk of analysed plans must see every column
    "spark.scheduler.mode": "FAIR",  # between the pools of stages; jobs without a pool share one, first in, first out
    "spark.databricks.delta.snapshotPartitions": "2",  # else 50 tasks for the log of a small table
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "3g",
}
"""Settings that make small groups fast; the user's own configuration wins over them."""

_HERE: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For executors on this machine only: other machines would look for the driver on themselves."""

_ONE_JVM: Mapping[str, str] = {"spark.authenticate": "true"}
"""For one JVM, which talks only to itself. All users of the machine reach its ports, and it deserialises what they send
unless the sender must know a secret. Spark makes that secret at each start, and it never leaves the JVM. The settings
of a cluster are the cluster's: there, `doctor` says when this one is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """The settings of a session that Drainmark starts itself.

    Attributes:
        master: `local[*]`, or a master URL.
        conf: the user's settings, passed through.
        scratch: folder for Spark's own temporary files.
    """

    master: str
    conf: Mapping[str, str]
    scratch: Path

    def of_session(self) -> dict[str, str]:
        """Return the settings of an in-process session, for benchmarks and `doctor`."""
        warehouse = {"spark.sql.warehouse.dir": str(self.scratch / "warehouse")}
        here = (
            {
                **_HERE,
                "spark.local.dir": str(self.scratch / "local"),
                "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
            }
            if self.master.startswith("local")
            else {}
        )
        one_jvm = _ONE_JVM if is_local(self.master) else {}
        return {**SPEED, **warehouse, **here, **one_jvm, **self.conf, **CORRECTNESS, **_WORKERS}

    def of_start(self) -> dict[str, str]:
        """Return the settings to start a JVM with: those of the session, of delta-spark, and of an unnamed user."""
        settings, delta = self.of_session(), delta_settings(self.scratch)
        for key in _LISTS & settings.keys() & delta.keys():
            delta[key] = f"{settings[key]},{delta[key]}"
        own = settings.get(_OPTIONS, "")
        settings[_OPTIONS] = " ".join((_COMPILER, own, _JAVA_CLOCK, java_options(self.scratch))).strip()
        return {**settings, **delta}


def write_properties(path: Path, settings: Mapping[str, str]) -> None:
    """Write settings to a file that Spark reads, with mode 0600: `ps` shows a command line to everyone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{key}={_escaped(value)}\n" for key, value in settings.items())


def _escaped(value: str) -> str:
    """Return a value as Java's properties files spell it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def delta_settings(scratch: Path | None = None) -> dict[str, str]:
    """Return the settings for delta-spark: the jars that an earlier start fetched, else the package to fetch.

    Args:
        scratch: where a start keeps them if the user has no home.
    """
    extensions = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    homes = {*user_homes(), *([scratch] if scratch is not None else [])}
    for cache in sorted(cache for home in homes for cache in home.glob(".ivy2*/jars")):
        jars = [cache / name for name in DELTA_JARS]
        if all(jar.is_file() for jar in jars):
            return {**extensions, "spark.jars": ",".join(map(str, jars))}
    return {**extensions, "spark.jars.packages": DELTA_PACKAGE, "spark.jars.excludes": _EXCLUDES}
