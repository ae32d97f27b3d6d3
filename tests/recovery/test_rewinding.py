"""Rewinds to any file, also inside a group: state and sinks are as after the first N files; the replay gives all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from by_hand import HandFed
from scene import Scene, write_file

from drainmark.jobs import failpoints
from drainmark.jobs.failpoints import FailPoint, InjectedFailure
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

Midway = Callable[..., Scene]


def test_rewind_gives_the_first_files_and_replay_the_whole(midway: Midway) -> None:
    """Inside a group of five."""
    scene, to = midway("two_regions", 5), 3
    scene.run_well(["rewind", to])
    scene.assert_sinks(scene.files[:to])
    scene.assert_each_file_once(scene.files[:to])
    assert not scene.history.unpublished
    assert scene.place.registry.pending_count(scene.region) == 5 - to
    with scene.watched():
        scene.run_well(["run", 2])
    scene.assert_golden()
    assert min((n for n in scene.history.states if n > to), default=99) > 6, "the rewind has an id of its own"


def test_rewinds_follow_one_another_and_new_files_come_last(midway: Midway) -> None:
    scene = midway("two_regions", 5)
    scene.run_well(["rewind", 4])
    scene.run_well(["rewind", 2])
    scene.assert_sinks(scene.files[:2])
    new = scene.files[0].with_name("a-new-name-that-sorts-first.csv")
    try:
        write_file(new, "ann,tea,1\n")
        scene.run_well()
    finally:
        new_text = new.read_text()
        new.unlink()
    uris = [row.trigger_uri for row in scene.history.states.values()]
    assert uris == [*map(str, scene.files), str(new)], "triggers above N keep their order and come first (H4)"
    write_file(scene.home / "kept" / new.name, new_text)
    scene.assert_sinks([*scene.files, scene.home / "kept" / new.name])
    scene.assert_ids_never_reused()


def test_a_target_that_is_not_in_force_is_refused(midway: Midway) -> None:
    scene = midway("two_regions", 5)
    scene.run_well(["rewind", 2])
    rows = len(scene.history.states)
    ended = scene.run(["rewind", 3])
    assert ended.code == 2, ended
    assert ended.error["id"] == "REWIND_REFUSED"
    assert len(scene.history.states) == rows
    scene.assert_sinks(scene.files[:2])


def test_a_rewind_below_the_horizon_is_refused(midway: Midway) -> None:
    scene = midway("two_regions", 5)
    ended = scene.run(["rewind", 1, 2])
    assert ended.error["id"] == "REWIND_REFUSED", ended
    scene.assert_sinks()
    scene.assert_each_file_once()


@pytest.mark.parametrize("point", [FailPoint.REWIND_TABLE_BEFORE, FailPoint.NOTE_BEFORE])
def test_lost_inputs_are_passed_also_by_the_owner_that_finishes_a_rewind(tmp_path: Path, point: FailPoint) -> None:
    """Otherwise each of them would halt the region, and the same reset would find nothing to withdraw any more."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    fed = HandFed(place, tmp_path / "inbox")
    for name in "abcd":
        fed.write(name, [name])
    fed.add(*"abcd")
    fed.drain()
    for name in "bd":
        (fed.inbox / name).unlink()
    failpoints.arm(f"{point}:raise")
    try:
        with pytest.raises(InjectedFailure):
            reset(place, plan_reset(place, fed.region, RewindTarget(to=1)), accept_loss=True)
    finally:
        failpoints.arm("")
    assert [Path(row.trigger_uri or "").name for row in fed.history().refused] == ["b", "d"]
    assert [Path(row.trigger_uri or "").name for row in fed.history().withdrawn] == ["c"]
    fed.drain()
    assert [value for _, value in fed.values()] == ["a", "c"]
    lost = place.registry.by_order(fed.region, [2, 4])
    assert [(trigger.status, trigger.sequence_id) for trigger in lost] == [("missing", None)] * 2
    place.registry.close()
