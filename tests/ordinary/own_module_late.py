"""A function that imports a module of the author's when it runs on a worker."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@udf("string")
def stemmed(text):
    from ordinary_words import stem

    return stem(text)


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def stems(lines: DataFrame) -> DataFrame:
    return dm.select(lines, stemmed("value").alias("stem"))


dm.sink(stems, dm.DeltaAppend("stems"))


def expected() -> dict[str, list[dict[str, Any]]]:
    from ordinary_words import stem

    return {"stems": [{"stem": stem(line)} for line in LINES]}
