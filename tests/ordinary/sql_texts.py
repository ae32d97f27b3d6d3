"""`F.expr`, `selectExpr`, and conditions as texts."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def measured(lines: DataFrame) -> DataFrame:
    named = lines.where("value is not null").withColumn("words", F.expr("size(split(value, ' '))"))
    return named.selectExpr("_sequence_id", "_position", "value", "words * 2 as doubled").filter("doubled > 2")


dm.sink(measured, dm.DeltaAppend("measured"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"measured": [{"value": line, "doubled": 2 * len(line.split())} for line in LINES if len(line.split()) > 1]}
