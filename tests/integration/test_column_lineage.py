"""Which columns of the input a column of a table comes from, by the plans of real operators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from harness import settle

import drainmark as dm
from drainmark import F
from drainmark.jobs.runtime.analysis.column_lineage import Derivation, column_lineage
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.workplace import Workplace, open_application

pytestmark = pytest.mark.spark


@dataclass
class Visits:
    n: int


SAME, MADE, SUMMED = Derivation.IDENTITY, Derivation.TRANSFORMATION, Derivation.AGGREGATION
Told = dict[str, dict[str, Derivation]]


def lineage_of(place: Workplace, folder: Path, declare: Any) -> dict[str, Told]:
    """Return the lineage by table and column: "source.column" -> kind."""
    (folder / "orders").mkdir()
    (folder / "orders" / "1.csv").write_text("ann,tea,1,2.5\n")
    settle(folder / "orders")
    with dm.application("traced") as application:

        @dm.consistent(trigger="operator-driven")
        @dm.source(
            dm.DirectoryScan(
                path=str(folder / "orders"), format="csv", schema="customer string, item string, n int, price double",
                settle=0,
            )
        )  # fmt: skip
        def orders(scanned: Any) -> Any:
            return scanned.drop("source_file")

        declare()
    opened = open_application(dm.build_application(application))
    found = column_lineage(region_run(place, opened, opened.region()).blueprint)
    return {
        table: {
            name: {f"{each.operator}.{each.column}": kind for each, kind in origins.items()}
            for name, origins in columns.items()
        }
        for table, columns in found.items()
    }


def test_columns_are_followed_through_renames_expressions_aggregates_and_python(
    workplace: Workplace, tmp_path: Path
) -> None:
    def declare() -> None:
        @dm.functor
        def priced(orders: Any) -> Any:
            rows = orders.where(F.col("n") > 0).withColumn("amount", F.round(F.col("n") * F.col("price"), 2))
            return dm.select(rows, F.col("customer").alias("who"), "item", "amount", F.lit("a, b").alias("lit"))

        @dm.functor
        def words(priced: Any) -> Any:
            return dm.select(priced, F.explode(F.split("item", " ")).alias("word"), "who")

        totals = dm.aggregate(
            "priced",
            keys=["who"],
            values={"total": dm.sum("amount"), "mean": dm.mean("amount"), "count": dm.count(), "last": dm.last("item")},
        )

        @dm.custom(keys=["who"], state=Visits, output="who string, visits bigint")
        def visits(state: Any, priced: pd.DataFrame) -> Any:
            return state, None

        @dm.functor
        def odd(orders: Any) -> Any:
            return dm.select(orders, "item", F.lit("x AS y#1, z").alias("n"))

        dm.sink(odd, dm.DeltaAppend("odd"))
        dm.sink(words, dm.DeltaAppend("words"))
        dm.sink(priced, dm.DeltaAppend("priced"))
        dm.sink(totals, dm.DeltaUpsert("totals", keys=["who"]))
        dm.sink(visits, dm.DeltaAppend("visits"))

    found = lineage_of(workplace, tmp_path, declare)
    assert found["lake/priced"] == {
        "who": {"orders.customer": SAME},
        "item": {"orders.item": SAME},
        "amount": {"orders.n": MADE, "orders.price": MADE},
        "lit": {},
    }
    assert found["lake/words"] == {"word": {"orders.item": MADE}, "who": {"orders.customer": SAME}}
    amount = {"orders.n": SUMMED, "orders.price": SUMMED}
    assert found["lake/totals"] == {
        "who": {"orders.customer": SAME},
        "total": amount,
        "mean": amount,
        "count": {},
        "last": {"orders.item": SUMMED},
    }
    everything = {f"orders.{name}": MADE for name in ("customer", "item", "n", "price")}
    assert found["lake/odd"] == {"item": everything, "n": everything}, "of a plan that cannot be read they may come"
    assert found["lake/visits"] == {"who": everything, "visits": everything}, "a function in Python may use them all"
    assert set(found) == {"lake/odd", "lake/words", "lake/priced", "lake/totals", "lake/visits"}, "no states"


def test_columns_of_joins_and_unions_come_from_their_own_side(workplace: Workplace, tmp_path: Path) -> None:
    def declare() -> None:
        @dm.functor
        def left(orders: Any) -> Any:
            return dm.select(orders, F.col("customer").alias("text"), F.col("n").alias("count"))

        @dm.functor
        def right(orders: Any) -> Any:
            return dm.select(orders, F.upper("item").alias("text"), F.col("price").cast("int").alias("count"))

        @dm.functor
        def priced(right: Any) -> Any:
            return right.withColumnRenamed("count", "price")

        dm.sink(dm.union(left, right, name="both"), dm.DeltaAppend("both"))
        dm.sink(dm.join(left, priced, on="text", kind="latest", name="paired"), dm.DeltaAppend("paired"))

    found = lineage_of(workplace, tmp_path, declare)
    assert found["lake/both"] == {
        "text": {"orders.customer": SAME, "orders.item": MADE},
        "count": {"orders.n": SAME, "orders.price": MADE},
    }
    assert {name: set(origins) for name, origins in found["lake/paired"].items()} == {
        "text": {"orders.customer", "orders.item"},  # a key is that of either side
        "count": {"orders.n"},
        "price": {"orders.price"},
    }
