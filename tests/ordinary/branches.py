"""Two functions on one source, with a function for workers as condition, and their union."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import lit, udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@udf("boolean")
def is_short(text):
    return len(text) < 5


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def short(lines: DataFrame) -> DataFrame:
    return dm.select(lines.where(is_short("value")), "value", lit("short").alias("kind"))


@dm.functor(inputs=[lines])
def long(rows: DataFrame) -> DataFrame:
    return dm.select(rows.where(~is_short("value")), "value", lit("long").alias("kind"))


kinds = dm.union(short, long, name="kinds")
dm.sink(kinds, dm.DeltaAppend("kinds"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"kinds": [{"value": line, "kind": "short" if len(line) < 5 else "long"} for line in LINES]}
