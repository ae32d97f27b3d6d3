"""The orders in three stages. The second stage numbers the orders of each customer as they come on a partition. It does
not begin a file while the last stage works at another.

`staged_graphs` writes `MODE` and `GATE` into a copy for each mode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from gates import slow_at
from pyspark import TaskContext
from pyspark.sql.types import LongType, StructField, StructType

import drainmark as dm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MODE: dict[str, Any] = {}
GATE = ""

ORDER = "customer string, item string, amount bigint"


@dm.consistent(trigger="operator-driven", group_timeout=900, reset_timeout=900, **MODE)
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned: DataFrame) -> DataFrame:
    """Return one row for each order."""
    return scanned


@dm.functor(inputs=[dm.buffered(orders, keys=["customer"])])
def nth(orders: DataFrame) -> DataFrame:
    """Number the orders of each customer in a file: by the keys of the channel, a partition has all of a customer."""

    def number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if GATE:
            (Path(GATE).parent / f"task-{TaskContext.get().partitionId()}").touch()  # type: ignore[union-attr]
        seen: Counter[str] = Counter()
        for batch in batches:
            numbers = []
            for customer in batch["customer"].to_pylist():
                seen[customer] += 1
                numbers.append(seen[customer])
            yield batch.append_column("nth", pa.array(numbers, pa.int64()))

    rows = dm.select(orders, "customer", "item", "amount")
    return rows.mapInArrow(number, StructType([*rows.schema.fields, StructField("nth", LongType())]))


slow = dm.operator(
    slow_at(GATE), output=f"place bigint, {ORDER}, nth bigint", name="slow", inputs=[dm.buffered(nth, batches=1)]
)
customers = dm.aggregate(slow, keys=["customer"], values={"orders": dm.count(), "amount": dm.sum("amount")})
dm.sink(slow, dm.DeltaAppend("rescaled_taken"))
dm.sink(customers, dm.DeltaUpsert("rescaled_customers", keys=["customer"]))
