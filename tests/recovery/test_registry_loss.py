"""The loss of the registry, an index: after a repair, status, history, sinks are as before (H27, fault matrix R3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scene import Scene

from drainmark.orchestration import doctor
from drainmark.orchestration.inspection.status import history_entries, statuses
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset

Midway = Callable[..., Scene]


def facts(scene: Scene) -> dict[str, Any]:
    """Return the answers of `status` and `history` about the region."""
    return {
        "status": statuses(scene.place, scene.region),
        "history": history_entries(scene.place, scene.region, everything=True),
    }


def assert_repairs(scene: Scene) -> None:
    """Require that a run refuses at once, and that after the repair all answers are as before."""
    before = facts(scene)
    rows = len(scene.checkpoint_rows())
    scene.lose_registry()
    ended = scene.run(["scan"], ["run"])
    assert ended.error.get("id") == "REGISTRY_LOST", ended
    assert ended.code == 1
    assert "doctor --repair" in ended.error["remedy"]
    assert len(scene.checkpoint_rows()) == rows, "it refused before it claimed"
    repaired = doctor.repair(scene.place, applications=[scene.app], inputs=scene.inputs)
    assert scene.region in {entry["region"] for entry in repaired}
    assert facts(scene) == before


@pytest.mark.recovery
def test_a_halt_outlives_the_registry(midway: Midway) -> None:
    scene = midway("two_regions")
    interventions.halt(scene.place, scene.region, "by hand")
    assert_repairs(scene)
    assert scene.run().code == 3
    interventions.resume(scene.place, scene.region, "go on")
    scene.run_well()
    scene.assert_golden()


@pytest.mark.recovery
def test_a_refusal_and_a_skip_outlive_the_registry(midway: Midway) -> None:
    """A file that is gone when its state is withdrawn is refused; another is skipped. Neither comes back."""
    scene = midway("two_regions", 5)
    gone, skipped = scene.files[3], scene.files[4]
    text = gone.read_text()
    facts_of_gone = gone.stat()
    aside = gone.with_suffix(".aside")
    gone.rename(aside)
    try:
        plan = plan_reset(scene.place, scene.region, RewindTarget(to=2))
        interventions.reset(scene.place, plan, accept_loss=True)
        interventions.skip(scene.place, scene.region, [str(skipped)], "not wanted")
        assert_repairs(scene)
        scene.run_well()
    finally:
        aside.rename(gone)
    assert (gone.read_text(), gone.stat().st_mtime_ns) == (text, facts_of_gone.st_mtime_ns)
    scene.assert_sinks(scene.files[:3])
    scene.assert_nothing_left()
    scene.assert_ids_never_reused()
