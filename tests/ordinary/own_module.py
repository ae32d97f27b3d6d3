"""A function of a module beside the application, and a module that this one imports."""

from __future__ import annotations

from typing import Any

from ordinary_words import stem
from pyspark.sql import DataFrame
from pyspark.sql.functions import udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1

stemmed = udf(stem, "string")


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def stems(lines: DataFrame) -> DataFrame:
    return dm.select(lines, stemmed("value").alias("stem"))


dm.sink(stems, dm.DeltaAppend("stems"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"stems": [{"stem": stem(line)} for line in LINES]}
