"""An old owner that commits between a new owner's look at the table and its claim (H1, H3, H25)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
from scene import Scene

from drainmark.jobs.failpoints import FailPoint
from drainmark.resources.registry.lease import describe

Midway = Callable[..., Scene]

SHORT_LEASE = {"lease_seconds": 0.8, "heartbeat_seconds": 0.2}


@pytest.mark.recovery
@pytest.mark.seed("H3", "H25")
def test_a_group_committed_while_another_owner_claims_is_rolled_forward(midway: Midway) -> None:
    """Otherwise its files would be processed twice, and its rows would never be published."""
    scene = midway("two_regions")
    points = f"{FailPoint.CHECKPOINT_BEFORE.value}:stop,{FailPoint.CHECKPOINT_AFTER.value}:kill"
    older = scene.start(["run", 2], failpoints=points, settings=SHORT_LEASE)
    older.await_stopped()
    newer = scene.start(
        ["sleep", 1.0], ["run", 2], failpoints=f"{FailPoint.CLAIM_BEFORE.value}:hang=2", settings=SHORT_LEASE
    )
    await_owner(scene, newer.pid)
    committed = len(scene.history.states)
    time.sleep(0.5)  # the time from the lease to the look at the table
    os.kill(older.pid, signal.SIGCONT)
    assert older.wait().code == -signal.SIGKILL
    assert len(scene.history.states) == committed + 2
    ended = newer.wait()
    assert ended.code == 0, ended
    scene.assert_golden()


def await_owner(scene: Scene, pid: int, seconds: float = 30.0) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while True:
        owner = describe(scene.place.registry, scene.region)
        if owner is not None and owner.pid == pid:
            return
        assert time.monotonic() < deadline, "never owned"
        pause.wait(0.02)
