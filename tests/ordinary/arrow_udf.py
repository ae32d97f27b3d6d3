"""`@arrow_udf`: arrays of Arrow in and out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import arrow_udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@arrow_udf("string")
def upper(texts: pa.Array) -> pa.Array:
    return pc.utf8_upper(texts)


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def uppers(lines: DataFrame) -> DataFrame:
    return dm.select(lines, upper("value").alias("upper"))


dm.sink(uppers, dm.DeltaAppend("uppers"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"uppers": [{"upper": line.upper()} for line in LINES]}
