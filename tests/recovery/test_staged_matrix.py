"""Failures of a region in stages beside those at steps of the protocol, in each topology and mode of
`staged_graphs`: a stage fails alone, or hangs while the controller dies; then the batches in flight are rewound,
replayed, taken over.

`test_golden_matrix.py` has the steps themselves, for the same graphs.
"""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scene import Scene
from staged_graphs import MODES, STAGED, TOPOLOGIES, is_unaligned, topology_of
from test_golden_matrix import ALL, BEGUN, GROUP, matrix, recover, second_region
from test_zombies import SHORT_LEASE, woken_in_vain

from drainmark.jobs.failpoints import ChannelPoint, FailPoint
from drainmark.orchestration import doctor
from drainmark.orchestration.testing.crash.children import Ended
from drainmark.orchestration.verbs import interventions

Midway = Callable[..., Scene]

ALLOWED = 3
"""Restarts of a stage, and consecutive resets, that the applications allow."""

HALTED = 3


# --- a stage that fails -------------------------------------------------------------------------------------------


def stage_fails_alone(midway: Midway, graph: str) -> Scene:
    """Let a stage fail as often as it may: it repeats its group alone, no other stage repeats work (K10, K22, X2)."""
    scene = midway(graph)
    scene.gate.fail(ALLOWED)
    with scene.watched():
        ended = scene.run_well(["run", GROUP])
    assert restarts(ended) == [stage_of(graph)] * ALLOWED
    assert not ended.steps("failed")
    assert scene.attempts_at_claims() == [0, 0]
    assert scene.history.flow.restarts == {stage_of(graph): ALLOWED}
    return scene


def stage_fails_on_and_on(midway: Midway, graph: str) -> Scene:
    """Let a stage fail once more: the region is reset; if one file is to blame, an attempt is counted (E14, E18)."""
    scene = midway(graph)
    scene.gate.fail(ALLOWED + 1)
    with scene.watched():
        ended = scene.run(["run", GROUP])
    assert ended.code in (0, 1), ended
    assert restarts(ended) == [stage_of(graph)] * ALLOWED
    assert [step["decision"] for step in ended.steps("failed")] == ["SplitGroup" if ended.code == 0 else "EndRun"]
    if ended.code:
        assert ended.error["operator"] == "slow"
    recover(scene)
    assert scene.attempts_at_claims()[2:3] == ([1] if ended.code else [0])
    return scene


def halted_and_resumed(midway: Midway, graph: str) -> Scene:
    """Let a stage fail until the region halts: batches in flight stay, and are finished after a resume (E18)."""
    scene = midway(graph)
    scene.gate.break_down()
    codes: list[int] = []
    while HALTED not in codes and len(codes) <= ALLOWED + 2:  # a new state resets the count
        codes.append(scene.run(["run", GROUP]).code)
    assert codes[-1] == HALTED
    assert len(codes) > ALLOWED
    assert set(codes[:-1]) == {1}
    history = scene.history
    assert history.halt is not None
    assert history.halt.detail["operator"] == "slow"
    assert bool(history.flow.channels) == is_unaligned(graph)
    assert (len(history.states) > BEGUN) == is_unaligned(graph)
    scene.gate.open()
    interventions.resume(scene.place, scene.region, "mended")
    scene.assert_reached()
    scene.run_well(["run", GROUP])
    return scene


# --- the controller, with a stage that hangs ----------------------------------------------------------------------


def killed_while_a_stage_hangs(midway: Midway, graph: str) -> Scene:
    """Kill the owner while a stage hangs: then all stages begin at their own last states, the batches in flight are
    finished, and new states are committed meanwhile (K23, F1, F28)."""
    scene = in_flight(midway, graph)
    recover(scene)
    assert scene.attempts_at_claims()[:3] == [0, 0, 1]
    return scene


def killed_while_it_replays(midway: Midway, graph: str) -> Scene:
    """Kill the owner in the reset, and in the reset after that (F5)."""
    scene = in_flight(midway, graph)
    with scene.watched():
        for point in (FailPoint.PROCESS_STAGED, ChannelPoint.HAND_OVER_AFTER):
            scene.run_killed(["run", GROUP], failpoints=f"{point.value}:kill")
    recover(scene)
    return scene


def killed_before_the_first_state(midway: Midway, graph: str) -> Scene:
    """Kill the owner before the first state: it can go back only to the beginning (V104)."""
    scene = midway(graph, 0)
    with scene.watched():
        scene.run_killed(["run", GROUP], failpoints=f"{ChannelPoint.HAND_OVER_AFTER.value}:kill")
    recover(scene)
    return scene


