"""Percentiles, deviations and bounded lists against plain Python, in any order of rows and any grouping (NU8, RT7)."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Window

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import UsageError
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.state.aggregations.aggregation import float_sums, value_of, value_over
from drainmark.orchestration.testing import assert_aggregation_laws
from drainmark.orchestration.testing.running import Result
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.seed("NU8")]

KEYS = 4
ERROR = 0.01
SHARES = (0, 0.05, 0.5, 0.9, 1)
Row = tuple[int, float | None, str | None]


def values() -> dict[str, dm.Aggregation]:
    return {
        "percentiles": dm.percentile("x", SHARES, error=ERROR),
        "variance": dm.variance("x"),
        "stddev": dm.stddev("x"),
        "listed": dm.collect_list("name", limit=5),
        "most": dm.top("name", 3, by="x"),
        "least": dm.bottom("x", 3),
    }


def rows_of(seed: int, number: int = 600) -> list[Row]:
    """Return values of all sizes and signs, equal ones, zeros, nulls; the last key has large ones, close together."""
    chance = random.Random(seed)
    found: list[Row] = []
    for _ in range(number):
        key = chance.randrange(KEYS)
        wide = chance.choice([None, 0.0, -1.5, chance.uniform(-1, 1) * 10.0 ** chance.randrange(-9, 9)])
        close = 1e9 + chance.uniform(0, 1)
        found.append((key, close if key == KEYS - 1 else wide, chance.choice([None, f"n{chance.randrange(1000)}"])))
    return found


def told(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the values of one key, computed in plain Python."""
    known = [(x, place, name) for place, (_, x, name) in enumerate(rows) if x is not None]
    numbers = sorted(x for x, _, _ in known)
    spread = float(statistics.variance(map(Fraction, numbers)))
    ranks = [max(math.ceil(Decimal(str(share)) * len(numbers)), 1) for share in SHARES]
    return {
        "percentiles": [numbers[rank - 1] for rank in ranks],
        "variance": spread,
        "stddev": math.sqrt(spread),
        "listed": [name for _, _, name in rows if name is not None][:5],
        "most": [name for _, _, name in sorted(known, key=lambda row: row[:2], reverse=True)[:3]],
        "least": numbers[:3],
    }


def assert_told(found: Any, rows: Sequence[Row], *, close: float = 1e-12) -> None:
    wanted = {name: value for name, value in told(rows).items() if name in found}
    for got, right in zip(found["percentiles"], wanted.pop("percentiles"), strict=True):
        assert math.isclose(got, right, rel_tol=ERROR * 1.000001, abs_tol=0.0), (got, right)
    for name in {"variance", "stddev"} & wanted.keys():
        assert math.isclose(found[name], wanted.pop(name), rel_tol=close), name
    assert {name: found[name] for name in wanted} == wanted


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Return a table of rows of one trigger, each with its position."""
    return pa.table(
        {
            "k": pa.array([row[0] for row in rows], pa.int64()),
            "x": pa.array([row[1] for row in rows], pa.float64()),
            "name": pa.array([row[2] for row in rows], pa.string()),
            SEQUENCE_ID: pa.array([1] * len(rows), pa.int64()),
            POSITION: [{"block": 0, "row": row} for row in range(len(rows))],
        }
    )


@pytest.mark.seed("RT7")
def test_they_are_those_of_plain_python_however_tasks_share_the_rows(engine: SparkEngine) -> None:
    rows = rows_of(3)
    frame = engine.session.createDataFrame(table_of(rows))
    floats = float_sums(values(), frame)
    assert not floats, "what is kept adds up without rounding"
    finished = [value_of(name, value, floats).alias(name) for name, value in values().items()]
    found = []
    for parts in (1, 3, 7):
        shared = frame.repartition(parts, F.xxhash64("x", POSITION, F.lit(parts))).groupBy("k")
        found.append({row["k"]: row.asDict(recursive=True) for row in shared.agg(*finished).collect()})
    for key in range(KEYS):
        assert_told(found[0][key], [row for row in rows if row[0] == key])
    assert found[0] == found[1] == found[2]


def test_they_are_those_of_plain_python_over_the_last_rows_of_a_key(engine: SparkEngine) -> None:
    """Windows of rows compute each value by aggregate functions over one of Spark's windows."""
    rows, last = rows_of(9, 200), 20
    frame = engine.session.createDataFrame(table_of(rows))
    over = Window.partitionBy("k").orderBy(POSITION).rowsBetween(1 - last, 0)
    found = frame.select("k", POSITION, *(value_over(value, over).alias(name) for name, value in values().items()))
    newest = found.groupBy("k").agg(F.max_by(F.struct("*"), POSITION).alias("row")).select("row.*").collect()
    assert len(newest) == KEYS
    for row in newest:
        assert_told(row, [each for each in rows if each[0] == row["k"]][-last:])


