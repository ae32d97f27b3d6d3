"""Windows within a file, `when`, and a Column made by a function of the author's."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


def label(number: Column) -> Column:
    return F.when(number == 1, "first").otherwise("later")


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def labels(lines: DataFrame) -> DataFrame:
    over = Window.partitionBy("_sequence_id").orderBy("value")
    return dm.select(lines, "value", label(F.row_number().over(over)).alias("label"))


dm.sink(labels, dm.DeltaAppend("labels"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {
        "labels": [
            {"value": line, "label": "later" if place else "first"}
            for text in FILES.values()
            for place, line in enumerate(sorted(text.split("\n")))
        ]
    }
