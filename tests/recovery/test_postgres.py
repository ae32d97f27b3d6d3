"""A registry in PostgreSQL under runs: restarted, away for a while, and shared by two hosts (R2, C4, H25, H26)."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hosts import other_host
from postgres import PostgresServer, server
from scene import Scene
from waiting import eventually

from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.orchestration.testing.crash.children import Nursery

__all__ = ["server"]

Build = Callable[..., Scene]

HANG = 2.5
OWNED_OR_FENCED = 4
SHORT_LEASE = {"lease_seconds": 5.0, "heartbeat_seconds": 0.2}
OVER_SOON = {"lease_seconds": 2.0, "heartbeat_seconds": 0.2}
LONG_LEASE = {"lease_seconds": 600.0, "heartbeat_seconds": 0.2}
"""The process that takes over decides the length of a lease: this one outlasts even a slow start."""


@pytest.fixture
def scene(build: Build, server: PostgresServer) -> Scene:
    """Return a scene with five files of orders, and the registry in the server of this module."""
    scene = build("two_regions")
    scene.place.registry.close()
    scene.settings = {**scene.settings, "registry_url": server.new_database()}
    scene.reopen()
    return scene


@pytest.mark.recovery
@pytest.mark.seed("R2")
def test_a_restart_under_a_run_is_not_noticed(scene: Scene, server: PostgresServer) -> None:
    run = scene.start(["scan"], ["run", 1], failpoints=f"process.before:hang={HANG}:2")
    run.await_step("group")
    eventually(lambda: scene.next_id == 3)  # the ids of the second group are taken: it hangs
    server.restart()
    ended = run.wait()
    assert ended.code == 0, ended
    scene.assert_golden()
    assert scene.attempts_at_claims() == [0]


@pytest.mark.seed("R2", "T4")
@pytest.mark.parametrize(
    "point",
    [
        FailPoint.PUBLISH_BEFORE,
        pytest.param(FailPoint.PROCESS_BEFORE, marks=pytest.mark.recovery),
        pytest.param(FailPoint.ASSIGN_BEFORE, marks=pytest.mark.recovery),
        pytest.param(FailPoint.CHECKPOINT_BEFORE, marks=pytest.mark.recovery),
        pytest.param(FailPoint.RESUME_BEFORE, marks=pytest.mark.recovery),
        pytest.param(FailPoint.RESUME_AFTER, marks=pytest.mark.recovery),
        pytest.param(FailPoint.RELEASE_BEFORE, marks=pytest.mark.recovery),
    ],
)
def test_a_run_whose_registry_is_away_ends_and_the_next_one_goes_on(
    scene: Scene, server: PostgresServer, point: FailPoint
) -> None:
    """No attempt is counted, no trigger is lost, no row comes twice; the next owner publishes the committed groups."""
    nth = 1 if point is FailPoint.RELEASE_BEFORE else 2
    run = scene.start(["scan"], ["run", 1], failpoints=f"{point.value}:hang={HANG}:{nth}")
    run.await_step("group")
    if point is FailPoint.RELEASE_BEFORE:
        eventually(lambda: groups(run) == 5)
    server.stop()
    try:
        ended = run.wait()
    finally:
        server.start()
    assert (ended.code, ended.error.get("id")) in {(1, "STORE_UNAVAILABLE"), (0, None)}, ended
    scene.run_well()
    scene.assert_golden()
    assert set(scene.attempts_at_claims()) == {0}


def groups(run: Any) -> int:
    return sum(event["step"] == "group" for event in run.events())


# --- two hosts ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Nursery]:
    """Yield a process that forks children on another host."""
    with other_host() as nursery:
        yield nursery


@pytest.mark.recovery
@pytest.mark.seed("H25", "H26", "FM-C4")
def test_of_two_hosts_one_owns_the_region_and_a_stopped_one_is_fenced(scene: Scene, elsewhere: Nursery) -> None:
    other = replace(scene, nursery=elsewhere)
    scene.run_well(["scan"])
    first = scene.start(["run", 1], failpoints=f"{FailPoint.PUBLISH_BEFORE.value}:stop:2", settings=SHORT_LEASE)
    first.await_stopped()
    refused = other.run(["run", 1], settings=LONG_LEASE)
    assert (refused.code, refused.error["id"]) == (OWNED_OR_FENCED, "OWNED"), refused
    assert refused.error["facts"]["host"] == socket.gethostname()
    before = [row for row in scene.checkpoint_rows() if row.kind is RowKind.CLAIM]
    taken_over = other.run_well(["sleep", SHORT_LEASE["lease_seconds"] + 0.5], ["run", 1], settings=SHORT_LEASE)
    scene.assert_golden()
    claims = [row for row in scene.checkpoint_rows() if row.kind is RowKind.CLAIM]
    assert len(claims) == len(before) + 1, taken_over
    rows = scene.checkpoint_rows()
    first.signal(signal.SIGCONT)
    ended = first.wait()
    assert (ended.code, ended.error["id"]) == (OWNED_OR_FENCED, "FENCED"), ended
    assert scene.checkpoint_rows() == rows
    scene.assert_golden()


@pytest.mark.recovery
@pytest.mark.seed("H25")
def test_a_region_at_work_on_another_host_is_refused_however_long_it_takes(scene: Scene, elsewhere: Nursery) -> None:
    other = replace(scene, nursery=elsewhere)
    scene.run_well(["scan"])
    hang = SHORT_LEASE["lease_seconds"] * 2
    run = other.start(["run", 5], failpoints=f"process.before:hang={hang}", settings=SHORT_LEASE)
    run.await_step("claim")
    refused = scene.run(["sleep", SHORT_LEASE["lease_seconds"] + 0.5], ["run", 1], settings=SHORT_LEASE)
    assert (refused.code, refused.error["id"]) == (OWNED_OR_FENCED, "OWNED"), refused
    assert refused.error["facts"]["host"] == "elsewhere"
    assert run.wait().code == 0
    scene.assert_golden()


@pytest.mark.seed("H25")
def test_a_process_killed_on_another_host_is_taken_over_only_when_its_lease_is_over(
    scene: Scene, elsewhere: Nursery
) -> None:
    """This host cannot see that the process is dead: its pid is meaningless on another host."""
    other = replace(scene, nursery=elsewhere)
    scene.run_well(["scan"])
    killed = other.run(["run", 1], failpoints="checkpoint.after_commit:kill:2", settings=LONG_LEASE)
    assert killed.code == -signal.SIGKILL
    assert scene.run(["run", 1], settings=LONG_LEASE).error["id"] == "OWNED"
    scene.run_well(["sleep", OVER_SOON["lease_seconds"] + 0.5], ["run", 1], settings=OVER_SOON)
    scene.assert_golden()
    assert scene.attempts_at_claims() == [0, 1]
