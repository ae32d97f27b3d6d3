"""Partitioned and sorted sinks: all rows, and the last order of each customer, who may move to another city."""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema="customer string, city string, n int"))
def orders(scanned: DataFrame) -> DataFrame:
    """Return one row for each order."""
    return scanned.drop("source_file")


dm.sink(orders, dm.DeltaAppend("orders_by_city", partition_by=["city"], cluster_by=["n"]))
dm.sink(
    orders, dm.DeltaUpsert("newest_orders", keys=["customer"], partition_by=["city"], cluster_by=["n"]), name="last"
)