def killed_in_a_later_stage(midway: Midway, graph: str) -> Scene:
    """Kill the owner in a later stage: the other stages are ahead of it, or have begun nothing yet (V109, V112)."""
    scene = midway(graph)
    with scene.watched():
        scene.run_killed(["run", ALL], failpoints=f"{FailPoint.PROCESS_STAGED.value}:kill:{later(graph)}")
    recover(scene)
    return scene


def registry_lost(midway: Midway, graph: str) -> Scene:
    """Kill the owner and lose the registry: only rows of the checkpoint table tell the batches in flight (H27)."""
    scene = in_flight(midway, graph)
    scene.lose_registry()
    ended = scene.run()
    assert ended.error.get("id") == "REGISTRY_LOST", ended
    doctor.repair(scene.place, applications=[scene.app], inputs=scene.inputs)
    scene.run_well(["scan"])
    recover(scene)
    return scene


def woken_after_the_take_over(midway: Midway, graph: str) -> Scene:
    """Stop the owner after it handed a batch over; another does all the work; the first wakes fenced (V110, V111)."""
    scene = midway(graph)
    point = f"{ChannelPoint.HAND_OVER_AFTER.value}:stop:2"
    zombie = scene.start(["run", GROUP], failpoints=point, settings=SHORT_LEASE)
    zombie.await_stopped()
    while is_locked(scene.home / "shop.db"):  # a thread was publishing; SQLite's lock lasts as long as its process
        zombie.signal(signal.SIGCONT)
        time.sleep(0.02)
        zombie.signal(signal.SIGSTOP)
        zombie.await_stopped()
    scene.run_well(["sleep", 1.0], ["run", GROUP], settings=SHORT_LEASE)
    scene.assert_golden()
    woken_in_vain(scene, zombie)
    return scene


