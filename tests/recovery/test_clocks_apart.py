"""Two hosts with clocks an hour apart, on one home: no clock decides what is committed (H25, H26)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
from hosts import other_host
from postgres import server
from scene import Scene

from drainmark.jobs.failpoints import FailPoint
from drainmark.orchestration.testing.crash.children import codes

__all__ = ["server"]

HOUR = 3600
OWNED_OR_FENCED = 4
SHORT_LEASE = {"lease_seconds": 5.0, "heartbeat_seconds": 0.2}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.recovery)])
def scene(request: pytest.FixtureRequest, build: Callable[..., Scene]) -> Scene:
    """Return a scene with five files of orders."""
    scene: Scene = build("two_regions")
    if request.param == "postgresql":
        scene.place.registry.close()
        scene.settings = {**scene.settings, "registry_url": request.getfixturevalue("server").new_database()}
        scene.reopen()
    return scene


@pytest.mark.seed("H25", "H26", "FM-T1")
@pytest.mark.recovery
@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_an_owner_that_is_taken_over_by_a_wrong_clock_is_fenced(scene: Scene, ahead: int) -> None:
    """A lease may seem to have expired an hour ago, or to last another hour: the tables are right in both cases."""
    scene.run_well(["scan"])
    with other_host(ahead_seconds=ahead) as nursery:
        other = replace(scene, nursery=nursery)
        first = scene.start(["run", 1], failpoints=f"{FailPoint.PUBLISH_BEFORE.value}:stop:2", settings=SHORT_LEASE)
        first.await_stopped()
        second = other.run(["run", 1], settings=SHORT_LEASE)
        assert (second.code, second.error.get("id")) in {(0, None), (OWNED_OR_FENCED, "OWNED")}, second
        first.signal(signal.SIGCONT)
        ended = first.wait()
        assert (ended.code, ended.error.get("id")) in {(0, None), (OWNED_OR_FENCED, "FENCED")}, ended
        assert 0 in (second.code, ended.code)
    scene.run_well()
    scene.assert_golden()
    scene.assert_ids_never_reused()


@pytest.mark.seed("H25", "H26", "FM-T1")
@pytest.mark.recovery
@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_hosts_that_start_at_once_and_are_killed_process_each_file_once(scene: Scene, ahead: int) -> None:
    with other_host(ahead_seconds=ahead) as nursery:
        other = replace(scene, nursery=nursery)
        for point in (FailPoint.CHECKPOINT_AFTER, FailPoint.PUBLISH_BEFORE):
            drivers = [
                there.start(["scan"], ["run", 1], failpoints=f"{point.value}:kill", settings=SHORT_LEASE)
                for there in (scene, other)
            ]
            ended = [driver.wait() for driver in drivers]
            assert set(codes(ended)) <= {0, OWNED_OR_FENCED, -signal.SIGKILL}, "\n".join(map(str, ended))
    scene.run_well(["sleep", SHORT_LEASE["lease_seconds"] + 0.5], ["run"], settings=SHORT_LEASE)
    scene.assert_golden()
    scene.assert_ids_never_reused()
