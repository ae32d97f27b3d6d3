"""`@pandas_udf` over an iterator of series; it prepares a model once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.functions import pandas_udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@pandas_udf("long")
def scored(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    weights = {"o": 3}
    for texts in batches:
        yield texts.map(lambda text: sum(weights.get(letter, 1) for letter in text))


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def scores(lines: DataFrame) -> DataFrame:
    return dm.select(lines, "value", scored("value").alias("score"))


dm.sink(scores, dm.DeltaAppend("scores"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"scores": [{"value": line, "score": sum(3 if letter == "o" else 1 for letter in line)} for line in LINES]}
