"""Golden runs under faults (M1, M2, M4): every fail point, every way to fail, the same sinks as without (issue A §8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from graphs import GRAPHS, SECOND_REGION, SECOND_SINKS
from scene import Scene, frozen

from jobs.failpoints import FailPoint

MakeScene = Callable[[str], Scene]


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_failure_free_run_equals_the_oracle(build: MakeScene, graph: str) -> None:
    scene = build(graph)
    with scene.watched():
        scene.run_well(["scan"], ["run", 4])
    scene.assert_golden()
    assert scene.attempts_at_claims() == [0]
