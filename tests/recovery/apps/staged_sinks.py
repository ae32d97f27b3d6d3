"""Sinks of every kind of `test_staged_matrix.py`, in four stages: each stage brings its sinks up with its own rows.

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


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=3, **MODE)
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned: DataFrame) -> DataFrame:
    """Return one row for each order."""
    return scanned


@dm.functor
def taken(orders: DataFrame) -> DataFrame:
    """Return the rows of the first stage."""
    return dm.select(orders, "customer", "item", "amount")


slow = dm.operator(slow_at(GATE), output=f"place bigint, {ORDER}", name="slow", inputs=[dm.buffered(taken)])


@dm.filter
def paid(slow: DataFrame) -> Column:
    return F.col("amount") > 0


@dm.functor(inputs=[dm.buffered(slow)])
def late(slow: DataFrame) -> DataFrame:
    """Return the rows of the third stage; a fourth stage writes the files."""
    return dm.select(slow, "customer", "item", "amount")


customers = dm.aggregate(
    paid, keys=["customer"], values={"orders": dm.count(), "amount": dm.sum("amount")}, name="customers"
)
dm.sink(taken, dm.DatabaseAppend("shop", "sold"))
dm.sink(customers, dm.DatabaseUpsert("shop", "customers", keys=["customer"]))
dm.sink(late, dm.DatabaseUpsert("shop", "newest", keys=["customer"]))
dm.sink(late, dm.DeltaOverwrite("last_file"))
dm.sink(dm.buffered(slow), dm.FileSink("{home}/out"))
