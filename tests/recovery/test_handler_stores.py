"""Operators in Python that keep their chunks in a separate store: they survive kills inside the store (V158, V167)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from followed import follow
from graphs import handlers
from scene import Scene

from drainmark.jobs.failpoints import StorePoint
from drainmark.orchestration.testing.crash.children import Nursery

GROUP = 2

pytestmark = pytest.mark.seed("V158", "V163", "V167")


@pytest.fixture
def kept(build: Callable[[Callable[[Nursery, str, Path], Scene]], Scene], tmp_path: Path) -> Scene:
    """Return the scene with its chunks in a folder and two committed files."""
    scene = build(handlers)
    scene.settings = {**scene.settings, "state_store": str(tmp_path / "states")}
    scene.reopen()
    scene.run_well(["scan"], ["run", GROUP])
    scene.assert_golden()
    return scene


@pytest.mark.parametrize("point", [pytest.param(point, marks=pytest.mark.recovery) for point in StorePoint], ids=str)
def test_a_crash_in_the_store_leaves_every_sink_as_it_should_be(kept: Scene, point: StorePoint) -> None:
    """The next claim deletes the states that a rewind withdrew; then their places are written anew."""
    kept.run_well(["rewind", 2])
    ended = kept.run(["run", GROUP], failpoints=f"{point.value}:kill:1")
    assert ended.code == -9, ended
    assert len(kept.history.states) == 2
    kept.run_well(["run", GROUP])
    kept.assert_golden()
    left = {path.name.partition(".")[0] for path in (kept.folder / "states").rglob("*.0")}
    assert left == {str(number) for number in kept.history.states.ids}, "a checkpoint an id that counts, and no other"


@pytest.mark.recovery
def test_a_store_that_is_ahead_of_a_restored_home_fences_nobody_off(kept: Scene, tmp_path: Path) -> None:
    """The store was not restored with the home: it has a later owner's mark, and checkpoints of unknown ids."""
    kept.place.registry.close()
    shutil.copytree(kept.home, tmp_path / "saved")
    kept.reopen()
    for _ in range(3):  # each run claims an epoch
        kept.run_well(["run", 1])
    kept.place.registry.close()
    shutil.rmtree(kept.home)
    shutil.copytree(tmp_path / "saved", kept.home)
    kept.reopen()
    kept.run_well(["run", GROUP])
    kept.assert_golden()


@pytest.mark.recovery
def test_what_is_lost_from_the_store_is_said(kept: Scene) -> None:
    for path in (kept.folder / "states").rglob("*.1"):
        path.unlink()
    kept.run_well(["rewind", 3])
    ended = kept.run(["run", GROUP])
    assert ended.code == 1
    assert "CHECKPOINT_UNREADABLE" in ended.log or "is gone" in ended.log


@pytest.mark.recovery
def test_a_region_goes_back_a_state_if_the_store_lost_the_last_one(
    kept: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(kept.folder)
    monkeypatch.setenv("DRAINMARK_STATE_STORE", kept.settings["state_store"])
    last = kept.history.committed_id
    for path in (kept.folder / "states").rglob(f"{last}.*"):
        path.unlink()
    ended = kept.run(["run", GROUP])
    assert ended.code == 1
    follow(ended.log, "reset", kept.home)
    kept.run_well(["run", GROUP])
    kept.assert_golden()
