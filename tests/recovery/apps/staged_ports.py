"""Consistent and autonomous ports of `test_staged_matrix.py`: notices enter the last of three stages, orders leave
the second (V46, V48).

`staged_graphs` writes `MODE` and `GATE` into a copy for each mode.
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
    """Return one row for each order."""
    return scanned


@dm.autonomous
@dm.source(dm.DirectoryScan(path="notices", pattern="*.jsonl", format="json", schema="item string, text string"))
def notices(scanned: DataFrame) -> DataFrame:
    """Return one row for each notice about an item."""
    return scanned.drop("source_file")


@dm.functor
def taken(orders: DataFrame) -> DataFrame:
    """Return the orders of the first stage, which a sink keeps, too."""
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
    """Return one row for each order, with or without a notice: notices may be lost."""
    noted = notices.select(F.upper("item").alias("noted"), "text").dropDuplicates(["noted"])
    upper = slow.withColumn("item", F.upper("item"))
    return dm.select(upper.join(noted, upper["item"] == noted["noted"], "left"), "item", "amount")


customers = dm.aggregate(paid, keys=["customer"], values=VALUES, name="customers")
item_totals = dm.aggregate(items, keys=["item"], values=VALUES, name="item_totals")
dm.sink(taken, dm.DeltaAppend("ports_taken"))
dm.sink(customers, dm.DeltaUpsert("two_customers", keys=["customer"]))
dm.sink(item_totals, dm.DeltaAppend("two_item_changes"))
dm.sink(shipped, dm.DeltaAppend("ports_shipped"))
