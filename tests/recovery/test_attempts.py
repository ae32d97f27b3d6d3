"""Attempts, halt, resume, skip, time-outs and signals (E14–E18, V36–V38, H31)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from graphs import Build, fragile, hanging
from scene import Scene, write_file
from waiting import eventually

from drainmark.orchestration.testing.crash.children import Ended, Nursery
from drainmark.orchestration.verbs import interventions

MakeScene = Callable[[Build], Scene]
Midway = Callable[..., Scene]

HALTED = 3
INTERRUPTED = 130
GOOD = ("a\nb\n", "b\nc\n", "c\nc\na\n", "d\n")
POISON_PLACE = 1


def poisoned(scene: Scene) -> list[Ended]:
    """Give a scene three files, the second with poison, and run it until it halts; return how the runs ended."""
    for number, text in enumerate((*GOOD[:POISON_PLACE], "a\nPOISON\n", *GOOD[POISON_PLACE:2])):
        scene.add(scene.folder / "in" / f"{number}.txt", text)
    with scene.watched():
        runs = [scene.run(["scan"], ["run"]) for _ in range(3)]
    assert [ended.code for ended in runs] == [1, 1, HALTED]
    return runs


@pytest.fixture(scope="module")
def once(nursery: Nursery, connect: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, Sequence[Ended]]:
    """Return a region that halted on its poison, and how each run ended. Tests copy it."""
    scene = fragile(nursery, connect, tmp_path_factory.mktemp("halted"))
    return scene, poisoned(scene)


@pytest.fixture
def halted(once: tuple[Scene, Sequence[Ended]], tmp_path: Path) -> Iterator[tuple[Scene, Path]]:
    """Yield a copy of that region on the same files, and its poison file."""
    scene = once[0].copied_to(tmp_path)
    yield scene, scene.files[POISON_PLACE]
    scene.place.registry.close()


def test_a_poison_file_ends_up_alone_and_named(halted: tuple[Scene, Path], once: tuple[Scene, Sequence[Ended]]) -> None:
    (scene, poison), (_, (ended, *_)) = halted, once
    assert ended.error["id"] == "OPERATOR_FAILED"
    assert ended.error["operator"] == "checked"
    assert "poison" in ended.error["message"]
    assert ended.error["facts"]["trigger"] == str(poison)
    assert ended.steps("failed")[0]["triggers"] == 3, "it was in the middle of a group"
    scene.assert_sinks(scene.files[:POISON_PLACE])
    scene.assert_each_file_once(scene.files[:POISON_PLACE])


@pytest.mark.seed("V106")
def test_a_region_halts_after_its_attempts_and_says_why(halted: tuple[Scene, Path]) -> None:
    scene, poison = halted
    history = scene.history
    assert history.halt is not None
    assert history.halt.detail["trigger"] == str(poison)
    assert history.halt.detail["operator"] == "checked"
    assert "poison" in history.halt.detail["error"]["message"]
    assert scene.attempts_at_claims() == [0, 1, 2]
    again = scene.run(["run"])
    assert again.code == HALTED, again
    assert again.error["id"] == "HALTED"
    assert str(poison) in again.error["message"]
    assert scene.attempts_at_claims() == [0, 1, 2, 2], "asking a halted region counts nothing"
    scene.assert_sinks(scene.files[:POISON_PLACE])


@pytest.mark.recovery
def test_crashes_in_a_row_halt_too(build: MakeScene) -> None:
    """A process killed for lack of memory cannot count its attempt; the next claim counts it."""
    scene = build(fragile)
    for number, text in enumerate(GOOD):
        scene.add(scene.folder / "in" / f"{number}.txt", text)
    scene.run_well(["scan"])
    for _ in range(3):
        scene.run_killed(["run"], failpoints="drain.before:kill")
    ended = scene.run(["run"])
    assert ended.code == HALTED, ended
    assert scene.history.halt is not None
    assert scene.history.halt.detail["trigger"] == str(scene.files[0])
    assert scene.attempts_at_claims() == [0, 1, 2, 3]
    interventions.resume(scene.place, scene.region, "more memory")
    scene.run_well(["run"])
    scene.assert_golden()


@pytest.mark.recovery
def test_resume_grants_a_fresh_budget(halted: tuple[Scene, Path]) -> None:
    scene, _ = halted
    interventions.resume(scene.place, scene.region, "try again")
    assert scene.history.attempts == 0
    assert [scene.run(["run"]).code for _ in range(3)] == [1, 1, HALTED]
    scene.assert_sinks(scene.files[:POISON_PLACE])


@pytest.mark.recovery
def test_skip_passes_the_poison(halted: tuple[Scene, Path]) -> None:
    scene, poison = halted
    done = interventions.skip(scene.place, scene.region, [str(poison)], "nobody needs it")
    assert done["is_resumed"]
    scene.run_well(["scan"], ["run"])
    scene.assert_sinks([path for path in scene.files if path != poison])
    scene.assert_each_file_once()
    scene.assert_nothing_left()
    scene.run_well(["scan"], ["run"])
    scene.assert_each_file_once()


@pytest.mark.recovery
def test_a_mended_file_is_taken_and_the_old_one_is_superseded(build: MakeScene) -> None:
    scene = build(fragile)
    poisoned(scene)
    poison = scene.files[POISON_PLACE]
    write_file(poison, "a\nnow it is well\n", at=1_000_000_500)
    interventions.resume(scene.place, scene.region, "mended")
    scene.run_well(["scan"], ["run"])
    scene.assert_sinks()
    scene.assert_nothing_left()
    scene.assert_ids_never_reused()
    uris = [row.trigger_uri for row in scene.history.states.values()]
    assert sorted(map(str, uris)) == sorted(map(str, scene.files)), "each file once"
    seen = scene.place.registry.triggers.by_uri(scene.region, str(poison))
    assert [trigger.status.value for trigger in seen] == ["superseded", "committed"]


# --- time-outs ----------------------------------------------------------------------------------------------------


@pytest.mark.seed("V97")
@pytest.mark.recovery
def test_a_driver_that_hangs_is_left_behind(build: MakeScene) -> None:
    scene = build(hanging)
    for number, text in enumerate(GOOD[:2]):
        scene.add(scene.folder / "in" / f"{number}.txt", text)
    hang = scene.folder / "hang"
    hang.touch()
    ended = scene.run(["scan"], ["run", 1])
    assert ended.code == 1, ended
    assert ended.error["id"] == "DRAIN_TIMEOUT"
    hang.unlink()
    scene.run_well(["run"])
    scene.assert_golden()
    assert scene.attempts_at_claims() == [0, 1]


@pytest.mark.recovery
def test_a_worker_that_hangs_is_cancelled(build: MakeScene) -> None:
    scene = build(hanging)
    good = scene.add(scene.folder / "in" / "0.txt", GOOD[0])
    bad = scene.add(scene.folder / "in" / "1.txt", "SLEEP\n")
    ended = scene.run(["scan"], ["run"])
    assert ended.code == 1, ended
    assert ended.error["id"] == "DRAIN_TIMEOUT"
    assert ended.error["facts"]["trigger"] == str(bad)
    scene.assert_sinks([good])
    eventually(lambda: has_died(int((scene.folder / "pid").read_text())), "a cancelled job leaves no worker")
    interventions.skip(scene.place, scene.region, [str(bad)], "it never ends")
    scene.run_well(["run"])
    scene.assert_sinks([good])
    scene.assert_nothing_left()


def has_died(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.seed("V106")
@pytest.mark.recovery
def test_a_reset_that_hangs_is_an_attempt(build: MakeScene) -> None:
    scene = build(hanging)
    for number, text in enumerate(GOOD):
        scene.add(scene.folder / "in" / f"{number}.txt", text)
    scene.run_killed(["scan"], ["run", 2], failpoints="checkpoint.after_commit:kill")
    ended = scene.run(["run"], failpoints="roll_forward.before:hang=60")
    assert ended.code == 1, ended
    assert ended.error["id"] == "RESET_TIMEOUT"
    scene.run_well(["run"])
    scene.assert_golden()
    assert scene.attempts_at_claims() == [0, 1, 2]


# --- signals ------------------------------------------------------------------------------------------------------


@pytest.mark.recovery
def test_a_signal_lets_a_group_finish_and_costs_no_attempt(midway: Midway) -> None:
    scene = midway("two_regions")
    child = scene.start(["run", 1], failpoints="process.before:stop")
    child.await_stopped()
    child.signal(signal.SIGTERM)
    child.signal(signal.SIGCONT)
    ended = child.wait()
    assert ended.code == INTERRUPTED, ended
    assert len(scene.history.states) in (2, 3), "the group under way was finished, or given up; no other was begun"
    scene.run_well(["run"])
    scene.assert_golden()
    assert scene.attempts_at_claims() == [0, 0, 0]


@pytest.mark.recovery
def test_a_group_that_cannot_finish_after_a_signal_is_abandoned(midway: Midway) -> None:
    scene = midway("two_regions")
    child = scene.start(["run", 1], failpoints="process.staged:hang=60")
    child.await_step("claim")
    time.sleep(2.0)
    child.signal(signal.SIGTERM)
    ended = child.wait()
    assert ended.code == INTERRUPTED, ended
    assert len(scene.history.states) == 2
    scene.run_well(["run"])
    scene.assert_golden()
    assert scene.attempts_at_claims() == [0, 0, 0]
