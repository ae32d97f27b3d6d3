"""An application whose user code hangs where a file or a line says so: endless loops in driver and workers."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BOUND = dt.timedelta(seconds=15)
"""Long enough for a good group on a busy machine."""

FOR_EVER = 600.0


class Params(dm.Params):
    """Where a hanging worker writes its pid; and the file whose presence makes the driver hang."""

    pid_file: str = ""
    hang_file: str = ""


@dm.consistent(trigger="operator-driven", group_timeout=BOUND, reset_timeout=BOUND)
@dm.source(dm.DirectoryScan(path="in", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    """One row a line."""
    return scanned


@dm.functor
def slow(lines: DataFrame, params: Params) -> DataFrame:
    """User code that sleeps where it is told to."""
    if params.hang_file and Path(params.hang_file).exists() and not lines.isEmpty():
        time.sleep(FOR_EVER)
    return dm.select(lines, F.udf(judged, "string")(F.col("value"), F.lit(params.pid_file)).alias("line"))


def judged(value: str, pid_file: str) -> str:
    """Run in Spark's workers."""
    if value == "SLEEP":
        Path(pid_file).write_text(str(os.getpid()))
        time.sleep(FOR_EVER)
    return value


counts = dm.aggregate(slow, keys=["line"], values={"count": dm.count()}, name="counts")
dm.sink(counts, dm.DeltaUpsert("hanging_counts", keys=["line"]))
dm.sink(slow, dm.DeltaAppend("hanging_lines"))
