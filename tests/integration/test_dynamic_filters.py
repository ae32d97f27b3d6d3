"""`dynamic_filter` computes what its control stream brings once: what acts is what is kept (H15)."""

from __future__ import annotations

from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.params import Params
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark


def frames_of(engine: SparkEngine, once: list[Any], **streams: Any) -> OperatorContext:
    def materialise(operator: Any, frame: Any) -> Any:
        once.append(frame.localCheckpoint())
        return once[-1]

    return OperatorContext(
        session=engine.session, params=Params(), first_id=1, last_id=3, scanned_frames={}, streams=streams,
        read_state=lambda operator, partials: (partials, None), read_lookup=lambda operator: None,
        read_statement=lambda name: "", materialise=materialise, small=True,
    )  # fmt: skip


@pytest.mark.parametrize("is_loop", [False, True])
def test_the_control_stream_is_computed_once(engine: SparkEngine, is_loop: bool) -> None:
    """It draws by chance, so a second computation would give other keys."""
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
