"""`dm.Params` in the closure of a function for workers."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


class Settings(dm.Params):
    suffix: str = "?"


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def asked(lines: DataFrame, params: Settings) -> DataFrame:
    suffix = params.suffix
    return dm.select(lines, F.udf(lambda text: text + suffix, "string")("value").alias("asked"))


dm.sink(asked, dm.DeltaAppend("asked"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"asked": [{"asked": line + "?"} for line in LINES]}
