"""The benchmark's second job: that of `bench_app`, with the totals by key also written to an upsert sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dm.consistent(trigger="operator-driven")
@dm.source(
    dm.DirectoryScan(
        path="inbox",
        pattern="*.csv",
        format="csv",
        schema="id bigint, k string, amount double, note string",
        settle=0,  # the files are complete
    )
)
def rows(scanned: DataFrame) -> DataFrame:
    """Return one row for each line, unchanged."""
    return scanned.drop("source_file")


@dm.filter
def large(rows: DataFrame) -> Column:
    """Keep the rows above 50, about half of them."""
    return F.col("amount") > 50


totals = dm.aggregate(rows, keys=["k"], values={"n": dm.count(), "total": dm.sum("amount")}, name="totals")

dm.sink(large, dm.DeltaAppend("large_rows"))
dm.sink(totals, dm.DeltaUpsert("totals_by_key", keys=["k"]))
