"""Graphs as the paper's table 1 counts them (V181)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.graph.application import load_application
from drainmark.jobs.regions.plan import compile_application

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from bench_applications import COLUMNS, PAPER, Shape


@pytest.mark.seed("V181")
def test_operators_stages_readers_and_the_longest_way_are_counted() -> None:
    with dm.application("counted") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", format="text"))
        def read(scanned: Any) -> Any:
            return scanned

        some = [dm.filter(lambda read: read.value, name=f"f{place}", inputs=[read]) for place in range(3)]
        joined = dm.union(*some, name="u")
        last = dm.filter(lambda u: u.value, name="last", inputs=[dm.buffered(joined)])
        dm.sink(last, dm.DeltaAppend("out"))
    shape = Shape.of(compile_application(dm.build_application(declared)))
    assert shape == Shape(operators=7, stages=2, fan_out=3, path=5)
    assert all(len(row) == len(COLUMNS) for row in PAPER.values())


@pytest.mark.seed("V177", "V181")
def test_an_application_is_as_large_as_log_watch_of_the_paper() -> None:
    """There are regions of both kinds, stages, a lookup, a handler and joins."""
    plan = compile_application(load_application("host_watch"))
    operators, _, fan_out, path, *_ = PAPER["host_watch"]
    shape = Shape.of(plan)
    assert shape.operators >= operators
    assert shape.path >= path
    assert (shape.stages, shape.fan_out) == (4, fan_out - 1)
    kinds = {operator.kind for operator in plan.application.operators}
    assert kinds >= {"lookup", "handler", "join", "interval join", "custom", "split", "union"}
    triggers = {operator.consistent.trigger for operator in plan.application.operators if operator.consistent}
    assert triggers == {"operator-driven", "periodic"}
