"""A loop through a control port: orders of customers with many orders are no longer let through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MANY = 4
ORDER = "customer string, item string, amount bigint"
Banned = Annotated["DataFrame", dm.Control(keys=["customer"], schema="customer string, orders bigint")]


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned: DataFrame) -> DataFrame:
    """Return one row for each order."""
    return scanned


@dm.functor
def allowed(orders: DataFrame, banned: Banned) -> DataFrame:
    """Return one row for each order of a customer who was not banned by earlier files."""
    return dm.select(orders.join(banned.select("customer"), "customer", "left_anti"), "customer", "item", "amount")


by_customer = dm.aggregate(allowed, keys=["customer"], values={"orders": dm.count()}, name="by_customer")


@dm.filter
def banned(by_customer: DataFrame) -> Column:
    return F.col("orders") >= MANY


dm.sink(allowed, dm.DeltaAppend("looped_orders"))
dm.sink(by_customer, dm.DeltaUpsert("looped_customers", keys=["customer"]))
