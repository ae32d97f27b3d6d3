"""An aggregate over the values of a function for workers, with an upsert sink."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import explode, split, udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@udf("string")
def initial(word):
    return word[0]


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def words(lines: DataFrame) -> DataFrame:
    return dm.select(lines, explode(split("value", " ")).alias("word")).withColumn("initial", initial("word"))


initials = dm.aggregate(words, keys=["initial"], values={"words": dm.count()})
dm.sink(initials, dm.DeltaUpsert("initials", keys=["initial"]))


def expected() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, int] = {}
    for word in (word for line in LINES for word in line.split()):
        found[word[0]] = found.get(word[0], 0) + 1
    return {"initials": [{"initial": letter, "words": words} for letter, words in found.items()]}
