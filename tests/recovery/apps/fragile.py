"""An application with user code that fails if a line tells it to; the function that fails runs in Spark's workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=2)
@dm.source(dm.DirectoryScan(path="in", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    """Return one row for each line."""
    return scanned


@dm.functor
def checked(lines: DataFrame) -> DataFrame:
    """Return the lines; the user code fails on a line POISON."""
    return dm.select(lines, F.udf(judged, "string")(F.col("value")).alias("line"))


def judged(value: str) -> str:
    """Run in workers, which get this module only inside the pickled function."""
    if value == "POISON":
        msg = "this line is poison"
        raise ValueError(msg)
    return value


@dm.functor
def seen(checked: DataFrame) -> DataFrame:
    """Return the lines unchanged: an operator between the culprit and the sink must not get the blame."""
    return dm.select(checked, "line")


counts = dm.aggregate(seen, keys=["line"], values={"count": dm.count()}, name="counts")
dm.sink(counts, dm.DeltaUpsert("fragile_counts", keys=["line"]))
dm.sink(checked, dm.DeltaAppend("fragile_lines"))
