"""The join that users mean, as the new user of NU1 declared it: orders and payments; payments are read first.

Declared by windows, the join of that time gave 55 and 278 of the 492 pairs, and did not report the others.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import pytest

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.frames.arrow import arrow_of, frame_of
from drainmark.orchestration.testing.running import Result
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.seed("NU1")]

RunApp = Callable[..., Result]
START = dt.datetime(2026, 3, 1, 8, tzinfo=dt.UTC)
ORDERS, UNPAID, BATCH = 500, 8, 100
WITHIN = (dt.timedelta(0), dt.timedelta(hours=1))
SCHEMA = {"orders": "number bigint, at timestamp", "payments": "number bigint, at timestamp, cents decimal(8, 2)"}
TIMES = {"left_time": "at", "right_time": "at"}


def bought() -> tuple[dict[int, dt.datetime], dict[int, dt.datetime]]:
    """Return the time of each order, one every half minute, and of each payment: all except eight, within an hour."""
    chance = random.Random(7)
    ordered = {number: START + dt.timedelta(seconds=30 * number) for number in range(ORDERS)}
    unpaid = chance.sample(sorted(ordered), UNPAID)
    paid = {n: at + dt.timedelta(seconds=chance.randrange(3600)) for n, at in ordered.items() if n not in unpaid}
    return ordered, paid


def files() -> dict[str, str]:
    """Return files of a hundred orders each; each file follows the file of its payments."""
    ordered, paid = bought()
    found = {}
    for begin in range(0, ORDERS, BATCH):
        some = range(begin, begin + BATCH)
        payments = [f"{number},{paid[number]:%Y-%m-%dT%H:%M:%SZ},4.50\n" for number in some if number in paid]
        orders = [f"{number},{ordered[number]:%Y-%m-%dT%H:%M:%SZ}\n" for number in some]
        found |= {f"{begin}-1-payments.csv": "".join(payments), f"{begin}-2-orders.csv": "".join(orders)}
    return found


def landing() -> Any:
    outputs = {"orders": "*orders.csv", "payments": "*payments.csv"}

    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", outputs=outputs, format="csv", schema=SCHEMA))
    def landed(scanned: Any) -> Any:
        return scanned

    return landed


@pytest.mark.parametrize("lateness", [0, pytest.param(3600, marks=pytest.mark.slow)])
def test_every_payment_meets_its_order_or_is_counted_as_late(run_app: RunApp, lateness: int) -> None:
    """With a lateness that covers the order of files, all 492 pairs; without one, unpaired payments are in `late`."""

    def declare() -> None:
        landed = landing()
        met = dm.join(landed["orders"], landed["payments"], on="number", within=WITHIN, **TIMES, lateness=lateness,
                      name="met")  # fmt: skip
        dm.sink(met, dm.DeltaAppend("pairs"))
        dm.sink(met["late_left"], dm.DeltaAppend("late_orders"))
        dm.sink(met["late_right"], dm.DeltaAppend("late_payments"))

    result = run_app(declare, files(), max_group=6)
    ordered, paid = bought()
    late = [row["number"] for row in result.sink("late_payments")]
    pairs = {row["number"]: (row["at"], row["at_right"]) for row in result.sink("pairs")}
    assert pairs == {number: (ordered[number], at) for number, at in paid.items() if number not in late}
    assert len(result.sink("pairs")) + len(late) == 492
    assert result.sink("late_orders") == []
    assert counted(result, "met-left-watermark") == 0
    assert counted(result, "met-right-watermark") == len(late)
    if lateness:
        assert late == []
    else:
        assert 0 < len(late) < 492
        assert set(result.sink("late_payments")[0]) == {"number", "at", "cents", "source_file"}


def counted(result: Result, state: str) -> int:
    """Return how many late rows a state has counted."""
    region = result.region.name
    (table,) = (known.name for known in result.workplace.history(region).tables if known.name.endswith(state))
    return max(row["late_rows"] for row in result.workplace.store(region).table(table).read().to_pylist())


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("no column order_number", {"on": ["order_number"]}),
        ("no column paid_at", {"right_time": "paid_at"}),
        ("`cents` of", {"right_time": "cents"}),
        ("several columns at_right", {"suffixes": ("_right", "_right_")}),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_claimed(
    run_app: RunApp, said: str, arguments: dict[str, Any]
) -> None:
    def declare() -> None:
        landed = landing()
        more = {"on": ["number"], "within": WITHIN, **TIMES, "lateness": 0, **arguments}
        payments = dm.functor(
            lambda payments: payments.withColumn("at_right", payments["at"]), name="payments",
            inputs=[landed["payments"]],
        )  # fmt: skip
        dm.sink(dm.join(landed["orders"], payments, **more, name="met"), dm.DeltaAppend("pairs"))

    with pytest.raises(OperatorFailed) as failed:
        run_app(declare, {"1-orders.csv": "1,2026-03-01T08:00:00Z\n"})
    assert failed.value.operator == "met"
    assert failed.value.location
    assert failed.value.remedy
    assert said in str(failed.value)


@pytest.mark.parametrize("how", ["full", *(pytest.param(how, marks=pytest.mark.slow) for how in ("left", "right"))])
def test_an_outer_join_of_columns_that_cannot_be_null_is_done_in_one_group(run_app: RunApp, how: str) -> None:
    """Rows leave in the same group: Spark keeps a null struct for them, whose members it says cannot be null (N4)."""

    def declare() -> None:
        landed = landing()
        ordered = dm.functor(
            lambda orders: dm.select(orders, "number", "at", F.lit("web").alias("channel")),
            name="ordered",
            inputs=[landed["orders"]],
        )
        paid = dm.functor(
            lambda payments: dm.select(payments, "number", "at", F.lit("card").alias("means")),
            name="paid",
            inputs=[landed["payments"]],
        )
        met = dm.join(ordered, paid, on="number", within=WITHIN, **TIMES, lateness=0, how=how, name="met")
        dm.sink(met, dm.DeltaAppend("pairs"))

    result = run_app(declare, {
        "1-orders.csv": "1,2026-03-01T08:00:00Z\n2,2026-03-01T08:00:00Z\n",
        "2-payments.csv": "1,2026-03-01T08:30:00Z,1\n3,2026-03-01T08:30:00Z,1\n",
        "3-orders.csv": "9,2026-03-01T20:00:00Z\n",
        "4-payments.csv": "9,2026-03-01T20:00:00Z,1\n",
    })  # fmt: skip
    found = {(row["number"], row["channel"], row["means"]) for row in result.sink("pairs")}
    alone = {"left": {(2, "web", None)}, "right": {(3, None, "card")}}
    wanted = {(1, "web", "card"), (9, "web", "card")}
    assert found == wanted.union(*(rows for side, rows in alone.items() if how in (side, "full")))
    assert result.status["split"] is None
    assert len(result.groups) == 1


@pytest.mark.parametrize("has_schema", [True, False])
def test_null_structs_whose_members_cannot_be_null_go_to_spark_and_back(engine: SparkEngine, has_schema: bool) -> None:
    one = "struct('x' as a, array(1) as b, struct('y' as c) as d)"
    columns = (f"if(id = 0, {one}, null) as r", f"array({one}) as l", f"map('k', {one}) as m")
    frame = engine.session.range(2).selectExpr(*columns)
    rows, schema = arrow_of(frame), frame.schema if has_schema else None
    assert arrow_of(frame_of(engine.session, rows, schema)).to_pylist() == rows.to_pylist()
    assert frame_of(engine.session, rows.slice(0, 0), schema).count() == 0
