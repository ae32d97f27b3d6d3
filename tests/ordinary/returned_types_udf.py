"""`@F.udf(returnType=…)` with dates, decimals and booleans."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DateType, DecimalType

import drainmark as dm

FILES = {"1.txt": "to be\nor not", "2.txt": "to\nbee", "3.txt": "question"}
LINES = [line for text in FILES.values() for line in text.split("\n")]
GROUPS = 1


@F.udf(returnType=DateType())
def day(text: str) -> dt.date:
    return dt.date(2024, 1, len(text))


@F.udf(returnType=DecimalType(10, 2))
def price(text: str) -> Decimal:
    return Decimal(len(text) * 25).scaleb(-2)


@F.udf(returnType=BooleanType())
def is_short(text: str) -> bool:
    return len(text) < 5


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


@dm.functor
def typed(lines: DataFrame) -> DataFrame:
    return dm.select(lines, day("value").alias("day"), price("value").alias("price")).where(is_short(F.col("value")))


dm.sink(typed, dm.DeltaAppend("typed"))


def expected() -> dict[str, list[dict[str, Any]]]:
    short = [line for line in LINES if len(line) < 5]
    days = [dt.date(2024, 1, len(line)) for line in short]
    prices = [Decimal(len(line) * 25).scaleb(-2) for line in short]
    return {"typed": [{"day": day, "price": price} for day, price in zip(days, prices, strict=True)]}
