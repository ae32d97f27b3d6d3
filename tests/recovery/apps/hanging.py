"""An application with user code that hangs if a file or a line tells it to, in the driver or in workers."""

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
"""The time-out of a group: long enough for a good group on a busy machine."""

FOR_EVER = 600.0


class Params(dm.Params):
    """The file to which a hanging worker writes its pid; and the file that makes the driver hang if it exists."""

    pid_file: str = ""
    hang_file: str = ""


@dm.consistent(trigger="operator-driven", group_timeout=BOUND, reset_timeout=BOUND)
@dm.source(dm.DirectoryScan(path="in", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    """Return one row for each line."""
    return scanned


@dm.functor
def slow(lines: DataFrame, params: Params) -> DataFrame:
    """Return the lines; sleep in the driver if the file is there, and in a worker on a line SLEEP."""
    if params.hang_file and Path(params.hang_file).exists() and not lines.isEmpty():
        time.sleep(FOR_EVER)
    return dm.select(lines, F.udf(judged, "string")(F.col("value"), F.lit(params.pid_file)).alias("line"))


def judged(value: str, pid_file: str) -> str:
    """Return a line, in Spark's workers; hang on a line SLEEP."""
    if value == "SLEEP":
        Path(pid_file).write_text(str(os.getpid()))
        time.sleep(FOR_EVER)
    return value


counts = dm.aggregate(slow, keys=["line"], values={"count": dm.count()}, name="counts")
dm.sink(counts, dm.DeltaUpsert("hanging_counts", keys=["line"]))
dm.sink(slow, dm.DeltaAppend("hanging_lines"))
