"""A module beside the application declares the functions for workers."""

from __future__ import annotations

from typing import Any

from ordinary_functions import initial, size
from pyspark.sql import DataFrame

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def initials(lines: DataFrame) -> DataFrame:
    return dm.select(lines, initial("value").alias("initial"), size("value").alias("size"))


dm.sink(initials, dm.DeltaAppend("initials"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"initials": [{"initial": line[0], "size": len(line)} for line in LINES]}
