"""`@pandas_udf("double")` with type hints."""

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
def halved(numbers: pd.Series) -> pd.Series:
    return numbers / 2


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def halves(lines: DataFrame) -> DataFrame:
    return dm.select(lines, halved(length("value")).alias("half"))


dm.sink(halves, dm.DeltaAppend("halves"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"halves": [{"half": len(line) / 2} for line in LINES]}
