"""The orders of `two_regions` in a region with blocking checkpoints: the same graph, run the other way (N13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDER = "customer string, item string, amount bigint"


@dm.consistent(trigger="operator-driven", checkpoints="blocking")
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned: DataFrame) -> DataFrame:
    """Return one row for each order."""
    return scanned


@dm.filter
def paid(orders: DataFrame) -> Column:
    return F.col("amount") > 0


@dm.functor
def items(orders: DataFrame) -> DataFrame:
    return dm.select(orders, F.upper("item").alias("item"), "amount")


VALUES = {"orders": dm.count(), "amount": dm.sum("amount")}
dm.sink(dm.aggregate(paid, keys=["customer"], values=VALUES), dm.DeltaUpsert("two_customers", keys=["customer"]))
dm.sink(dm.aggregate(items, keys=["item"], values=VALUES), dm.DeltaAppend("two_item_changes"))
