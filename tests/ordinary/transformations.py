"""`DataFrame.transform` and helpers with arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


def with_length(name: str) -> Callable[[DataFrame], DataFrame]:
    def add(frame: DataFrame) -> DataFrame:
        return frame.withColumn(name, F.length("value"))

    return add


def longer_than(frame: DataFrame, least: int) -> DataFrame:
    return frame.where(F.col("size") > least)


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def long_lines(lines: DataFrame) -> DataFrame:
    found = lines.transform(with_length("size")).transform(longer_than, 4)
    return found.drop("source_file").withColumnRenamed("value", "line")


dm.sink(long_lines, dm.DeltaAppend("long_lines"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"long_lines": [{"line": line, "size": len(line)} for line in LINES if len(line) > 4]}
