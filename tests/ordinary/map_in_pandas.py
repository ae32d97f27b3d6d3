"""`mapInPandas` may carry values from batch to batch, so it is run file by file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 2


def numbered(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for rows in batches:
        yield rows[["_sequence_id", "value"]].assign(size=rows["value"].str.len())


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def sizes(lines: DataFrame) -> DataFrame:
    plain = lines.select("_sequence_id", "value")
    return plain.mapInPandas(numbered, "_sequence_id long, value string, size long")


dm.sink(sizes, dm.DeltaAppend("sizes"))


def expected() -> dict[str, list[dict[str, Any]]]:
    return {"sizes": [{"value": line, "size": len(line)} for line in LINES]}