def is_locked(database: Path) -> bool:
    """Say whether a process is in the middle of a write to a database of SQLite."""
    if not database.exists():
        return False
    with closing(sqlite3.connect(database, timeout=0.0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
    return False


# --- a rewind, with batches in flight -----------------------------------------------------------------------------


def rewound_to_the_beginning(midway: Midway, graph: str) -> Scene:
    return rewound(in_flight(midway, graph), 0)


def rewound_into_what_is_in_flight(midway: Midway, graph: str) -> Scene:
    """Rewind into the batches in flight: with groups of two, into the middle of a batch, which is cut (F6)."""
    scene = in_flight(midway, graph)
    return rewound(scene, BEGUN + 1 if is_unaligned(graph) else BEGUN - 1)


def rewound_and_killed(midway: Midway, graph: str) -> Scene:
    """Rewind, and kill the run that replays the rest of a cut batch (F28)."""
    scene = in_flight(midway, graph)
    scene.run_well(["rewind", scene.id_after(BEGUN + 1 if is_unaligned(graph) else BEGUN - 1)])
    with scene.watched():
        scene.run_killed(["run", GROUP], failpoints=f"{FailPoint.CHECKPOINT_BEFORE.value}:kill")
    recover(scene)
    return scene


def skipped_while_a_stage_lags(midway: Midway, graph: str) -> Scene:
    """Skip a file: a state without rows comes between the batches in flight and the pending files (E18)."""
    scene = in_flight(midway, graph)
    if is_unaligned(graph):
        scene.run_well(["rewind", scene.id_after(BEGUN + 1)])
    committed, skipped, oracle = len(scene.history.states), scene.files[-1], scene.oracle
    interventions.skip(scene.place, scene.region, [str(skipped)], "not wanted")
    scene.files = [*scene.files[:committed], skipped, *scene.files[committed:-1]]
    scene.oracle = lambda files: oracle([path for path in files if path != skipped])
    with scene.watched():
        scene.run_well(["run", GROUP])
    return scene


def rewound(scene: Scene, files: int) -> Scene:
    """Rewind a scene to so many files; every table then has the rows of those files that its stage had finished."""
    to = scene.id_after(files)
    scene.run_well(["rewind", to])
    history = scene.history
    assert len(history.states) == files
    assert all(batch.last_id <= to for batch in history.flow.batches)
    assert scene.place.registry.pending_count(scene.region) == ALL - files
    scene.assert_reached()
    with scene.watched():
        scene.run_well(["run", GROUP])
    return scene


FAILURES: Mapping[str, Callable[[Midway, str], Scene]] = {
    function.__name__: function
    for function in (
        stage_fails_alone, stage_fails_on_and_on, halted_and_resumed, killed_while_a_stage_hangs,
        killed_while_it_replays, killed_before_the_first_state, killed_in_a_later_stage, registry_lost,
        woken_after_the_take_over, rewound_to_the_beginning, rewound_into_what_is_in_flight, rewound_and_killed,
        skipped_while_a_stage_lags,
    )
}  # fmt: skip
"""By name: the function that causes the failure in a graph's scene, and returns the scene after it has recovered."""

NOTHING_BEGUN = {killed_before_the_first_state.__name__: 0}
"""By failure: the number of files committed before, if that is none."""

SAMPLE = {
    ("sources-durable", "killed_while_a_stage_hangs"),
    ("sinks-unaligned", "rewound_into_what_is_in_flight"),
    ("regions-aligned", "killed_in_a_later_stage"),
}
"""The cells of the default run: each mode, in different topologies."""


def cells() -> Iterator[Any]:
    """Yield (graph, failure)."""
    for graph in STAGED:
        for failure in FAILURES:
            marks = () if (graph, failure) in SAMPLE else (pytest.mark.recovery,)
            yield pytest.param(graph, failure, marks=marks, id=f"{graph}-{failure}")


@pytest.mark.seed("T1", "T3", "V104", "V109", "K22")
@pytest.mark.parametrize(("graph", "failure"), cells())
def test_a_region_in_stages_recovers(midway: Midway, graph: str, failure: str) -> None:
    scene = FAILURES[failure](midway, graph)
    scene.assert_golden()
    assert beside(scene, graph) == beside(midway(graph, NOTHING_BEGUN.get(failure, BEGUN)), graph)


# --- the matrix is whole ------------------------------------------------------------------------------------------

KILLS = {
    "operator crash, normal processing": ("process.", "drain.", "hand_over."),
    "operator crash in checkpoint": ("checkpoint_pending.",),
    "operator crash in reset": ("roll_forward.", "rewind_table."),
    "controller crash, each transition": (
        "claim.", "assign.", "checkpoint.", "publish.", "resume.", "rewind.", "note.", "release.",
    ),
}  # fmt: skip
"""By kind of failure: the steps at which a process is killed."""

BEFALLEN = {
    "infrastructure crash, checkpoint store included": ("registry_lost",),
    "exception thrown by operator": ("stage_fails_alone", "stage_fails_on_and_on", "halted_and_resumed"),
    "operator crash together with infrastructure crash": ("registry_lost",),
}
"""By kind of failure: the failures of this module; the matrix of steps has lost replies of the checkpoint store."""


def test_every_failure_is_tried_in_every_topology_and_mode() -> None:
    wanted = {(f"{name}-{mode}", failure) for name in TOPOLOGIES for mode in MODES for failure in FAILURES}
    assert {cell.values for cell in cells()} == wanted


@pytest.mark.seed("T1", "V170")
@pytest.mark.parametrize("graph", STAGED)
def test_every_row_of_the_table_has_its_cells(graph: str) -> None:
    steps = {(str(cell.values[1]), cell.values[2]) for cell in matrix() if cell.values[0] == graph}
    for row, names in KILLS.items():
        for name in names:
            assert any(point.startswith(name) and action == "kill" for point, action in steps), (row, name)
    assert ("checkpoint.after_commit", "lost_reply") in steps
    tried = {cell.values[1] for cell in cells() if cell.values[0] == graph}
    for row, failures in BEFALLEN.items():
        assert tried.issuperset(failures), row


@pytest.mark.seed("T6")
def test_the_default_run_has_each_topology_and_mode() -> None:
    default = {cell.values for cell in cells() if not cell.marks}
    assert default == SAMPLE
    assert len({graph.partition("-")[0] for graph, _ in default}) == len(default)
    assert {graph.partition("-")[2] for graph, _ in default} == set(MODES)


# --- helpers ------------------------------------------------------------------------------------------------------


def beside(scene: Scene, graph: str) -> Mapping[str, Any]:
    """Return the facts that no failure may change, without those of the registry, which may be rebuilt."""
    return {name: fact for name, fact in second_region(scene, graph).items() if name != "info"}


def in_flight(midway: Midway, graph: str) -> Scene:
    """Return a scene after a kill while a stage hung; if unaligned, all files are committed without that stage."""
    scene = midway(graph, BEGUN, in_flight=True)
    history = scene.history
    assert len(history.states) == (ALL if is_unaligned(graph) else BEGUN)
    assert bool(history.flow.channels) == is_unaligned(graph)
    return scene


def stage_of(graph: str) -> str:
    """Return the stage of the slow operator."""
    topology = topology_of(graph)
    assert topology is not None
    return topology.slow


def later(graph: str) -> int:
    """Return the number of the passing of a step that is of a stage after the starts, if all files are one group."""
    topology = topology_of(graph)
    assert topology is not None
    return len(topology.folders) + 1 if topology.slow == "both" else 2


def restarts(ended: Ended) -> list[str]:
    return [step["stage"] for step in ended.steps("restart")]
