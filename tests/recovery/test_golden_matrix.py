"""Golden runs under faults (M1, M2, M4): every fail point, every way to fail, the same sinks as without (issue A §8).

The matrix is made from `FailPoint`: a new point brings its tests with it, and one that no run passes fails them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from graphs import GRAPHS, IN_FLIGHT, SECOND_REGION, SECOND_SINKS, SURROUNDED
from scene import Scene, frozen

from jobs.failpoints import OF_AUTONOMOUS, OF_STAGES, FailPoint
from orchestration.testing.matrix import actions, is_of_compaction, is_of_rewind, is_of_slices, passings

Midway = Callable[..., Scene]

BEGUN = 2
GROUP = 2
REWIND_TO = 3  # inside a group of five
ALL = 5

_AFTER_CHECKPOINT = ("publish.", "resume.")
_AFTER_GROUPS = ("release.", "note.", "compact.")


def points_of(graph: str) -> tuple[FailPoint, ...]:
    """Return the points that a run of the graph passes; for those of slices see `test_source_matrix.py`."""
    points = (point for point in FailPoint if not is_of_slices(point))
    return tuple(point for point in points if only_of(point) in (None, graph))


def only_of(point: FailPoint) -> str | None:
    """Return the one graph that passes a point, None where all do."""
    if point in OF_AUTONOMOUS:
        return SURROUNDED
    return IN_FLIGHT if point in OF_STAGES else None


def group_of(graph: str) -> int:
    """Return how many files a group has: what reads a control port sees one at a time."""
    return 1 if graph == SURROUNDED else GROUP


def durable(point: FailPoint, graph: str) -> int:
    """Return how many files are committed when a process dies at the point, in its first group or its rewind."""
    if is_of_rewind(point):
        return ALL if point is FailPoint.REWIND_BEFORE else REWIND_TO
    if point.value.startswith(_AFTER_GROUPS) or point in OF_STAGES:
        return ALL
    if point is FailPoint.CHECKPOINT_AFTER or point.value.startswith(_AFTER_CHECKPOINT):
        return BEGUN + group_of(graph)
    return BEGUN


def steps(point: FailPoint) -> list[list[Any]]:
    """Return what the child does that passes the point."""
    if is_of_rewind(point):
        return [["rewind", REWIND_TO]]
    return [["run", 1], ["compact"]] if is_of_compaction(point) else [["run", GROUP]]


def matrix() -> Iterator[Any]:
    """Yield (graph, point, action); the sample of the default run is not marked `recovery`."""
    for graph in GRAPHS:
        for point in points_of(graph):
            for action in actions(point):
                in_sample = graph == (only_of(point) or "two_regions") and action in ("kill", "lost_reply")
                marks = () if in_sample else (pytest.mark.recovery,)
                yield pytest.param(graph, point, action, marks=marks, id=f"{graph}-{point.value}-{action}")


@pytest.mark.seed("T2")
@pytest.mark.parametrize(
    "graph",
    [pytest.param(graph, marks=pytest.mark.recovery if graph in ("log_watch", IN_FLIGHT) else ()) for graph in GRAPHS],
)
def test_the_failure_free_run_equals_the_oracle(midway: Midway, graph: str) -> None:
    scene = midway(graph, BEGUN)
    with scene.watched():
        scene.run_well(["run", GROUP])
    scene.assert_golden()
    assert scene.attempts_at_claims() == [0, 0]


@pytest.mark.seed("V2", "V65", "V66", "V67", "V112", "V165", "V166", "V201")
@pytest.mark.parametrize(("graph", "point", "action"), matrix())
def test_what_failed_recovers(midway: Midway, graph: str, point: FailPoint, action: str) -> None:
    scene = midway(graph, ALL if is_of_rewind(point) else BEGUN)
    beside = second_region(scene, graph)
    with scene.watched():
        ended = scene.run(*steps(point), failpoints=f"{point.value}:{action}:{passings(point)[0]}")
    fail = {"kill": after_kill, "raise": after_raise, "lost_reply": after_lost_reply}[action]
    fail(scene, point, ended, graph)
    assert second_region(scene, graph) == beside


def after_kill(scene: Scene, point: FailPoint, ended: Any, graph: str) -> None:
    assert ended.code == -9, f"{point.value} is never passed: {ended}"
    history = scene.history
    assert len(history.states) == durable(point, graph)
    assert history.is_rewinding == (is_of_rewind(point) and point is not FailPoint.REWIND_BEFORE)
    if not history.unpublished:
        scene.assert_reached()
    burnt, committed, claims = scene.next_id, history.committed_id, len(scene.attempts_at_claims())
    recover(scene)
    later = [number for number in scene.history.states if number > committed]
    assert all(number >= burnt for number in later), "an id that was given away was given away again"
    assert scene.attempts_at_claims()[claims] == attempts_after_kill(point)


def after_raise(scene: Scene, point: FailPoint, ended: Any, graph: str) -> None:
    """A group of several is split and done in the same run; before and after the groups the run ends.

    What is raised outside of the region fails nothing in it, and is noted (V48, V53).
    """
    assert ended.code in (0, 1), ended
    if point in OF_AUTONOMOUS and not _is_reply(point):
        assert ended.code == 0, ended
        noted = [step["error"] for step in (*ended.steps("feed"), *ended.steps("sent"))]
        assert "injected raise" in str(noted), ended
        recover(scene)
        return
    assert "injected raise" in ended.log or ended.steps("failed") or ended.steps("committed") or _is_reply(point), ended
    recover(scene)


def after_lost_reply(scene: Scene, point: FailPoint, ended: Any, graph: str) -> None:
    """The commit landed: nothing is done again, nothing is counted."""
    assert ended.code == 0, ended
    assert not ended.steps("failed")
    assert set(scene.attempts_at_claims()) == {0}
    if is_of_rewind(point):
        scene.assert_sinks(scene.files[:REWIND_TO])
        scene.run_well(["run"])
    scene.assert_golden()


def recover(scene: Scene) -> None:
    """What any owner does first makes every sink whole again; then the rest of the input gives the golden run."""
    with scene.watched():
        scene.run_well(["own"])
        history = scene.history
        assert not history.unpublished
        scene.assert_reached()
        if scene.place.registry.pending_count(scene.region) or history.flow.channels:
            scene.run_well(["run"])
    scene.assert_golden()


def attempts_after_kill(point: FailPoint) -> int:
    """A crash counts one attempt, unless there was no claim yet, or the word of a clean end is in the table already."""
    return 0 if point in (FailPoint.CLAIM_BEFORE, FailPoint.NOTE_AFTER) else 1


def _is_reply(point: FailPoint) -> bool:
    return point.value.endswith(".after_commit")


def second_region(scene: Scene, graph: str) -> Mapping[str, Any]:
    """Return all that must not change in the region beside (V29)."""
    return frozen(scene, SECOND_REGION, SECOND_SINKS) if graph == "two_regions" else {}
