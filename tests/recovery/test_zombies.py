"""Owners stopped by SIGSTOP before a commit and woken after the take-over (H1–H4, H25, H26, V110, X5)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from scene import Scene

from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.orchestration.testing.crash.children import Ended, Running

Midway = Callable[..., Scene]

SHORT_LEASE = {"lease_seconds": 0.8, "heartbeat_seconds": 0.2}
FENCED = 4


def snapshot(scene: Scene) -> dict[str, Any]:
    """Return all facts that a zombie could change: rows, the facts of the registry, every table."""
    registry = scene.place.registry
    facts: dict[str, Any] = {
        "rows": scene.checkpoint_rows(),
        "region": registry.region_info(scene.region),
        "triggers": [registry.triggers.by_uri(scene.region, str(path)) for path in scene.files],
    }
    for table in scene.history.tables:
        opened = scene.place.store(scene.region).open(table)
        facts[table.name] = (opened.delta_version(), opened.txn_version(), sorted(map(repr, opened.read().to_pylist())))
    return facts


def woken_in_vain(scene: Scene, zombie: Running) -> Ended:
    """Wake a stopped process after the take-over; require that it changes nothing and ends fenced; return its end."""
    before = snapshot(scene)
    zombie.signal(signal.SIGCONT)
    ended = zombie.wait()
    assert snapshot(scene) == before
    assert ended.code == FENCED, ended
    return ended


def test_a_run_woken_after_the_take_over_changes_nothing(midway: Midway) -> None:
    scene = midway("two_regions")
    zombie = scene.start(["run", 2], failpoints=f"{FailPoint.CHECKPOINT_BEFORE.value}:stop:1", settings=SHORT_LEASE)
    zombie.await_stopped()
    claimed = sum(row.kind is RowKind.CLAIM for row in scene.checkpoint_rows())
    taken_over = scene.run_well(["sleep", 1.0], ["run", 2], settings=SHORT_LEASE)
    scene.assert_golden()
    assert scene.attempts_at_claims()[claimed] == 1, taken_over
    ended = woken_in_vain(scene, zombie)
    assert ended.error["id"] == "FENCED"
    scene.run_well(["own"])
    assert scene.attempts_at_claims()[-1] == 0, "the zombie's end counts nothing for whoever comes next"
    scene.assert_golden()
