"""Regular expressions, dicts and dataclasses of the module, used on workers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1

WORD = re.compile(r"[a-z]+")
RANKS = {"to": 1, "be": 2}


@dataclass(frozen=True)
class Ranked:
    word: str
    rank: int


def ranked(text: str) -> list[Ranked]:
    return [Ranked(word, RANKS.get(word, 0)) for word in WORD.findall(text)]


@udf("array<struct<word: string, rank: int>>")
def ranks(text):
    return [(each.word, each.rank) for each in ranked(text)]


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def words(lines: DataFrame) -> DataFrame:
    exploded = dm.select(lines, ranks("value").alias("ranks")).selectExpr("_sequence_id", "explode(ranks) as ranked")
    return exploded.select("_sequence_id", "ranked.*")


dm.sink(words, dm.DeltaAppend("words"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"words": [{"word": each.word, "rank": each.rank} for line in LINES for each in ranked(line)]}
