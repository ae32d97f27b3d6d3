"""`applyInPandas` over groups within a file: the id is one of the keys."""

from __future__ import annotations

from typing import Any

import pandas as pd
from pyspark.sql import DataFrame

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


def ranked(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(rank=rows["value"].rank().astype("int64"))


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def ranks(lines: DataFrame) -> DataFrame:
    plain = lines.select("_sequence_id", "value")
    return plain.groupBy("_sequence_id").applyInPandas(ranked, "_sequence_id long, value string, rank long")


dm.sink(ranks, dm.DeltaAppend("ranks"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {
        "ranks": [
            {"value": line, "rank": rank}
            for text in FILES.values()
            for rank, line in enumerate(sorted(text.split("\n")), start=1)
        ]
    }
