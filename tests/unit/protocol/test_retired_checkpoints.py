"""The checkpoints of handlers that no rewind and no reset needs any more (V163, E17)."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_rows import group

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.stage_flow import Flow, InFlight
from drainmark.jobs.runtime.hosting.hosted_parts import Hosted

IN_FLIGHT = InFlight(first_id=6, last_id=20, files=(), rows=3, bytes=9)


@pytest.mark.seed("V163", "E17")
@pytest.mark.parametrize(("flow", "retired"), [
    (Flow(), 9),
    (Flow(through={"late": 5}, channels={"link": (IN_FLIGHT,)}, operators={"late": ("sums",)}), 4),
])  # fmt: skip
def test_a_stage_that_is_behind_the_horizon_keeps_the_checkpoint_of_its_own_id(flow: Flow, retired: int) -> None:
    rows = [row for number in range(1, 21) for row in group(number, [number])]
    history = dataclasses.replace(RegionHistory.from_rows(rows), flow=flow)
    told: list[int] = []
    host: Any = SimpleNamespace(retire=told.append)
    Hosted(handlers={"sums": host}).retire(history, 10, None)
    assert told == [retired]
