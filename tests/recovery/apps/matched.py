"""Orders and payments joined by event time, with rows that match none; late rows of both sides."""

from __future__ import annotations

import datetime as dt
from typing import Any

import drainmark as dm

OUTPUTS = {"orders": "*orders.csv", "payments": "*payments.csv"}
SCHEMA = {"orders": "number bigint, at timestamp", "payments": "number bigint, at timestamp"}


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", outputs=OUTPUTS, format="csv", schema=SCHEMA, settle=0))
def landed(scanned: Any) -> Any:
    return scanned


paid = dm.join(
    landed["orders"],
    landed["payments"],
    on=["number"],
    within=(dt.timedelta(0), dt.timedelta(minutes=10)),
    left_time="at",
    right_time="at",
    lateness=120,
    how="full",
    name="paid",
)
dm.sink(paid, dm.DeltaAppend("paid_orders"))
dm.sink(paid["late_left"], dm.DeltaAppend("late_orders"))
dm.sink(paid["late_right"], dm.DeltaAppend("late_payments"))
