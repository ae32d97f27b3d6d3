"""States that are flushed at every second group and merged soon: totals for an upsert sink, duplicates, Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

import drainmark as dm
from drainmark.jobs.state import keyed_state, runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

keyed_state.MEMORY_STATE_BYTES = 0
keyed_state._IMAGE_CHANGE_FILES = 1
runs._LOWEST = 4
FORGOTTEN = 7
"""The state of a customer whose largest order in a file is this amount is dropped."""


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema="customer string, amount bigint"))
def orders(scanned: DataFrame) -> DataFrame:
    """Return one row for each order."""
    return scanned.drop("source_file")


totals = dm.aggregate(orders, keys=["customer"], values={"n": dm.count(), "total": dm.sum("amount")}, name="totals")
first = dm.deduplicate(orders, keys=["customer", "amount"], name="first")


@dataclass(frozen=True)
class Largest:
    """The largest order of a customer so far."""

    amount: int


@dm.custom(keys=["customer"], state=Largest, output="customer string, amount bigint")
def records(state: Largest | None, orders: pd.DataFrame) -> tuple[Largest | None, pd.DataFrame]:
    """Return the largest order of a file if it is larger than all orders before it."""
    most = int(orders["amount"].max())
    if most == FORGOTTEN:
        return None, orders.head(0)[["customer", "amount"]]
    if state is not None and most <= state.amount:
        return state, orders.head(0)[["customer", "amount"]]
    return Largest(most), pd.DataFrame({"customer": orders["customer"].head(1), "amount": [most]})


dm.sink(totals, dm.DeltaUpsert("totals_by_customer", keys=["customer"]))
dm.sink(first, dm.DeltaAppend("first_orders"))
dm.sink(records, dm.DeltaAppend("record_orders"))
