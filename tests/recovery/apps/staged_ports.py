"""Consistent and autonomous ports of `test_staged_matrix.py`: notices come into the last of three stages, orders go
out of the second (V46, V48).

`MODE` and `GATE` are written by `staged_graphs`, a copy a mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from gates import slow_at

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MODE: dict[str, Any] = {}
GATE = ""

ORDER = "customer string, item string, amount bigint"
VALUES = {"orders": dm.count(), "amount": dm.sum("amount")}
Slow = Annotated["DataFrame", dm.Buffered]
Notices = Annotated["DataFrame", dm.Autonomous, dm.Control(keys=["item"])]


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=3, **MODE)
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned: DataFrame) -> DataFrame:
    """One row an order."""
    return scanned


@dm.autonomous
@dm.source(dm.DirectoryScan(path="notices", pattern="*.jsonl", format="json", schema="item string, text string"))
def notices(scanned: DataFrame) -> DataFrame:
    """One row a notice about an item."""
    return scanned.drop("source_file")


@dm.functor
def taken(orders: DataFrame) -> DataFrame:
    """What leaves the first stage is a table, too."""
    return dm.select(orders, "customer", "item", "amount")


slow = dm.operator(slow_at(GATE), output=f"place bigint, {ORDER}", name="slow", inputs=[dm.buffered(taken)])


@dm.filter
def paid(slow: DataFrame) -> Column:
    return F.col("amount") > 0


@dm.autonomous
@dm.functor
def shipped(slow: DataFrame) -> DataFrame:
    return slow.select("_sequence_id", "customer", "item", "amount")


@dm.functor
def items(slow: Slow, notices: Notices) -> DataFrame:
    """One row an order whatever the notices are: they may be lost."""
    noted = notices.select(F.upper("item").alias("noted"), "text").dropDuplicates(["noted"])
    upper = slow.withColumn("item", F.upper("item"))
    return dm.select(upper.join(noted, upper["item"] == noted["noted"], "left"), "item", "amount")


customers = dm.aggregate(paid, keys=["customer"], values=VALUES, name="customers")
item_totals = dm.aggregate(items, keys=["item"], values=VALUES, name="item_totals")
dm.sink(taken, dm.DeltaAppend("ports_taken"))
dm.sink(customers, dm.DeltaUpsert("two_customers", keys=["customer"]))
dm.sink(item_totals, dm.DeltaAppend("two_item_changes"))
dm.sink(shipped, dm.DeltaAppend("ports_shipped"))
