"""The application to which the examples of the reference add operators: orders of a shop, and their payments."""

import datetime as dt  # noqa: F401 - the examples use these
from dataclasses import dataclass, field  # noqa: F401
from typing import Annotated  # noqa: F401

import pandas as pd  # noqa: F401
import pyarrow as pa  # noqa: F401
from pyspark.sql import DataFrame  # noqa: F401

import drainmark as dm
from drainmark import F  # noqa: F401


@dm.consistent(trigger="operator-driven")
@dm.source(
    dm.DirectoryScan(
        path="inbox",
        format="json",
        outputs={"orders": "orders/*.json", "payments": "payments/*.json"},
        schema={
            "orders": (
                "id bigint, customer string, item string, amount double, at timestamp, note string, attachment binary"
            ),
            "payments": "id bigint, paid double, paid_at timestamp",
        },
    )
)
def shop(scanned):
    return scanned


@dm.functor
def orders(shop__orders):
    return shop__orders.drop("source_file")


@dm.functor
def payments(shop__payments):
    return shop__payments.drop("source_file")


dm.sink(orders, dm.DeltaAppend("order_rows"))
