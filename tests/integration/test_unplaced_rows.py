"""Rows without a position, for example of a union with an aggregate, count in `dm.first` and `dm.last` (E8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import drainmark as dm
from drainmark import F
from drainmark.orchestration.testing.running import Result

pytestmark = [pytest.mark.spark, pytest.mark.seed("E8")]

FILES = {"1.csv": "a,1\na,2\n", "2.csv": "b,7\na,4\n"}


def joined() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="in", format="csv", schema="k string, n bigint"))
    def orders(scanned: Any) -> Any:
        return scanned.drop("source_file")

    totals = dm.aggregate(orders, name="totals", keys=["k"], values={"n": dm.sum("n")})

    @dm.filter
    def some(orders: Any) -> Any:
        return F.col("k") == "a"

    values = {"opening": dm.first("n"), "closing": dm.last("n"), "rows": dm.count()}
    ends = dm.aggregate(dm.union(some, totals, name="both"), name="ends", keys=["k"], values=values)
    dm.sink(ends, dm.DeltaUpsert("ends", keys=["k"]))


@pytest.mark.parametrize(
    ("settings", "size"), [({"small_group_bytes": 0}, 2), pytest.param({}, 1, marks=pytest.mark.slow)], ids=str
)
def test_of_an_id_they_come_before_the_rows_of_the_file(
    run_app: Callable[..., Result], settings: dict[str, Any], size: int
) -> None:
    result = run_app(joined, FILES, max_group=size, settings=settings)
    found = {row["k"]: (row["opening"], row["closing"], row["rows"]) for row in result.sink("ends")}
    assert found == {"a": (3, 4, 5), "b": (7, 7, 1)}
