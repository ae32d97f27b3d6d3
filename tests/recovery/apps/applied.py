"""Changes of customers, as their newest rows and as their histories: the states are the histories of the tables."""

from __future__ import annotations

from typing import Any

import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(
    dm.DirectoryScan(
        path="inbox", pattern="*.csv", format="csv", schema="customer string, n bigint, city string, op string"
    )
)
def changes(scanned: Any) -> Any:
    return scanned


given: dict[str, Any] = {"keys": ["customer"], "sequence_by": "n", "apply_as_deletes": "op = 'd'"}
now = dm.apply_changes(changes, **given, except_columns=["op"], name="now")
past = dm.apply_changes(changes, **given, except_columns=["op", "n"], stored_as_scd_type=2, name="past")
dm.sink(now, dm.DeltaUpsert("customers", keys=["customer"]))
dm.sink(past, dm.DeltaUpsert("customer_history", keys=["customer", "valid_from"]))
