"""Golden runs under faults: every fail point, every way to fail, the same sinks as without faults.

The matrix is made from `FailPoint`: a new point adds its tests, and a point that no run passes fails them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from graphs import BESIDE, GRAPHS, IN_FLIGHT, LARGE, SURROUNDED
from scene import Scene, frozen
from staged_graphs import STAGED, is_unaligned, topology_of

from drainmark.jobs.failpoints import OF_AUTONOMOUS, OF_STAGES, ChannelPoint, FailPoint
from drainmark.orchestration.testing.crash.matrix import (
    actions,
    is_of_compaction,
    is_of_rewind,
    is_of_slices,
    passings,
    points,
)

Midway = Callable[..., Scene]
Point = FailPoint | ChannelPoint

BEGUN = 2
GROUP = 2
REWIND_TO = 3  # inside a group of five
ALL = 5

POINTS: tuple[Point, ...] = (*(point for point in points("all") if not is_of_slices(point)), *ChannelPoint)
"""The points of regions with files as triggers; the others are in `test_source_matrix.py` and
`test_repairs_recover.py`."""

OF_SPOOLS = (ChannelPoint.SPOOL_BEFORE, ChannelPoint.SPOOL_WRITTEN)
"""Points that a run passes when it writes batches: not with aligned states and channels in memory."""

_AFTER_CHECKPOINT = ("publish.", "resume.")
_AFTER_GROUPS = ("release.", "note.", "compact.")
_BEFORE_ANY_STATE = (
    "claim.", "roll_forward.", "assign.", "process.", "drain.", "spool.", "hand_over.before", "checkpoint_pending.",
    "checkpoint.before_commit",
)  # fmt: skip


def points_of(graph: str) -> tuple[Point, ...]:
    """Return the points that a run of the graph passes."""
    return tuple(point for point in POINTS if is_passed(graph, point))


def is_passed(graph: str, point: Point) -> bool:
    topology = topology_of(graph)
    if point in OF_AUTONOMOUS:
        return graph == SURROUNDED or (topology is not None and bool(topology.outside))
    if point in (*OF_STAGES, *OF_SPOOLS):
        return graph == IN_FLIGHT or is_unaligned(graph)
    return not isinstance(point, ChannelPoint) or is_staged(graph)


def is_staged(graph: str) -> bool:
    return graph in (IN_FLIGHT, LARGE) or graph in STAGED


KILLED: tuple[Point, ...] = (
    FailPoint.CHECKPOINT_AFTER, FailPoint.REWIND_TABLE_AFTER,
    FailPoint.FEED_AFTER, FailPoint.PROGRESS_AFTER, ChannelPoint.HAND_OVER_AFTER,
)  # fmt: skip
"""The points of the default run: a group and a rewind, and what no simulation has: rows from outside, batches in flight
in one row, and between stages. The simulation lets processes die at every other point of the protocol, and between.
"""

REPLIES: tuple[Point, ...] = (FailPoint.SEND_AFTER,)
"""The commits that lose their reply in the default run: those outside. The simulation loses the replies of the others,
and so do the contract tests of tables."""

SIMULATED = ("log_watch", "blocking")
"""Graphs in which a failure meets nothing that `two_regions` or the simulation lacks: they only run without one."""


def actions_of(graph: str, point: Point) -> tuple[str, ...]:
    """Return the ways to fail at a point: an application of many operators takes long, and is only killed."""
    return tuple(action for action in actions(point) if graph != LARGE or action == "kill")


def in_sample(graph: str, point: Point, action: str) -> bool:
    """Say whether a cell is in the default run."""
    return graph == sample_of(point) and point in {"kill": KILLED, "lost_reply": REPLIES}.get(action, ())


def sample_of(point: Point) -> str:
    """Return the graph that has the cells of a point in the default run."""
    if point in OF_AUTONOMOUS:
        return SURROUNDED
    return IN_FLIGHT if point in OF_STAGES or isinstance(point, ChannelPoint) else "two_regions"


def group_of(graph: str) -> int:
    """Return the number of files of a group: an operator that reads a control port sees one file at a time."""
    topology = topology_of(graph)
    takes_one = graph == SURROUNDED or (topology is not None and topology.takes_one)
    return 1 if takes_one else GROUP


def durable(point: Point, graph: str) -> range:
    """Return the possible numbers of committed files if a process dies at the point, in its first group or its rewind.

    Stages work ahead: one row may be of several groups, and a point after a first state may come after later states.
    """
    if is_of_rewind(point):
        return _exactly(ALL if point is FailPoint.REWIND_BEFORE else REWIND_TO)
    if point.value.startswith(_AFTER_GROUPS):
        return _exactly(ALL)
    if point is FailPoint.CHECKPOINT_AFTER or point.value.startswith(_AFTER_CHECKPOINT) or point in OF_STAGES:
        after = BEGUN + group_of(graph)
        return range(after, ALL + 1) if is_staged(graph) else _exactly(after)
    if not is_staged(graph) or point.value.startswith(_BEFORE_ANY_STATE):
        return _exactly(BEGUN)
    return range(BEGUN, ALL + 1)


def _exactly(files: int) -> range:
    return range(files, files + 1)


def prepared(midway: Midway, graph: str, point: Point) -> Scene:
    """Return a scene that passes the point; for a rewind of unaligned states it has batches in flight."""
    if is_of_rewind(point) and is_unaligned(graph):
        return midway(graph, BEGUN, in_flight=True)
    return midway(graph, ALL if is_of_rewind(point) else BEGUN)


def steps(point: Point, scene: Scene) -> list[list[Any]]:
    """Return the steps of a child that passes the point."""
    if is_of_rewind(point):
        return [["rewind", scene.id_after(REWIND_TO)]]
    if point in OF_STAGES:
        return [["run", ALL]]  # one group: the work after its state certainly comes later
    return [["run", 1], ["compact"]] if is_of_compaction(point) else [["run", GROUP]]


def matrix() -> Iterator[Any]:
    """Yield (graph, point, action); the sample of the default run is not marked `recovery`."""
    for graph in (graph for graph in GRAPHS if graph not in SIMULATED):
        for point in points_of(graph):
            for action in actions_of(graph, point):
                marks = () if in_sample(graph, point, action) else (pytest.mark.recovery,)
                yield pytest.param(graph, point, action, marks=marks, id=f"{graph}-{point.value}-{action}")


@pytest.mark.seed("T2", "V164", "V165")
@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(graph, marks=() if graph in ("two_regions", "handlers") else pytest.mark.recovery)
        for graph in GRAPHS
    ],
)
def test_the_failure_free_run_equals_the_oracle(midway: Midway, graph: str) -> None:
    scene = midway(graph, BEGUN)
    with scene.watched():
        scene.run_well(["run", GROUP])
    scene.assert_golden()
    assert scene.attempts_at_claims() == [0, 0]


@pytest.mark.seed("V2", "V112", "V195", "K20", "K21")
@pytest.mark.parametrize(("graph", "point", "action"), matrix())
def test_what_failed_recovers(midway: Midway, graph: str, point: Point, action: str) -> None:
    scene = prepared(midway, graph, point)
    beside = second_region(scene, graph)
    with scene.watched():
        ended = scene.run(*steps(point, scene), failpoints=f"{point.value}:{action}:{passings(point)[0]}")
    fail = {"kill": after_kill, "raise": after_raise, "lost_reply": after_lost_reply}[action]
    fail(scene, point, ended, graph)
    assert second_region(scene, graph) == beside


def after_kill(scene: Scene, point: Point, ended: Any, graph: str) -> None:
    assert ended.code == -9, f"{point.value} is never passed: {ended}"
    history = scene.history
    assert len(history.states) in durable(point, graph)
    assert bool(history.rewinding) == (is_of_rewind(point) and point is not FailPoint.REWIND_BEFORE)
    if not history.unpublished:
        scene.assert_reached()
    burnt, committed, claims = scene.next_id, history.committed_id, len(scene.attempts_at_claims())
    recover(scene)
    later = [number for number in scene.history.states if number > committed]
    assert all(number >= burnt for number in later), "an id that was given away was given away again"
    assert scene.attempts_at_claims()[claims] == history.attempts + attempts_after_kill(point)


def after_raise(scene: Scene, point: Point, ended: Any, graph: str) -> None:
    """Check a run with an error: it splits a group of several and finishes it; an error outside of groups ends the run.

    An error outside of the region fails nothing in it, and is noted (V48, V53).
    """
    assert ended.code in (0, 1), ended
    if point in OF_AUTONOMOUS and not _is_reply(point):
        assert ended.code == 0, ended
        noted = [step["error"] for step in (*ended.steps("feed"), *ended.steps("sent"))]
        assert "injected raise" in str(noted), ended
        recover(scene)
        return
    told = any(ended.steps(step) for step in ("failed", "committed", "restart"))
    assert "injected raise" in ended.log or told or _is_reply(point), ended
    recover(scene)


def after_lost_reply(scene: Scene, point: Point, ended: Any, graph: str) -> None:
    """Check a run after a lost reply: the commit landed, so no work is repeated and no attempt is counted."""
    assert ended.code == 0, ended
    assert not ended.steps("failed")
    assert sum(scene.attempts_at_claims()) == scene.unclean
    if is_of_rewind(point):
        assert len(scene.history.states) == REWIND_TO
        scene.assert_reached()
        scene.run_well(["run"])
    scene.assert_golden()


def recover(scene: Scene) -> None:
    """Require that a claim makes every sink whole again, and that the rest of the input gives the golden run."""
    with scene.watched():
        scene.run_well(["own"])
        history = scene.history
        assert not history.unpublished
        scene.assert_reached()
        if scene.place.registry.pending_count(scene.region) or history.flow.channels:
            scene.run_well(["run"])
    scene.assert_golden()


def attempts_after_kill(point: Point) -> int:
    """Return the attempts that a crash counts: one; none before the claim or after the note of a clean end."""
    return 0 if point in (FailPoint.CLAIM_BEFORE, FailPoint.NOTE_AFTER) else 1


def _is_reply(point: Point) -> bool:
    return point.value.endswith(".after_commit")


def second_region(scene: Scene, graph: str) -> Mapping[str, Any]:
    """Return the facts that must not change in the second region (V29)."""
    return frozen(scene, *BESIDE[graph]) if graph in BESIDE else {}
