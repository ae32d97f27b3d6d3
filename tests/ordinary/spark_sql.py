"""`spark.sql` inside of a function, with common table expressions and a frame as argument."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def long_words(lines: DataFrame) -> DataFrame:
    return lines.sparkSession.sql(
        """
        with words as (select _sequence_id, _position, explode(split(value, ' ')) as word from {lines}),
             lengths as (select *, length(word) as size from words)
        select * from lengths where size > 2
        """,
        lines=lines,
    )


dm.sink(long_words, dm.DeltaAppend("long_words"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {
        "long_words": [{"word": word, "size": len(word)} for line in LINES for word in line.split() if len(word) > 2]
    }
