"""Two drivers on one region at once: one is refused, nothing is doubled (H25, fault matrix C1)."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from scene import Scene

from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.orchestration.testing.crash.children import codes

Midway = Callable[..., Scene]
REFUSED = 4


@pytest.mark.seed("V61", "X13")
def test_one_of_two_is_refused(midway: Midway) -> None:
    scene = midway("two_regions")
    first = scene.start(["run", 1], failpoints="assign.after:stop")
    first.await_stopped()
    second = scene.run(["run"])
    assert second.code == REFUSED, second
    assert second.error["id"] == "OWNED"
    assert second.error["facts"]["pid"] == str(first.pid)
    first.signal(signal.SIGCONT)
    ended = first.wait()
    assert ended.code == 0, ended
    scene.assert_golden()
    assert scene.attempts_at_claims() == [0, 0]


def test_many_that_start_at_once_process_each_file_once(midway: Midway) -> None:
    scene = midway("two_regions")
    with scene.watched():
        drivers = [scene.start(["scan"], ["run", 2]) for _ in range(3)]
        ended = [driver.wait() for driver in drivers]
    assert set(codes(ended)) <= {0, REFUSED}, "\n".join(map(str, ended))
    assert 0 in codes(ended)
    assert {end.error["id"] for end in ended if end.code == REFUSED} <= {"OWNED", "FENCED"}
    scene.assert_golden()
    assert set(scene.attempts_at_claims()) == {0}


def test_a_dead_owner_is_followed_at_once(midway: Midway) -> None:
    """The dead process was on this machine: its successor does not wait until the lease expires (H25 a)."""
    scene = midway("two_regions")
    scene.run_killed(["run", 2], failpoints="process.before:kill")
    scene.run_well(["own"])
    claims = [row for row in scene.checkpoint_rows() if row.kind is RowKind.CLAIM]
    assert len(claims) == 3
    assert (claims[2].recorded_at - claims[1].recorded_at).total_seconds() < 14.0, "it waited for the lease"
