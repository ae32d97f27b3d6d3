"""Word count, the smallest application: how often each word occurs in the files that arrived so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned  # value, source_file, _sequence_id


@dm.functor  # row-wise; the parameter names the upstream operator
def words(lines: DataFrame) -> DataFrame:
    return dm.select(lines, F.explode(F.regexp_extract_all(F.lower("value"), F.lit("[a-z]+"), 0)).alias("word"))


counts = dm.aggregate(words, keys=["word"], values={"count": dm.count()})
dm.sink(counts, dm.DeltaUpsert("word_counts", keys=["word"]))
