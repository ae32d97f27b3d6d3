"""Values of a file's rows do not depend on the number of tasks that read them, nor on their order (RT7, RT10)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import drainmark as dm
from drainmark import F
from drainmark.jobs.state.aggregations.aggregation import float_sums, partial_columns, value_of
from drainmark.orchestration.testing.running import Result
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

KEYS = 5
WAYS = (1, 3, 7)


def cancelling(seed: int) -> list[tuple[int, float]]:
    """Return amounts of any size that are cancelled later, and small ones: Spark's own sum of them is noise."""
    chance = random.Random(seed)
    rows = []
    for _ in range(3000):
        key, amount = chance.randrange(KEYS), chance.uniform(-1, 1) * 10.0 ** chance.randrange(-12, 20)
        rows += [(key, amount), (key, -amount), (key, chance.randrange(100) / 100)]
    chance.shuffle(rows)
    return rows


@pytest.mark.seed("RT10")
def test_sums_of_doubles_are_the_same_for_any_order_and_exact(engine: SparkEngine) -> None:
    rows = cancelling(7)
    values = {"total": dm.sum("x"), "mean": dm.mean("x"), "narrow": dm.sum("f"), "whole": dm.sum("k")}
    table = pa.table({"k": [k for k, _ in rows], "x": [x for _, x in rows]})
    frame = engine.session.createDataFrame(table).withColumn("f", F.col("x").cast("float"))
    floats = float_sums(values, frame)
    assert floats == {"total", "_mean_sum", "narrow"}
    found = []
    for parts in WAYS:
        grouped = frame.repartition(parts).groupBy("k")
        states = grouped.agg(*partial_columns(values, floats), value_of("mean", values["mean"], floats).alias("mean"))
        found.append(sorted(map(tuple, states.collect())))
    assert found[0] == found[1] == found[2]
    plain = {row["k"]: row["x"] for row in frame.groupBy("k").agg(F.sum("x").alias("x")).collect()}
    for key in range(KEYS):
        own = [x for k, x in rows if k == key]
        (state,) = (state for state in found[0] if state[0] == key)
        assert math.isclose(state[1], math.fsum(own), rel_tol=1e-14)
        assert math.isclose(state[-1], math.fsum(own) / len(own), rel_tol=1e-14)
    assert any(not math.isclose(plain[k], math.fsum(x for j, x in rows if j == k), rel_tol=1e-9) for k in plain)


@pytest.mark.seed("RT10")
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1e16, *[1.0] * 1000, -1e16], 1000.0),
        ([None, None], None),
        ([None, 0.1, 0.2], 0.1 + 0.2),
        ([math.inf, 1.0], math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, 1.0], math.nan),
        ([5e-324, 5e-324], 1e-323),
        ([1e300, 1.0], 1e300),
        ([-0.0], 0.0),
    ],
)
def test_odd_doubles_are_summed_as_spark_does(engine: SparkEngine, rows: list[Any], expected: Any) -> None:
    frame = engine.session.createDataFrame(pa.table({"x": pa.array(rows, pa.float64())}))
    (state,) = frame.agg(*partial_columns({"total": dm.sum("x")}, {"total"})).collect()
    assert repr(state["total"]) == repr(expected)


@pytest.mark.seed("RT7")
@pytest.mark.parametrize("number", [190, 60_000])
def test_a_number_of_distinct_values_is_the_same_however_sketches_were_merged(engine: SparkEngine, number: int) -> None:
    """Sketches filled at once, filled by several tasks, or merged from several ids give one estimate."""
    value = dm.approx_distinct("v")
    frame = engine.session.range(number).selectExpr("xxhash64(id) as v", "pmod(xxhash64(id), 3) as part")
    finish, part = value.finish, value.parts[""]
    assert finish is not None
    found = {
        frame.repartition(parts).agg(value_of("n", value, ()).alias("n")).collect()[0]["n"] for parts in WAYS
    }  # fmt: skip
    merged = frame.groupBy("part").agg(part.partial().alias("p")).agg(part.merge(F.col("p")).alias("p"))
    found.add(merged.select(finish(F.col("p")).alias("n")).collect()[0]["n"])
    assert len(found) == 1
    assert abs(found.pop() - number) <= 0.05 * number


def amounts() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="k int, x double, v bigint"))
    def rows(scanned: Any) -> Any:
        return scanned

    values = {"total": dm.sum("x"), "mean": dm.mean("x"), "distinct": dm.approx_distinct("v")}
    dm.sink(dm.aggregate(rows, keys=["k"], values=values, name="totals"), dm.DeltaUpsert("totals", keys=["k"]))


@pytest.mark.slow
@pytest.mark.seed("RT7", "RT10")
def test_runs_in_groups_of_any_size_and_after_a_rewind_leave_the_same_values(
    run_app: Callable[..., Result],
) -> None:
    """The amounts cancel as far as sums promise exactness; there are more distinct values than a sketch holds."""
    chance = random.Random(11)
    lines = []
    for _ in range(1500):
        key, amount = chance.randrange(KEYS), chance.uniform(-1, 1) * 10.0 ** chance.randrange(-12, 20)
        lines += [f"{key},{x!r},{chance.randrange(4000)}\n" for x in (amount, -amount, chance.randrange(100) / 100)]
    chance.shuffle(lines)
    files = {f"{number}.csv": "".join(lines[number::3]) for number in range(3)}
    result = run_app(amounts, files, max_group=1)
    found = [result.sink("totals")]
    for to, size in ((1, 2), (0, 3)):
        result.max_group = size
        found.append(result.rewind(to).run().sink("totals"))
    assert [report.triggers for report in result.groups] == [1, 1, 1, 2, 3]
    assert len(found[0]) == KEYS
    assert all(other == found[0] for other in found[1:])
