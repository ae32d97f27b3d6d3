"""`@pandas_udf` that makes one value from each group; a group is a file."""

from __future__ import annotations

from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.functions import length, pandas_udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@pandas_udf("double")
def mean(sizes: pd.Series) -> float:
    return sizes.mean()


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def means(lines: DataFrame) -> DataFrame:
    return lines.groupBy("_sequence_id").agg(mean(length("value")).alias("mean"))


dm.sink(means, dm.DeltaAppend("means"))


def expected() -> dict[str, list[dict[str, Any]]]:
    texts = [text.split("\n") for text in FILES.values()]
    return {"means": [{"mean": sum(map(len, lines)) / len(lines)} for lines in texts]}
