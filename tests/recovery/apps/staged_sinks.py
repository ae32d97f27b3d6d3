"""Many sinks of `test_staged_matrix.py`, of every kind, in four stages: they are brought up by rows of their own.

`MODE` and `GATE` are written by `staged_graphs`, a copy a mode.
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


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=3, **MODE)
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned: DataFrame) -> DataFrame:
    """One row an order."""
    return scanned


@dm.functor
def taken(orders: DataFrame) -> DataFrame:
    """What the first stage has."""
    return dm.select(orders, "customer", "item", "amount")


slow = dm.operator(slow_at(GATE), output=f"place bigint, {ORDER}", name="slow", inputs=[dm.buffered(taken)])


@dm.filter
def paid(slow: DataFrame) -> Column:
    return F.col("amount") > 0


@dm.functor(inputs=[dm.buffered(slow)])
def late(slow: DataFrame) -> DataFrame:
    """What a third stage has; the files are written by a fourth."""
    return dm.select(slow, "customer", "item", "amount")


customers = dm.aggregate(
    paid, keys=["customer"], values={"orders": dm.count(), "amount": dm.sum("amount")}, name="customers"
)
dm.sink(taken, dm.DatabaseAppend("shop", "sold"))
dm.sink(customers, dm.DatabaseUpsert("shop", "customers", keys=["customer"]))
dm.sink(late, dm.DatabaseUpsert("shop", "newest", keys=["customer"]))
dm.sink(late, dm.DeltaOverwrite("last_file"))
dm.sink(dm.buffered(slow), dm.FileSink("{home}/out"))
