"""The cycle of `test_staged_matrix.py` in three stages: a loop on a control port inside the last stage (V94).

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

MANY = 6
ORDER = "customer string, item string, amount bigint"
Slow = Annotated["DataFrame", dm.Buffered]
Banned = Annotated["DataFrame", dm.Control(keys=["customer"], schema="customer string, orders bigint")]


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=3, **MODE)
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned: DataFrame) -> DataFrame:
    """Return one row for each order."""
    return scanned


@dm.functor
def taken(orders: DataFrame) -> DataFrame:
    """Return the orders of the first stage, which a sink keeps, too."""
    return dm.select(orders, "customer", "item", "amount")


slow = dm.operator(slow_at(GATE), output=f"place bigint, {ORDER}", name="slow", inputs=[dm.buffered(taken)])


@dm.functor
def allowed(slow: Slow, banned: Banned) -> DataFrame:
    """Return one row for each order of a customer who was not banned by earlier files."""
    return dm.select(slow.join(banned.select("customer"), "customer", "left_anti"), "place", "customer", "item")


by_customer = dm.aggregate(allowed, keys=["customer"], values={"orders": dm.count()}, name="by_customer")


@dm.filter
def banned(by_customer: DataFrame) -> Column:
    return F.col("orders") >= MANY


dm.sink(taken, dm.DeltaAppend("cycle_taken"))
dm.sink(allowed, dm.DeltaAppend("cycle_allowed"))
dm.sink(by_customer, dm.DeltaUpsert("cycle_customers", keys=["customer"]))
