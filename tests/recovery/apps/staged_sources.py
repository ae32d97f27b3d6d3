"""Two sources of `test_staged_matrix.py`: each start is a stage, and their streams meet through two channels.

`staged_graphs` writes `MODE` and `GATE` into a copy for each mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from gates import slow_at

import drainmark as dm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MODE: dict[str, Any] = {}
GATE = ""

ROW = "k string, n bigint"
Rows = Annotated["DataFrame", dm.Buffered]


@dm.consistent(trigger="periodic", period=0.001, max_consecutive_reset_attempts=3, **MODE)
@dm.source(dm.DirectoryScan(path="left", pattern="*.csv", format="csv", schema=ROW))
def left(scanned: DataFrame) -> DataFrame:
    """Return the rows of the files of one folder."""
    return scanned


@dm.consistent(trigger="periodic", period=0.001, max_consecutive_reset_attempts=3, **MODE)
@dm.source(dm.DirectoryScan(path="right", pattern="*.json", format="json", schema=ROW))
def right(scanned: DataFrame) -> DataFrame:
    """Return the rows of the files of the other folder."""
    return scanned


@dm.functor
def both(left: Rows, right: Rows) -> DataFrame:
    """Return the rows of both starts."""
    return dm.select(left, "k", "n").unionByName(dm.select(right, "k", "n"))


@dm.functor
def of_left(left: DataFrame) -> DataFrame:
    """Return the rows of the first start alone."""
    return dm.select(left, "k", "n")


slow = dm.operator(slow_at(GATE), output=f"place bigint, {ROW}", name="slow", inputs=[both])
totals = dm.aggregate(dm.buffered(slow), keys=["k"], values={"rows": dm.count(), "total": dm.sum("n")}, name="totals")
dm.sink(of_left, dm.DeltaAppend("sources_left"))
dm.sink(slow, dm.DeltaAppend("sources_all"))
dm.sink(totals, dm.DeltaUpsert("sources_totals", keys=["k"]))
