"""Sinks outside Delta under faults: killed around each commit, stopped and woken after a rewind (V124, X5, H4, H25).

A group of two files commits to the state, to four histories, and then to the sinks: five commits from the sixth on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scene import Scene
from test_zombies import SHORT_LEASE, woken_in_vain

Midway = Callable[..., Scene]

VISIBLE = (6, 7, 8, 9, 10)
RECOVERY = pytest.mark.recovery


def some(*default: int) -> list[object]:
    """Return the visible commits of a group; those that are not named run only in the whole recovery run."""
    return [number if number in default else pytest.param(number, marks=RECOVERY) for number in VISIBLE]


@pytest.mark.parametrize("commit", some(8))
@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=RECOVERY)])
def test_a_group_killed_at_any_commit_is_published_once(midway: Midway, commit: int, moment: str) -> None:
    scene = midway("outer")
    with scene.watched():
        scene.run_killed(["run", 2], failpoints=f"publish.{moment}_commit:kill:{commit}")
    scene.run_well(["own"])
    scene.assert_sinks(scene.files[:4])
    scene.run_well(["run", 2])
    scene.assert_golden()


@pytest.mark.parametrize("commit", [pytest.param(number, marks=RECOVERY) for number in range(1, 6)])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_rewind_killed_at_any_commit_is_finished_by_whoever_comes_next(
    midway: Midway, commit: int, moment: str
) -> None:
    scene = midway("outer", 5)
    scene.run_killed(["rewind", 3], failpoints=f"rewind_table.{moment}_commit:kill:{commit}")
    scene.run_well(["own"])
    scene.assert_sinks(scene.files[:3])
    scene.run_well(["run"])
    scene.assert_golden()


@pytest.mark.parametrize("commit", some())
def test_a_publisher_woken_after_a_rewind_brings_nothing_back(midway: Midway, commit: int) -> None:
    """The successor rolled the group of the publisher forward, and then withdrew it."""
    scene = midway("outer")
    zombie = scene.start(["run", 3], failpoints=f"publish.before_commit:stop:{commit}", settings=SHORT_LEASE)
    zombie.await_stopped()
    scene.run_well(["sleep", 1.0], ["rewind", 2], settings=SHORT_LEASE)
    scene.assert_sinks(scene.files[:2])
    woken_in_vain(scene, zombie)
    scene.run_well(["run"])
    scene.assert_golden()


@pytest.mark.parametrize("commit", [pytest.param(number, marks=RECOVERY) for number in range(1, 6)])
def test_a_rewind_woken_after_the_take_over_changes_nothing(midway: Midway, commit: int) -> None:
    scene = midway("outer", 5)
    point = f"rewind_table.before_commit:stop:{commit}"
    zombie = scene.start(["rewind", 3], failpoints=point, settings=SHORT_LEASE)
    zombie.await_stopped()
    scene.run_well(["sleep", 1.0], ["own"], settings=SHORT_LEASE)
    scene.assert_sinks(scene.files[:3])
    scene.run_well(["run"])
    scene.assert_golden()
    woken_in_vain(scene, zombie)
