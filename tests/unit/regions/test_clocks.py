"""Code that reads the clock is reported (K19), and other code is not."""

# ruff: noqa: DTZ001, DTZ003, DTZ005, DTZ011

from __future__ import annotations

import datetime
import datetime as dt
import subprocess
import sys
import time
from datetime import datetime as moment
from time import time as seconds
from typing import Any

import pandas as pd
import pytest

import drainmark as dm
from drainmark.jobs.graph.application import Application
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.clocks import clock_reads
from drainmark.jobs.regions.explain import as_json, as_text
from drainmark.jobs.regions.plan import compile_application

F = dm.F
LIMIT = 3


def helper() -> float:
    return time.time()


def deeper() -> float:
    return helper()


def innocent(lines: Any) -> Any:
    """Return the lines; now(), current_timestamp and datetime.now() are only in this docstring."""
    later = lines.withColumn("at", F.to_timestamp("at")).where(F.col("current_date") > LIMIT)
    return later.select(dt.datetime(2026, 1, 1).isoformat(), "now", moment.fromisoformat("2026-01-01"), lines.now)


def inside(lines: Any) -> Any:
    import pyspark.sql.functions as F

    return lines.withColumn("at", F.current_timestamp())


def nested(lines: Any) -> Any:
    def each(row: Any) -> Any:
        return [datetime.datetime.utcnow() for _ in row]

    return lines.map(each)


def closed_over() -> Any:
    clock = time

    def reads(lines: Any) -> Any:
        return clock.monotonic()

    return reads


def declared(function: Any) -> Operator:
    with dm.application("app") as declarations:
        dm.functor(function, name="f", inputs=["lines"])
    return declarations.operators[0]


@pytest.mark.seed("K19")
@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda lines: lines.withColumn("at", F.current_timestamp()), ["F.current_timestamp"]),
        (lambda lines: lines.withColumn("at", dm.F.now()), ["F.now"]),
        (lambda lines: lines.where(F.expr("at < now()")), ["now()"]),
        (lambda lines: lines.selectExpr("Current_Timestamp as at"), ["current_timestamp"]),
        (lambda lines: lines.selectExpr("unix_timestamp( ) - 3"), ["unix_timestamp()"]),
        (lambda lines: (time.time(), time.time_ns()), ["time.time", "time.time_ns"]),
        (lambda lines: seconds(), ["seconds"]),
        (lambda lines: dt.datetime.now(dt.UTC).isoformat(), ["datetime.now"]),
        (lambda lines: moment.now(), ["moment.now"]),
        (lambda lines: dt.date.today(), ["date.today"]),
        (lambda lines: pd.Timestamp.now(), ["Timestamp.now"]),
        (lambda lines: deeper(), ["time.time"]),
        (nested, ["datetime.utcnow"]),
        (inside, ["F.current_timestamp"]),
        (closed_over(), ["clock.monotonic"]),
        (innocent, []),
    ],
)
def test_a_function_that_reads_the_clock_is_found(function: Any, found: list[str]) -> None:
    assert list(clock_reads(declared(function))) == found


class Timed(dm.StateHandler):
    def process(self, rows: Any, context: Any) -> Any:
        return [{"at": self._now()}]

    def _now(self) -> float:
        return time.time()


class Threaded(dm.StartHandler):
    def run(self, context: Any) -> None:
        context.submit([{"at": time.time()}])


def whole() -> Application:
    with dm.application("app") as declarations:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.ThreadedStart(handler=Threaded, schema="at double"))
        def ticks(scanned: Any) -> Any:
            return scanned

        dm.split("ticks", outputs={"late": "at < unix_timestamp()", "rest": "true"}, name="parted")
        dm.operator(Timed, output="at double", name="timed", inputs=[dm.buffered("parted__late")])
        dm.sql("recent", inputs=["parted__rest"])
        dm.sink("timed", dm.DeltaAppend("current_date"))
    return dm.build_application(declarations)


@pytest.mark.seed("K19")
def test_expressions_handlers_and_statements_are_looked_at_and_what_replays_is_not() -> None:
    statements = {"recent": "select * from {parted__rest} where at > current_date"}
    found = {each.name: clock_reads(each, statements.__getitem__) for each in whole().operators}
    assert {name: read for name, read in found.items() if read} == {
        "parted": ("unix_timestamp()",),
        "timed": ("time.time",),
        "recent": ("current_date",),
    }


@pytest.mark.seed("K19")
def test_the_graph_reports_what_reads_the_clock() -> None:
    plan = compile_application(whole())
    assert "  - timed reads the clock (time.time)" in as_text(plan)
    told = {each["name"]: each["reads_clock"] for each in as_json(plan)["regions"][0]["operators"]}
    assert told["timed"] == ["time.time"]
    assert told["recent"] == told["ticks"] == []
    assert "recent reads the clock" in as_text(plan, lambda name: "select now()")


def test_looking_for_clocks_loads_no_spark() -> None:
    script = (
        "import sys, drainmark as dm\n"
        "from drainmark.jobs.regions.clocks import clock_reads\n"
        "with dm.application('a') as found: dm.functor(lambda x: dm.F.now(), name='f', inputs=['x'])\n"
        "assert clock_reads(found.operators[0]) == ('F.now',)\n"
        "assert 'pyspark' not in sys.modules and 'dagster' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
