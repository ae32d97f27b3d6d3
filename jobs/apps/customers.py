"""Customers: the changes that a database makes to its customers, as Debezium captures them, kept as three tables.

`customers` is the table of the database, `customer_history` what each customer was and when, `customers_by_country` the
sums over the customers that there are now. A file of changes is one state, and all three tables agree on each one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CUSTOMER = "id bigint, name string, country string, credit decimal(12,2)"
CHANGE = ["_op", "_sequence", "_changed_at"]


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="customers", pattern="*.jsonl", format="debezium", schema=CUSTOMER))
def customer_changes(scanned: DataFrame) -> DataFrame:
    """One row per change; a deleted customer has `_op` d."""
    return scanned


customers = dm.apply_changes(
    customer_changes,
    keys=["id"],
    sequence_by="_sequence",
    apply_as_deletes="_op = 'd'",
    except_columns=CHANGE,
    name="customers_now",
)
history = dm.apply_changes(
    customer_changes,
    keys=["id"],
    sequence_by="_sequence",
    apply_as_deletes="_op = 'd'",
    except_columns=CHANGE,
    stored_as_scd_type=2,
    name="customers_over_time",
)
countries = dm.aggregate(
    customers, keys=["country"], values={"customers": dm.count(), "credit": dm.sum("credit")}, name="countries"
)

dm.sink(customers, dm.DeltaUpsert("customers", keys=["id"]))
dm.sink(history, dm.DeltaUpsert("customer_history", keys=["id", "valid_from"]))
dm.sink(countries, dm.DeltaUpsert("customers_by_country", keys=["country"]))
