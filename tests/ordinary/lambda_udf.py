"""`udf(lambda …)` with a type object, in a module-level name and in a dict."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import udf
from pyspark.sql.types import ArrayType, IntegerType, StringType

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1

vowels = udf(lambda text: sum(letter in "aeiou" for letter in text), IntegerType())
UDFS = {"letters": udf(lambda text: sorted(set(text)), ArrayType(StringType()))}


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def counted(lines: DataFrame) -> DataFrame:
    return dm.select(lines, vowels("value").alias("vowels"), UDFS["letters"]("value").alias("letters"))


dm.sink(counted, dm.DeltaAppend("counted"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {
        "counted": [
            {"vowels": sum(letter in "aeiou" for letter in line), "letters": sorted(set(line))} for line in LINES
        ]
    }
