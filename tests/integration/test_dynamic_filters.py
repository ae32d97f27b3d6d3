"""`dynamic_filter` computes its control stream once: the rows that it applies are the rows that it keeps (H15)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.params import Params
from drainmark.jobs.lazy import F
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark


def frames_of(engine: SparkEngine, once: list[Any], **streams: Any) -> OperatorContext:
    def materialise(operator: Any, frame: Any) -> Any:
        once.append(frame.localCheckpoint())
        return once[-1]

    return OperatorContext(
        session=engine.session, params=Params(), first_id=1, last_id=3, scanned_frames={}, streams=streams,
        read_state=lambda operator, partials: (partials, None), read_lookup=lambda operator: None,
        read_statement=lambda name: "", materialise=materialise, few=lambda operator: True,
    )  # fmt: skip


@pytest.mark.parametrize("is_loop", [False, True])
def test_the_control_stream_is_computed_once(engine: SparkEngine, is_loop: bool) -> None:
    """The control stream has random keys, so a second computation would give others."""
    with dm.application("filtered"):
        operator = dm.dynamic_filter("rows", "named", on=["user"]).operator
    rows = engine.session.createDataFrame([("ann", 1), ("bob", 1), ("ann", 3)], f"user string, {SEQUENCE_ID} bigint")
    named = rows.selectExpr("if(rand() < 0.5, user, uuid()) as user", SEQUENCE_ID)
    once: list[Any] = []
    frames = frames_of(engine, once, rows=rows, **({} if is_loop else {"named": named}))
    result = operator.step(frames)
    frames.streams["named"] = named
    changes = {**result.changes, **operator.absorb(frames)}
    assert set(changes) == {"let-through"}
    assert len(once) == (0 if is_loop else 1)
    assert is_loop or changes["let-through"] is once[0]
    assert result.output is not None
    through = {row["user"] for row in changes["let-through"].where(f"{SEQUENCE_ID} < 3").collect()}
    if not is_loop:
        passed = [row["user"] for row in result.output.collect()]
        assert passed == (["ann"] if "ann" in through else [])


def test_rows_whose_keys_are_looked_up_are_computed_once(engine: SparkEngine) -> None:
    """A function draws the keys. All are let through; with keys drawn a second time, no row would be."""
    with dm.application("filtered"):
        operator = dm.dynamic_filter("rows", "named", on=["user"]).operator
    drawn = F.udf(lambda: uuid.uuid4().hex).asNondeterministic()
    rows = engine.session.range(3).select(drawn().alias("user"), F.lit(3).cast("bigint").alias(SEQUENCE_ID))
    frames = frames_of(engine, [], rows=rows, named=rows.where("false"))
    frames.looks_up = lambda operator, part: True
    frames.read_kept = lambda operator, part, changed, due, fit: changed.localCheckpoint()
    result = operator.step(frames)
    assert result.output is not None
    assert result.output.count() == 3


def test_a_control_stream_without_the_column_is_named(engine: SparkEngine) -> None:
    with dm.application("filtered"):
        operator = dm.dynamic_filter("rows", "named", on=["user"]).operator
    rows = engine.session.createDataFrame([("ann", 1)], f"user string, {SEQUENCE_ID} bigint")
    frames = frames_of(engine, [], rows=rows, named=rows.withColumnRenamed("user", "name"))
    frames.looks_up = lambda operator, part: True
    with pytest.raises(OperatorFailed, match="'named' has no column user"):
        operator.step(frames)
