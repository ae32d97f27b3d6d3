"""`from_json` with a schema in DDL, and higher-order functions."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import drainmark as dm

FILES = {
    "1.txt": '{"customer": "ann", "items": [{"name": "tea", "price": 1.5}]}',
    "2.txt": '{"customer": "bob", "items": []}',
}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def orders(lines: DataFrame) -> DataFrame:
    order = F.from_json("value", "customer string, items array<struct<name: string, price: double>>")
    prices = F.transform(order["items"], lambda item: item["price"])
    total = F.aggregate(prices, F.lit(0.0), lambda sum_, price: sum_ + price)
    return dm.select(lines, order["customer"].alias("customer"), total.alias("total"))


dm.sink(orders, dm.DeltaAppend("orders"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {
        "orders": [
            {"customer": order["customer"], "total": sum((item["price"] for item in order["items"]), 0.0)}
            for order in map(json.loads, LINES)
        ]
    }
