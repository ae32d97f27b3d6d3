"""`@udtf` at the top of the module, in a lateral join; it may remember rows, so it is run file by file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import col, udtf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 2


@udtf(returnType="word: string, place: int")
class Words:
    def eval(self, text: str) -> Iterator[tuple[str, int]]:
        yield from ((word, place) for place, word in enumerate(text.split()))


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def words(lines: DataFrame) -> DataFrame:
    found = lines.lateralJoin(Words(col("value").outer()))
    return dm.select(found, "word", "place")


dm.sink(words, dm.DeltaAppend("words"))


def expected() -> dict[str, list[dict[str, Any]]]:
    words = [(place, word) for line in LINES for place, word in enumerate(line.split())]
    return {"words": [Row(word=word, place=place).asDict() for place, word in words]}
