"""The orders of `two_regions` in three stages: orders before the branch of the customers are in flight (F1, K23).

The branch of the items stays with the start, so each state has its own rows beside those of stages that catch up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDER = "customer string, item string, amount bigint"


@dm.consistent(trigger="operator-driven", alignment="unaligned")
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned: DataFrame) -> DataFrame:
    """Return one row for each order."""
    return scanned


@dm.filter(inputs=[dm.buffered(orders)])
def paid(orders: DataFrame) -> Column:
    return F.col("amount") > 0


@dm.functor
def items(orders: DataFrame) -> DataFrame:
    return dm.select(orders, F.upper("item").alias("item"), "amount")


VALUES = {"orders": dm.count(), "amount": dm.sum("amount")}
customers = dm.aggregate(dm.buffered(paid, batches=2), keys=["customer"], values=VALUES)
dm.sink(customers, dm.DeltaUpsert("two_customers", keys=["customer"]))
dm.sink(dm.aggregate(items, keys=["item"], values=VALUES), dm.DeltaAppend("two_item_changes"))
