"""`applyInPandas` by a key alone sees all rows of its group, so it is run file by file."""

from __future__ import annotations

from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 2


def summed(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"size": [rows["size"].iloc[0]], "lines": [len(rows)]})


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def sums(lines: DataFrame) -> DataFrame:
    sized = lines.select(F.length("value").alias("size"))
    return sized.groupBy("size").applyInPandas(summed, "size int, lines long")


dm.sink(sums, dm.DeltaAppend("sums"))


def expected() -> dict[str, list[dict[str, Any]]]:
    found = []
    for text in FILES.values():
        sizes = [len(line) for line in text.split("\n")]
        found += [{"size": size, "lines": sizes.count(size)} for size in set(sizes)]
    return {"sums": found}
