"""`spark.udf.register`, and the function's name in SQL."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr, udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@udf("string")
def tail(text):
    return text[-2:]


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def tails(lines: DataFrame) -> DataFrame:
    lines.sparkSession.udf.register("ordinary_tail", tail)
    return dm.select(lines, expr("ordinary_tail(value)").alias("tail"))


dm.sink(tails, dm.DeltaAppend("tails"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"tails": [{"tail": line[-2:]} for line in LINES]}
