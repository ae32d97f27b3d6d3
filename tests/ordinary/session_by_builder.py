"""`SparkSession.builder.getOrCreate()` inside of a function is the session of the run."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def known(lines: DataFrame) -> DataFrame:
    spark = SparkSession.builder.appName("mine").config("spark.sql.session.timeZone", "Asia/Tokyo").getOrCreate()
    sizes = spark.createDataFrame([(2, "two"), (3, "three")], "size int, name string")
    words = lines.selectExpr("_sequence_id", "_position", "value", "size(split(value, ' ')) as size")
    return words.join(sizes, "size").select("_sequence_id", "_position", "value", "name")


dm.sink(known, dm.DeltaAppend("known"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"known": [{"value": line, "name": "two"} for line in LINES if len(line.split()) == 2]}
