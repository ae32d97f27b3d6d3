"""The orders of `two_regions` with autonomous operators on both sides: notices come in, orders go out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDER = "customer string, item string, amount bigint"
Notices = Annotated["DataFrame", dm.Autonomous, dm.Control(keys=["item"])]


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned: DataFrame) -> DataFrame:
    """Return one row for each order."""
    return scanned


@dm.autonomous
@dm.source(dm.DirectoryScan(path="notices", pattern="*.jsonl", format="json", schema="item string, text string"))
def notices(scanned: DataFrame) -> DataFrame:
    """Return one row for each notice about an item."""
    return scanned.drop("source_file")


@dm.filter
def paid(orders: DataFrame) -> Column:
    return F.col("amount") > 0


@dm.functor
def items(orders: DataFrame, notices: Notices) -> DataFrame:
    """Return one row for each order, with or without a notice: notices may be lost."""
    noted = notices.select(F.upper("item").alias("noted"), "text").dropDuplicates(["noted"])
    upper = orders.withColumn("item", F.upper("item"))
    return dm.select(upper.join(noted, upper["item"] == noted["noted"], "left"), "item", "amount")


@dm.autonomous
@dm.functor
def shipped(orders: DataFrame) -> DataFrame:
    return orders.select("_sequence_id", "customer", "item", "amount")


VALUES = {"orders": dm.count(), "amount": dm.sum("amount")}
dm.sink(dm.aggregate(paid, keys=["customer"], values=VALUES), dm.DeltaUpsert("two_customers", keys=["customer"]))
dm.sink(dm.aggregate(items, keys=["item"], values=VALUES), dm.DeltaAppend("two_item_changes"))
dm.sink(shipped, dm.DeltaAppend("two_shipped"))