DEAR = ("variance", "least")
"""Not in the default run, which has similar ones: the deviation, and the largest."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in DEAR else ()) for name in sorted(values())]
)
def test_no_split_into_triggers_shows(engine: SparkEngine, name: str) -> None:
    rows = [{"x": x, "name": text} for _, x, text in rows_of(5, 24)]
    assert_aggregation_laws(values()[name], rows, schema="x double, name string", engine=engine)


ODD: list[tuple[list[Any], float | None]] = [
    ([None], None),
    ([3.5], None),
    ([0.1] * 1000, 0.0),
    ([1.5, 2.5, None], 0.5),
    ([1e15, 1e15 + 100], 5000.0),
    ([1e80, 3e80], 2e160),
    ([1e-160, 3e-160], 2e-320),
    ([math.nan, 1.0], math.nan),
    ([math.inf, 1.0], math.nan),
]


@pytest.fixture(scope="module")
def odd_variances(engine: SparkEngine) -> dict[int, float | None]:
    """Return the variance of the numbers of each of `ODD`, by one job in which each is a key."""
    rows = [(case, number) for case, (numbers, _) in enumerate(ODD) for number in numbers]
    frame = engine.session.createDataFrame(
        pa.table({"k": [case for case, _ in rows], "x": pa.array([number for _, number in rows], pa.float64())})
    )
    found = frame.groupBy("k").agg(value_of("v", dm.variance("x"), ()).alias("v")).collect()
    return {row["k"]: row["v"] for row in found}


@pytest.mark.parametrize("case", range(len(ODD)), ids=lambda case: f"{ODD[case][0][:3]}")
def test_variances_of_odd_numbers(odd_variances: dict[int, float | None], case: int) -> None:
    variance = ODD[case][1]
    if variance is None:
        assert odd_variances[case] is None
    else:
        assert odd_variances[case] == pytest.approx(variance, rel=1e-12, abs=0.0, nan_ok=True)


def test_the_variance_of_no_rows_is_null(engine: SparkEngine) -> None:
    frame = engine.session.createDataFrame(pa.table({"x": pa.array([], pa.float64())}))
    (found,) = frame.agg(value_of("v", dm.variance("x"), ()).alias("v")).collect()
    assert found["v"] is None


def test_percentiles_of_odd_numbers(engine: SparkEngine) -> None:
    """Infinities and NaN have their place, columns of integers need not be doubles, and no values give null."""
    odd = [math.nan, math.inf, -math.inf, 1.7e308, -1e-300, 0.0, -0.0, None]
    frame = engine.session.createDataFrame(pa.table({"x": pa.array(odd, pa.float64()), "n": pa.array(range(8))}))
    shares = tuple((number - 0.5) / 7 for number in range(1, 8))
    (found,) = frame.agg(
        value_of("x", dm.percentile("x", shares), ()).alias("x"),
        value_of("n", dm.percentile("n", 0.5), ()).alias("n"),
    ).collect()
    assert found["x"][:1] == [-math.inf]
    assert found["x"][1:6] == pytest.approx([-1e-300, 0.0, 0.0, 1.7e308, math.inf], rel=ERROR)
    assert math.isnan(found["x"][6])
    assert found["n"] == pytest.approx(3, rel=ERROR)
    (empty,) = frame.where("x is null").agg(value_of("x", dm.percentile("x", 0.5), ()).alias("x")).collect()
    assert empty["x"] is None


@pytest.mark.parametrize(
    "declare",
    [
        lambda: dm.percentile("x", 95),
        lambda: dm.percentile("x", ()),
        lambda: dm.percentile("x", 0.5, error=0.001),
        lambda: dm.top("x", 0),
        lambda: dm.bottom("x", 100_001),
        lambda: dm.collect_list("x", limit=0),
    ],
)
def test_what_is_out_of_bounds_is_refused(declare: Callable[[], Any]) -> None:
    with pytest.raises(UsageError):
        declare()


def measured() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="k int, x double, name string"))
    def rows(scanned: Any) -> Any:
        return scanned

    some = {name: value for name, value in values().items() if name not in DEAR}
    found = dm.aggregate(rows, keys=["k"], values=some, name="measured")
    dm.sink(found, dm.DeltaUpsert("measured", keys=["k"]))


def test_runs_in_groups_of_any_size_and_after_a_rewind_leave_the_same_values(run_app: Callable[..., Result]) -> None:
    rows = rows_of(11, 240)
    lines = [f"{key},{'' if x is None else repr(x)},{'' if name is None else name}\n" for key, x, name in rows]
    files = {f"{number}.csv": "".join(lines[number * 80 : number * 80 + 80]) for number in range(3)}
    result = run_app(measured, files, max_group=2)
    found = [result.sink("measured")]
    found.append(result.rewind(1).run().sink("measured"))
    assert [report.triggers for report in result.groups] == [2, 1, 2]
    assert found[0] == found[1]
    assert len(found[0]) == KEYS
    for row in found[0]:
        assert_told(row, [each for each in rows if each[0] == row["k"]])
