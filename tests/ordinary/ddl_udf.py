"""`@udf("int")`: the type is a text that only Spark can read."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@udf("int")
def length(text):
    return len(text)


@udf("struct<first: string, words: array<string>>")
def taken_apart(text):
    return {"first": text[0], "words": text.split()}


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def lengths(lines: DataFrame) -> DataFrame:
    parts = taken_apart("value")
    return dm.select(
        lines, length("value").alias("length"), parts["first"].alias("first"), parts["words"].alias("words")
    )


dm.sink(lengths, dm.DeltaAppend("lengths"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"lengths": [{"length": len(line), "first": line[0], "words": line.split()} for line in LINES]}
