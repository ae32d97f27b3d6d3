"""BankAlerts: which card payments go to places that the public is warned of?

Payments are a consistent region: each file is one state, every payment is judged and booked exactly once. Warnings come
from a feed of public posts and are autonomous: no state waits for them and no replay repeats them, so some may be lost.
They come on a control port, which keeps the last warning of each place: a payment is judged by earlier warnings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRANSACTION = "transaction_id bigint, account string, merchant string, place string, amount decimal(12,2), at timestamp"
WARNING = "place string, level int, text string"
ALERT_LEVEL = 2

PlaceWarnings = Annotated["DataFrame", dm.Autonomous, dm.Control(keys=["place"])]


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="bank/transactions", pattern="*.csv", format="csv", schema=TRANSACTION))
def transactions(scanned: DataFrame) -> DataFrame:
    """One row per payment."""
    return scanned


@dm.autonomous
@dm.source(dm.DirectoryScan(path="bank/warnings", pattern="*.jsonl", format="json", schema=WARNING))
def warnings(scanned: DataFrame) -> DataFrame:
    """One row per warning; level 0 cancels the warnings of a place."""
    return scanned.drop("source_file")


@dm.functor
def alerts(transactions: DataFrame, warnings: PlaceWarnings) -> DataFrame:
    """Payments at places with a last warning of level 2 or above when the file was processed."""
    warned = warnings.where(F.col("level") >= ALERT_LEVEL)
    return dm.select(
        transactions.join(warned, "place"),
        "transaction_id",
        "account",
        "merchant",
        "place",
        "amount",
        "at",
        "level",
        "text",
    )


accounts = dm.aggregate(
    transactions,
    keys=["account"],
    values={"payments": dm.count(), "amount": dm.sum("amount"), "last_at": dm.max("at")},
    name="accounts",
)

dm.sink(alerts, dm.DeltaAppend("bank_alerts"))
dm.sink(accounts, dm.DeltaUpsert("bank_accounts", keys=["account"]))
