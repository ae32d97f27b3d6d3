"""A package beside the application: relative imports, a class, a table of constants."""

from __future__ import annotations

from typing import Any

import ordinary_text.scoring
from ordinary_text import Score
from pyspark.sql import DataFrame
from pyspark.sql.functions import udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@udf("int")
def points(text: str) -> int:
    return ordinary_text.scoring.score(text).points


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def scored(lines: DataFrame) -> DataFrame:
    return dm.select(lines, points("value").alias("points"))


dm.sink(scored, dm.DeltaAppend("scored"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"scored": [{"points": Score(sum(3 if c in "qz" else 1 for c in line)).points} for line in LINES]}
