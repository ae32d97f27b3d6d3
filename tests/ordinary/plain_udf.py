"""`@udf` at the top of the module, types by hints alone."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@udf
def shouted(text: str) -> str:
    return text.upper() + "!"


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def shouts(lines: DataFrame) -> DataFrame:
    return dm.select(lines, shouted(col("value")).alias("shout"))


dm.sink(shouts, dm.DeltaAppend("shouts"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"shouts": [{"shout": line.upper() + "!"} for line in LINES]}
