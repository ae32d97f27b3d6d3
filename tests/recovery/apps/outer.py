"""The graph of the golden runs with sinks outside Delta, or overwritten: a database, a folder, a table."""

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
    return scanned


@dm.filter
def paid(orders: DataFrame) -> Column:
    return F.col("amount") > 0


customers = dm.aggregate(
    paid, keys=["customer"], values={"orders": dm.count(), "amount": dm.sum("amount")}, name="customers"
)
dm.sink(customers, dm.DatabaseUpsert("shop", "customers", keys=["customer"]))


@dm.functor
def sold(orders: DataFrame) -> DataFrame:
    return dm.select(orders, "customer", "item", "amount")


dm.sink(sold, dm.DatabaseUpsert("shop", "newest", keys=["customer"]))
dm.sink(sold, dm.DatabaseAppend("shop", "sold"))
dm.sink(sold, dm.FileSink("{home}/out"))
dm.sink(sold, dm.DeltaOverwrite("last_file"))
