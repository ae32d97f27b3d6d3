"""The graph of the golden runs: one start, two branches, two stateful operators, two sinks; and a second region.

Branch one keeps a total per customer in an upsert sink; branch two appends every change of a running total per item,
so a state that is off by one file shows in the sink at once. `payments` shares only the application (V29).
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
    """Return one row for each order."""
    return scanned


@dm.filter
def paid(orders: DataFrame) -> Column:
    """Keep the orders of branch one: those with a positive amount."""
    return F.col("amount") > 0


customers = dm.aggregate(
    paid, keys=["customer"], values={"orders": dm.count(), "amount": dm.sum("amount")}, name="customers"
)
dm.sink(customers, dm.DeltaUpsert("two_customers", keys=["customer"]))


@dm.functor
def items(orders: DataFrame) -> DataFrame:
    """Return the items of branch two."""
    return dm.select(orders, F.upper("item").alias("item"), "amount")


item_totals = dm.aggregate(
    items, keys=["item"], values={"orders": dm.count(), "amount": dm.sum("amount")}, name="item_totals"
)
dm.sink(item_totals, dm.DeltaAppend("two_item_changes"))


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="payments", pattern="*.csv", format="csv", schema="account string, amount bigint"))
def payments(scanned: DataFrame) -> DataFrame:
    """Return one row for each payment. No event in the first region may touch this one."""
    return scanned


accounts = dm.aggregate(payments, keys=["account"], values={"amount": dm.sum("amount")}, name="accounts")
dm.sink(accounts, dm.DeltaUpsert("two_accounts", keys=["account"]))
dm.sink(payments, dm.DeltaAppend("two_payments"))
