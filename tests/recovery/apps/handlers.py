"""Orders numbered by two operators in Python: one blocks while its state is written, the other does not (N19)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

import drainmark as dm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

ORDER = "customer string, item string, amount bigint"


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema=ORDER))
def orders(scanned: DataFrame) -> DataFrame:
    """Return one row for each order."""
    return scanned


@dm.operator(output="place bigint, customer string, item string")
class Numbered(dm.StateHandler):
    """An operator that numbers all orders, and writes its state by itself."""

    def __init__(self) -> None:
        self.place = 0

    def process(self, orders: pa.Table, context: Any) -> pa.Table:
        first, self.place = self.place, self.place + orders.num_rows
        places = pa.array(range(first, self.place), pa.int64())
        return pa.table({"place": places, "customer": orders["customer"], "item": orders["item"]})

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        checkpoint.write(self.place)

    def reset(self, checkpoint: dm.Checkpoint) -> None:
        self.place = checkpoint.read(int)

    def reset_to_initial_state(self) -> None:
        self.place = 0


@dm.operator(output="customer string, place bigint, items bigint", inputs=[Numbered])
@dataclass
class Tastes(dm.StateHandler):
    """An operator that counts the items of each customer; its large state is frozen while it is written."""

    non_blocking: ClassVar[bool] = True

    items: dm.CowDict[str, dict[str, int]] = field(default_factory=dm.CowDict)
    ballast: bytes = b"x" * 200_000

    def process(self, rows: pa.Table, context: Any) -> Iterator[pa.Table]:
        for row in rows.to_pylist():
            mine = self.items.setdefault(row["customer"], {})
            mine[row["item"]] = mine.get(row["item"], 0) + 1
            yield pa.table({"customer": [row["customer"]], "place": [row["place"]], "items": [len(mine)]})


dm.sink(Tastes, dm.DeltaAppend("handled_tastes"))
