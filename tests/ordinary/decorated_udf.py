"""A decorator of the author's under `@udf`, and a nondeterministic function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


def forgiving(function: Callable[[str], Any]) -> Callable[[str], Any]:
    @functools.wraps(function)
    def tried(text: str) -> Any:
        try:
            return function(text)
        except ValueError:
            return None

    return tried


@udf("int")
@forgiving
def place(text):
    return text.index("o")


place_again = udf(lambda text: text.find("o"), "int").asNondeterministic()


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def places(lines: DataFrame) -> DataFrame:
    return dm.select(lines, place("value").alias("place"), place_again("value").alias("again"))


dm.sink(places, dm.DeltaAppend("places"))


def expected() -> dict[str, list[dict[str, Any]]]:
    found = [line.find("o") for line in LINES]
    return {"places": [{"place": place if place >= 0 else None, "again": place} for place in found]}
