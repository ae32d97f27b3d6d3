"""Owners stopped by SIGSTOP before a commit and woken after the take-over (H1–H4, H25, H26, V110, X5)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from scene import Scene

from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.ids import txn_version
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


@pytest.mark.parametrize(
    "point",
    [
        FailPoint.CHECKPOINT_BEFORE,
        pytest.param(FailPoint.PUBLISH_BEFORE, marks=pytest.mark.recovery),
        pytest.param(FailPoint.CLAIM_BEFORE, marks=pytest.mark.recovery),
        pytest.param(FailPoint.CHECKPOINT_AFTER, marks=pytest.mark.recovery),
        pytest.param(FailPoint.PUBLISH_AFTER, marks=pytest.mark.recovery),
        pytest.param(FailPoint.ASSIGN_BEFORE, marks=pytest.mark.recovery),
        pytest.param(FailPoint.RESUME_BEFORE, marks=pytest.mark.recovery),
    ],
)
def test_a_run_woken_after_the_take_over_changes_nothing(midway: Midway, point: FailPoint) -> None:
    scene = midway("two_regions")
    zombie = scene.start(["run", 2], failpoints=f"{point.value}:stop:1", settings=SHORT_LEASE)
    zombie.await_stopped()
    claimed = sum(row.kind is RowKind.CLAIM for row in scene.checkpoint_rows())
    taken_over = scene.run_well(["sleep", 1.0], ["run", 2], settings=SHORT_LEASE)
    scene.assert_golden()
    assert scene.attempts_at_claims()[claimed] == (0 if point is FailPoint.CLAIM_BEFORE else 1), taken_over
    ended = woken_in_vain(scene, zombie)
    assert ended.error["id"] == "FENCED"
    scene.run_well(["own"])
    assert scene.attempts_at_claims()[-1] == 0, "the zombie's end counts nothing for whoever comes next"
    scene.assert_golden()


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(FailPoint.REWIND_BEFORE, marks=pytest.mark.recovery),
        pytest.param(FailPoint.REWIND_AFTER, marks=pytest.mark.recovery),
        pytest.param(FailPoint.REWIND_TABLE_BEFORE, marks=pytest.mark.recovery),
    ],
)
def test_a_rewind_woken_after_the_take_over_changes_nothing(midway: Midway, point: FailPoint) -> None:
    scene = midway("two_regions", 5)
    zombie = scene.start(["rewind", 3], failpoints=f"{point.value}:stop", settings=SHORT_LEASE)
    zombie.await_stopped()
    scene.run_well(["sleep", 1.0], ["own"], settings=SHORT_LEASE)
    scene.assert_sinks(scene.files[: 5 if point is FailPoint.REWIND_BEFORE else 3])
    scene.run_well(["run"])
    scene.assert_golden()
    woken_in_vain(scene, zombie)


@pytest.mark.recovery
@pytest.mark.seed("H7", "H8")
def test_a_compaction_woken_after_its_files_were_collected_changes_nothing(midway: Midway) -> None:
    """The next owner publishes nothing: only the commit of its file collection stops the compaction.

    A compaction of a table without files to collect may still land: all its files are there.
    """
    scene = midway("two_regions")
    scene.run_well(["run", 1])
    zombie = scene.start(["compact"], failpoints="compact.before_commit:stop", settings=SHORT_LEASE)
    zombie.await_stopped()
    scene.run_well(["sleep", 1.0], ["own"], settings=SHORT_LEASE)
    epoch, names = scene.history.epoch, [table.name for table in scene.history.tables]
    fenced = [name for name in names if scene.table(name).txn_version() == txn_version(epoch, 0)]
    assert len(fenced) == 1, "where the compaction was stopped"
    before = snapshot(scene)
    zombie.signal(signal.SIGCONT)
    ended = zombie.wait()
    after = snapshot(scene)
    assert after[fenced[0]] == before[fenced[0]]
    for name in names:
        assert after.pop(name)[1:] == before.pop(name)[1:]
    assert after == before
    assert ended.code == FENCED, ended
    scene.assert_golden()


def test_a_publisher_woken_after_a_rewind_brings_nothing_back(midway: Midway) -> None:
    """H4 (b): the successor rolled the group of the publisher forward, and then withdrew it."""
    scene = midway("two_regions")
    zombie = scene.start(["run", 3], failpoints="publish.before_commit:stop:2", settings=SHORT_LEASE)
    zombie.await_stopped()
    scene.run_well(["sleep", 1.0], ["rewind", 2], settings=SHORT_LEASE)
    scene.assert_sinks(scene.files[:2])
    woken_in_vain(scene, zombie)
    scene.run_well(["run"])
    scene.assert_golden()
