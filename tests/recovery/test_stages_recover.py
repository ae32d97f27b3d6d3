"""A region of several stages, killed at steps that only it has: no row of a batch in flight is lost or doubled.

`test_golden_matrix.py` has the first passing of each step, for the same graph; `test_staged_matrix.py` has all
topologies.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from graphs import IN_FLIGHT
from scene import Scene
from test_golden_matrix import GROUP, recover
from test_zombies import SHORT_LEASE, woken_in_vain

from drainmark.jobs.failpoints import ChannelPoint
from drainmark.jobs.protocol.records.checkpoint_row import RowKind

pytestmark = pytest.mark.recovery

Midway = Callable[..., Scene]


@pytest.mark.seed("V107", "V109", "V112", "F28", "K23")
@pytest.mark.parametrize("point", list(ChannelPoint), ids=str)
def test_killed_later_at_a_step_of_a_channel(midway: Midway, point: ChannelPoint) -> None:
    scene = midway(IN_FLIGHT)
    with scene.watched():
        scene.run_killed(["run", 1], failpoints=f"{point.value}:kill:3")
    recover(scene)


@pytest.mark.seed("V110", "V111", "F28")
def test_a_run_woken_after_the_take_over_brings_nothing_of_its_channels(midway: Midway) -> None:
    """The run stops after it handed a batch over; another run does all the work; the first wakes and is fenced."""
    scene = midway(IN_FLIGHT)
    zombie = scene.start(["run", 1], failpoints=f"{ChannelPoint.HAND_OVER_AFTER.value}:stop:2", settings=SHORT_LEASE)
    zombie.await_stopped()
    scene.run_well(["sleep", 1.0], ["run", GROUP], settings=SHORT_LEASE)
    scene.assert_golden()
    woken_in_vain(scene, zombie)


def test_what_is_in_flight_is_replayed_after_a_rewind_that_was_killed(midway: Midway) -> None:
    scene = midway(IN_FLIGHT)
    with scene.watched():
        scene.run_killed(["run", GROUP], failpoints="progress.before_commit:kill:1")
        assert scene.history.flow.channels
        first = min(number for number in scene.history.states if number > 2)  # a progress row may have the id 3
        scene.run_killed(["rewind", first], failpoints="rewind_table.before_commit:kill:1")
    recover(scene)
    assert RowKind.PROGRESS in {row.kind for row in scene.checkpoint_rows()}
