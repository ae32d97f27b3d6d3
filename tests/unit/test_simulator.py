"""The simulator itself: one script is one history, what it finds it can make small, and it waits for nobody."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from by_hand import HandFed
from deltalake.exceptions import DeltaError
from simulation import turns
from simulation.scene import phases, setup_of
from simulation.script import Script, Step
from simulation.shrink import shrink
from simulation.simulated import Simulated
from simulation.turns import Deadlock, Died, Hung, Stray
from sqlalchemy.exc import OperationalError

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.world import Seam
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

RATES = {"switch": 0.2, "sample": 0.02, "pause": 0.01, "crash_before": 0.005, "crash_after": 0.01, "error": 0.02,
         "lost_reply": 0.02, "doubled": 0.05, "stale": 0.1, "clock_jump": 0.01, "full_disk": 0.005}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    regions: int = 1
    sinks: tuple[str, ...] = ()
    epoch: float = 2e9
    rates: Mapping[str, float] = field(default_factory=lambda: RATES)
    hot: str = ""
    stall: str = ""


def script(seed: int, *, phases: int = 2, steps: int = 3, actors: str = "ABZ", **setup: object) -> Script:
    numbers = iter(range(1, 1000))
    return Script(
        seed=seed,
        setup=Setup(**setup),  # type: ignore[arg-type]
        phases=tuple(
            tuple(Step(id=next(numbers), actor=actor, verb="run", region="r") for _ in range(steps) for actor in actors)
            for _ in range(phases)
        ),
    )


Deed = Callable[["Toy", Step], None]


@dataclass
class Toy:
    """A history in which each step does the same."""

    script: Script
    home: Path
    deed: Deed
    seen: list[object] = field(default_factory=list)
    looks: int = 0
    simulated: Simulated | None = None

    def play(self) -> Simulated:
        self.simulated = simulated = Simulated(self.script, self.home)
        for steps in self.script.phases:
            work: dict[str, list[tuple[Step, Callable[[], None]]]] = {}
            for step in steps:
                work.setdefault(step.actor, []).append((step, lambda step=step: self.deed(self, step)))
            simulated.run(work, self.look)
        return simulated

    def look(self) -> None:
        self.looks += 1


def busy(toy: Toy, step: Step) -> None:
    """Cross every seam, beside a thread that sleeps and then wakes this one."""
    woken = world.event()

    def beside() -> None:
        for _ in range(5):
            world.sleep(world.between(0, 2))
            toy.seen.append((step.id, "beside", world.now()))
        woken.set()

    thread = world.start(beside, "beside")
    for seam in Seam:
        with suppress(Exception):
            world.across(seam, lambda: toy.seen.append((step.id, world.token())), toy.home / seam)
        world.pass_point("between")
        with suppress(OperationalError), world.transaction(Seam.REGISTRY_WRITE):
            toy.seen.append((step.id, world.monotonic()))
    woken.wait()
    thread.join()


def test_one_seed_is_one_history_whatever_was_played_before(tmp_path: Path) -> None:
    first = [Toy(script(seed), tmp_path, busy) for seed in range(8)]
    digests = [toy.play().digest() for toy in first]
    assert len(set(digests)) == 8
    for seed in (5, 2, 7, 0):
        again = Toy(script(seed), tmp_path, busy)
        assert (again.play().digest(), again.seen) == (digests[seed], first[seed].seen)


def test_the_choices_that_a_seed_made_are_the_same_history_as_a_script(tmp_path: Path) -> None:
    for seed in range(8):
        drawn = Toy(script(seed), tmp_path, busy)
        played = drawn.play()
        told = Toy(replace(drawn.script, seed=seed, choices=played.made), tmp_path, busy)
        assert (told.play().digest(), told.seen, told.looks) == (played.digest(), drawn.seen, drawn.looks)


def test_a_script_is_kept_as_json() -> None:
    setup = setup_of(7)
    told = Script(seed=7, setup=setup, phases=phases(7, setup), choices={"1.0/3": "pause:50"})
    assert Script.from_json(told.to_json()) == told


def test_every_kind_of_fault_meets_a_verb(tmp_path: Path) -> None:
    met = {fault for seed in range(8) for fault, _, _ in Toy(script(seed), tmp_path, busy).play().counters}
    assert met == set(RATES)


# --- processes ----------------------------------------------------------------------------------------------------


def one(tmp_path: Path, deed: Deed, choices: Mapping[str, str] | None = None, actors: str = "A", steps: int = 1) -> Toy:
    """Play one phase, in which nothing happens but the choices; steps are numbered from 1."""
    toy = Toy(replace(script(1, phases=1, steps=steps, actors=actors), choices=choices or {}), tmp_path, deed)
    toy.play()
    return toy


def write(toy: Toy, *what: object) -> None:
    world.across(Seam.STORE_WRITE, lambda: toy.seen.append(what), toy.home)


def test_a_crash_ends_all_threads_of_the_process_with_no_effect_more_and_the_actor_goes_on(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        def beside() -> None:
            try:
                for number in range(9):
                    write(toy, step.id, "beside", number)
                    world.sleep(1)
            finally:
                write(toy, step.id, "after all")

        thread = world.start(beside, "beside")
        try:
            world.sleep(2.5)
            write(toy, step.id)
            thread.join()
        finally:
            write(toy, step.id, "after all")

    toy = one(tmp_path, deed, {"1.0/3": "crash_after"}, steps=2)
    mine = [what[1:] for what in toy.seen if what[0] == 1]  # type: ignore[index]
    assert mine == [("beside", 0), ("beside", 1), ("beside", 2), ()]
    assert len([what for what in toy.seen if what[0] == 2]) == 9 + 1 + 2  # type: ignore[index]


def test_a_step_that_ends_ends_its_threads(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        world.start(lambda: [write(toy, n) or world.sleep(1) for n in range(9)], "beside")  # type: ignore[func-returns-value]
        world.sleep(1.5)

    assert one(tmp_path, deed).seen == [(0,), (1,)]


def test_threads_that_all_wait_are_a_finding(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        try:
            world.event().wait()
        finally:
            write(toy, "never")

    toy = Toy(replace(script(1), choices={}), tmp_path, deed)
    with pytest.raises(Deadlock, match=r"A\.0, B\.0, Z\.0"):
        toy.play()
    assert toy.seen == []


def test_a_thread_that_the_world_did_not_start_is_a_finding(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        def beside() -> None:
            with suppress(Stray):
                write(toy)

        thread = threading.Thread(target=beside, daemon=True)
        thread.start()
        thread.join()

    with pytest.raises(Stray, match="was started beside the world"):
        one(tmp_path, deed)


def test_the_error_of_a_step_or_of_a_thread_is_a_finding_and_ends_the_history(tmp_path: Path) -> None:
    def step_fails(toy: Toy, step: Step) -> None:
        raise KeyError("mine")

    def thread_fails(toy: Toy, step: Step) -> None:
        world.start(lambda: step_fails(toy, step), "beside")
        world.sleep(1)
        write(toy, "never")

    with pytest.raises(KeyError, match="mine"):
        one(tmp_path, step_fails, actors="AB")
    with pytest.raises(Died, match="KeyError"):
        one(tmp_path, thread_fails, actors="AB")


def test_a_reader_comes_while_no_actor_runs_and_its_error_ends_the_history(tmp_path: Path) -> None:
    class Read(Toy):
        def look(self) -> None:
            super().look()
            world.start(lambda: write(self, "looked"), "reader").join()
            write(self, "read")
            assert self.looks < 2, "seen"

    def deed(toy: Toy, step: Step) -> None:
        write(toy, step.id)

    toy = Read(replace(script(1), choices={"1.0/1": "sample", "4.0/1": "sample"}), tmp_path, deed)
    with pytest.raises(AssertionError, match="seen"):
        toy.play()
    assert toy.seen == [("looked",), ("read",), (1,), ("looked",), ("read",)]


def test_a_thread_that_waits_for_a_real_lock_is_a_finding_with_its_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "HUNG_SECONDS", 0.2)
    lock = threading.Lock()
    lock.acquire()

    def deed(toy: Toy, step: Step) -> None:
        lock.acquire()

    with pytest.raises(Hung, match=r"lock\.acquire"):
        one(tmp_path, deed)


# --- the order and the clock --------------------------------------------------------------------------------------


def test_nobody_acts_beside_an_open_transaction_even_if_its_process_sleeps_in_it(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        for _ in range(5):
            with suppress(OperationalError), world.transaction(Seam.REGISTRY_WRITE):
                toy.seen.append((step.id, "begins"))
                world.pass_point("inside")
                world.sleep(1)
                toy.seen.append((step.id, "ends"))

    toy = Toy(script(4, rates={"switch": 0.9, "pause": 0.05, "error": 0.02}), tmp_path, deed)
    toy.play()
    assert len(toy.seen) > 100
    for first, second in zip(toy.seen[::2], toy.seen[1::2], strict=True):
        assert first[0] == second[0]  # type: ignore[index]


def test_a_lost_reply_of_a_transaction_comes_after_its_end(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        with pytest.raises(OperationalError, match="locked"), world.transaction(Seam.REGISTRY_WRITE):
            toy.seen.append("done")

    assert one(tmp_path, deed, {"1.0/1": "lost_reply:2"}).seen == ["done"]
    assert one(tmp_path, deed, {"1.0/1": "error:2"}).seen == []


def test_sleep_takes_no_time_and_moves_the_clock_for_all(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        begun, at = world.monotonic(), world.now()
        world.sleep(3600.0 * step.id)
        toy.seen.append((round(world.monotonic() - begun), round(world.now() - at)))

    toy = one(tmp_path, deed, actors="ZBA")
    assert toy.seen == [(3600, 3600), (7200, 7200), (10800, 10800)]


def test_a_clock_that_jumps_back_leaves_durations_alone(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        begun, at = world.monotonic(), world.now()
        world.pass_point("here")
        toy.seen.append((round(world.monotonic() - begun), round(world.now() - at)))

    assert one(tmp_path, deed, {"1.0/1": "clock_jump:-3600"}).seen == [(0, -3600)]


def test_a_paused_process_wakes_after_longer_than_a_lease(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        for _ in range(300):
            world.pass_point("here")
        toy.seen.append((step.actor, round(world.monotonic())))

    toy = one(tmp_path, deed, {"1.0/9": "pause:200"}, actors="AB")
    assert [actor for actor, _ in toy.seen] == ["B", "A"]  # type: ignore[misc]
    assert toy.seen[-1][1] > 15  # type: ignore[index]  # longer than a lease


def test_a_machine_that_is_lost_takes_all_other_processes_along(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        if step.id == 2 and toy.simulated is not None:
            toy.simulated.kill_others()
        for number in range(3):
            write(toy, step.id, number)

    toy = one(tmp_path, deed, {"1.0/2": "switch:0"}, actors="AB", steps=2)
    assert [seen for seen in toy.seen if seen[0] == 1] == [(1, 0)]  # type: ignore[index]
    assert {seen[0] for seen in toy.seen} == {1, 2, 3, 4}, "the actor of 1 goes on"  # type: ignore[index]


def test_a_commit_that_a_client_puts_twice_is_there_once_and_refused(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        with pytest.raises(FileExistsError):
            world.across(Seam.DELTA_COMMIT, lambda: toy.seen.append(step.id), toy.home)

    assert one(tmp_path, deed, {"1.0/1": "doubled"}).seen == [1]


def test_files_have_the_time_of_the_simulation(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        (toy.home / "new").write_text("x")
        found = world.across(Seam.STORE_LIST, lambda: {"new": (toy.home / "new").stat().st_mtime}, toy.home)
        toy.seen.append(round(world.now() - found["new"]))
        world.pass_point("here")
        toy.seen.append(round(world.now() - (toy.home / "new").stat().st_mtime))

    assert one(tmp_path, deed, {"1.0/2": "clock_jump:172800"}).seen == [0, 172800]


def test_a_stale_listing_is_that_of_an_earlier_call(tmp_path: Path) -> None:
    def names(folder: Path) -> list[str]:
        return sorted(each.name for each in folder.iterdir())

    def deed(toy: Toy, step: Step) -> None:
        for name in ("a", "b", "c"):
            (toy.home / name).touch()
            toy.seen.append(world.across(Seam.STORE_LIST, partial(names, toy.home), toy.home))

    assert one(tmp_path, deed, {"1.0/3": "stale"}).seen == [["a"], ["a", "b"], ["a", "b"]]


def test_garbage_acts_at_the_end_of_its_step_whatever_was_made_before(tmp_path: Path) -> None:
    def deed(toy: Toy, step: Step) -> None:
        def waiting() -> Iterator[None]:
            try:
                yield
            finally:
                toy.seen.append(step.id)

        kept: list[object] = [waiting()]
        next(kept[0])  # type: ignore[call-overload]
        kept.append(kept)
        for _ in range(100_000):
            [[] for _ in range(3)]
        toy.seen.append("made")

    assert one(tmp_path, deed, steps=2).seen == ["made", 1, "made", 2]


# --- the protocol -------------------------------------------------------------------------------------------------


def owns(toy: Toy, step: Step) -> None:
    """Own a region as if there were no lease, and process some of its files."""
    settings = Settings(home=toy.home / "home", project_root=toy.home, lease_seconds=1e-6)
    region = HandFed(Workplace(settings), toy.home / "inbox")
    with suppress(DrainmarkError, OSError, DeltaError), region.owning():
        for _ in range(3):
            if region.workplace.registry.pending_count(region.region):
                region.process(2)
        toy.seen.append((step.id, region.values()))
    region.workplace.registry.close()


def owned(home: Path, told: Script) -> tuple[str, Sequence[object], Mapping[str, str]]:
    shutil.rmtree(home, ignore_errors=True)
    toy = Toy(told, home, owns)
    region = HandFed(Workplace(Settings(home=home / "home", project_root=home)), home / "inbox")
    for number in range(8):
        region.write(f"{number}.txt", [f"{number}"])
        os.utime(home / "inbox" / f"{number}.txt", (number, number))
        region.add(f"{number}.txt")
    region.workplace.registry.close()
    played = toy.play()
    return played.digest(), toy.seen, played.made


def test_owners_of_a_region_on_real_tables_act_the_same_in_every_play(tmp_path: Path) -> None:
    rates = {**RATES, "error": 0.002, "crash_before": 0.002, "crash_after": 0.002, "lost_reply": 0.01, "stale": 0.0}
    ended = 0
    for seed in range(6):
        drawn = script(seed, phases=1, steps=2, actors="AB", rates=rates)
        digest, seen, made = owned(tmp_path / "base", drawn)
        owned(tmp_path / "base", replace(drawn, seed=seed + 100))
        assert owned(tmp_path / "base", replace(drawn, choices=made))[:2] == (digest, seen)
        ended += len(seen)
    assert ended, "a fault ended each step of every seed before the end of its files: nothing was compared"


# --- shrinking ----------------------------------------------------------------------------------------------------


def test_a_fault_is_shrunk_to_the_steps_and_choices_that_it_needs(tmp_path: Path) -> None:
    def lossy(toy: Toy, step: Step) -> None:
        """Count by reading and writing with nothing between them that keeps others away."""
        for _ in range(3):
            with suppress(OSError):
                counted = world.across(Seam.STORE_READ, lambda: len(toy.seen), toy.home)
                world.pass_point("between")
                world.across(Seam.STORE_WRITE, lambda n=counted: toy.seen.append(n), toy.home)

    def fails(tried: Script) -> Mapping[str, str] | None:
        toy = Toy(tried, tmp_path, lossy)
        made = toy.play().made
        return made if len(set(toy.seen)) < len(toy.seen) else None

    rates = {**RATES, "doubled": 0.0}
    found = next(each for n in range(50) if fails(each := script(n, phases=3, rates=rates)) is not None)
    small = shrink(found, fails, seconds=30)
    assert fails(small) is not None
    steps = [step for phase in small.phases for step in phase]
    assert (len(small.phases), len(steps), len(small.choices or {})) == (1, 2, 1)
