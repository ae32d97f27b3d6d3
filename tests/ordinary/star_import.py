"""`from pyspark.sql.functions import *`, which hides a dozen of Python's own names."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import *  # noqa: F403

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@udf("string")  # noqa: F405
def turned(text):
    return text[::-1]


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def words(lines: DataFrame) -> DataFrame:
    split_up = explode(split(lower(col("value")), " "))  # noqa: F405
    return dm.select(lines, split_up.alias("word")).withColumn("turned", turned("word"))


dm.sink(words, dm.DeltaAppend("words"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"words": [{"word": word, "turned": word[::-1]} for line in LINES for word in line.split()]}
