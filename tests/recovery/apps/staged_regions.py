"""Two regions of `test_staged_matrix.py`, both in stages: they share only the application (V29).

`staged_graphs` writes `MODE` and `GATE` into a copy for each mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gates import slow_at

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MODE: dict[str, Any] = {}
GATE = ""

ORDER = "customer string, item string, amount bigint"
VALUES = {"orders": dm.count(), "amount": dm.sum("amount")}


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
def items(slow: DataFrame) -> DataFrame:
    return dm.select(slow, F.upper("item").alias("item"), "amount")


@dm.filter(inputs=[dm.buffered(slow)])
def paid(slow: DataFrame) -> Column:
    return F.col("amount") > 0


item_totals = dm.aggregate(items, keys=["item"], values=VALUES, name="item_totals")
customers = dm.aggregate(paid, keys=["customer"], values=VALUES, name="customers")
dm.sink(taken, dm.DeltaAppend("regions_taken"))
dm.sink(item_totals, dm.DeltaAppend("two_item_changes"))
dm.sink(customers, dm.DeltaUpsert("two_customers", keys=["customer"]))


@dm.consistent(trigger="operator-driven", **MODE)
@dm.source(dm.DirectoryScan(path="payments", pattern="*.csv", format="csv", schema="account string, amount bigint"))
def payments(scanned: DataFrame) -> DataFrame:
    """Return one row for each payment. No event in the first region may touch this one."""
    return scanned


accounts = dm.aggregate(dm.buffered(payments), keys=["account"], values={"amount": dm.sum("amount")}, name="accounts")
dm.sink(accounts, dm.DeltaUpsert("regions_accounts", keys=["account"]))
dm.sink(payments, dm.DeltaAppend("regions_payments"))
