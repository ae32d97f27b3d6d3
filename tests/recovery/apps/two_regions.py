"""The graph of the golden runs: one start, two branches, two stateful operators, two sinks; beside it a second region.

Branch one keeps a total per customer in an upsert sink; branch two appends every change of a running total per item,
so a state that is off by one file shows in the sink at once. `payments` shares the application and nothing else (V29).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


ORDER = "customer string, item string, amount bigint"


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned: DataFrame) -> DataFrame:
    """One row an order."""
    return scanned


@dm.filter
def paid(orders: DataFrame) -> Column:
    """Branch one: orders of some worth."""
    return F.col("amount") > 0


customers = dm.aggregate(
    paid, keys=["customer"], values={"orders": dm.count(), "amount": dm.sum("amount")}, name="customers"
)
dm.sink(customers, dm.DeltaUpsert("two_customers", keys=["customer"]))


@dm.functor
def items(orders: DataFrame) -> DataFrame:
    """Branch two: what was ordered."""
    return dm.select(orders, F.upper("item").alias("item"), "amount")


item_totals = dm.aggregate(
    items, keys=["item"], values={"orders": dm.count(), "amount": dm.sum("amount")}, name="item_totals"
)
dm.sink(item_totals, dm.DeltaAppend("two_item_changes"))


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="payments", pattern="*.csv", format="csv", schema="account string, amount bigint"))
def payments(scanned: DataFrame) -> DataFrame:
    """The second region: nothing that happens to the first may touch it."""
    return scanned


accounts = dm.aggregate(payments, keys=["account"], values={"amount": dm.sum("amount")}, name="accounts")
dm.sink(accounts, dm.DeltaUpsert("two_accounts", keys=["account"]))
dm.sink(payments, dm.DeltaAppend("two_payments"))
