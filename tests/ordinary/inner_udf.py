"""A function for workers inside of the function that uses it, with its closure."""

from __future__ import annotations

from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import udf

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


def replaced(old: str, new: str, text: str) -> str:
    return text.replace(old, new)


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def changed(lines: DataFrame) -> DataFrame:
    mark = "<>"

    @udf("string")
    def marked(text: str) -> str:
        return mark[0] + text + mark[1]

    dashed = udf(partial(replaced, " ", "-"), "string")
    return dm.select(lines, marked(dashed("value")).alias("line"))


dm.sink(changed, dm.DeltaAppend("changed"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"changed": [{"line": f"<{line.replace(' ', '-')}>"} for line in LINES]}
