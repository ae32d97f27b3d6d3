"""Permits against a model, with real threads (V126–V138, E21)."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from waiting import SOON, eventually

from drainmark.jobs.errors.operator_code import PermitViolation
from drainmark.jobs.state.handlers.permits import Consistency, OperatorLock, PermitGate

THREADS = ["a", "b", "c"]


class Actor:
    """A thread that calls the functions that it is given, and queues their results."""

    def __init__(self) -> None:
        self.told: queue.Queue[Callable[[], Any] | None] = queue.Queue()
        self.answers: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while (action := self.told.get()) is not None:
            try:
                self.answers.put(action())
            except BaseException as error:
                self.answers.put(error)

    def tell(self, action: Callable[[], Any]) -> None:
        self.told.put(action)

    def ask(self, action: Callable[[], Any]) -> Any:
        self.tell(action)
        return self.answers.get(timeout=SOON)


class Permits(RuleBasedStateMachine):
    """A machine in which threads take permits, release them and request states, while the runtime drains and resets."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = OperatorLock()
        self.gate = PermitGate(self.lock, ask=lambda: None)
        self.actors = {name: Actor() for name in THREADS}
        self.runtime = Actor()
        self.held = dict.fromkeys(THREADS, 0)
        self.waiting: dict[str, str] = {}
        self.is_closing = False
        self.is_exclusive = False
        self.resets = 0
        self.seen: dict[str, int] = {}

    def teardown(self) -> None:
        self.gate.close()
        for actor in [*self.actors.values(), self.runtime]:
            actor.tell(lambda: None)
            actor.told.put(None)

    def idle(self) -> list[str]:
        return [name for name in THREADS if name not in self.waiting]

    @rule(name=st.sampled_from(THREADS))
    def acquire(self, name: str) -> None:
        if name in self.waiting:
            return
        if self.is_closing and not self.held[name]:  # V131, V132: it gets no new permit
            self.actors[name].tell(self.gate.acquire)
            self.waiting[name] = "permit"
            eventually(lambda: self.gate.waiting == len(self.waiting))
            return
        self.granted(name, self.actors[name].ask(self.gate.acquire))

    def granted(self, name: str, permit: Any) -> None:
        assert permit.resets == self.resets
        assert permit.was_reset == (self.seen.get(name, self.resets) != self.resets), "V134"
        self.seen[name] = self.resets
        self.held[name] += 1

    @rule(name=st.sampled_from(THREADS))
    def release(self, name: str) -> None:
        if name in self.waiting:
            return
        answer = self.actors[name].ask(self.gate.release)
        if not self.held[name]:
            assert isinstance(answer, PermitViolation)
            return
        assert answer is None
        self.held[name] -= 1
        self.after_release()

    def after_release(self) -> None:
        if self.is_closing and not self.is_exclusive and not any(self.held.values()):
            assert self.runtime.answers.get(timeout=SOON) is True
            self.is_exclusive = True

    @rule(name=st.sampled_from(THREADS))
    def submit(self, name: str) -> None:
        """V128: a thread may submit only if it holds a permit."""
        if name not in self.waiting:
            answer = self.actors[name].ask(self.gate.require)
            assert (answer is None) == bool(self.held[name])

    @rule(name=st.sampled_from(THREADS))
    def acquire_under_the_lock(self, name: str) -> None:
        """V135: only a thread that holds a permit may acquire one under the lock."""

        def wrong() -> None:
            with self.lock:
                self.gate.acquire()

        if name in self.waiting:
            return
        answer = self.actors[name].ask(wrong)
        if self.held[name]:
            assert answer is None
            self.held[name] += 1
        else:
            assert isinstance(answer, PermitViolation)

    @rule(name=st.sampled_from(THREADS))
    def make_consistent(self, name: str) -> None:
        if name in self.waiting or not self.held[name]:
            return
        self.actors[name].tell(self.gate.make_consistent)
        self.waiting[name] = "begun" if self.is_closing else "asked"
        self.depth = getattr(self, "depth", {}) | {name: self.held[name]}
        self.held[name] = 0
        eventually(lambda: self.gate.waiting == len(self.waiting))
        self.after_release()

    @precondition(lambda self: not self.is_closing)
    @rule(is_drain=st.booleans())
    def begin(self, is_drain: bool) -> None:
        """V129, V130: it begins when every permit is released; the drain callback runs while permits are held."""
        drained: list[str] = []
        self.is_drain = is_drain
        if is_drain:
            self.runtime.tell(lambda: self.gate.drain(lambda: drained.append("drained"), SOON))
        else:
            self.runtime.tell(lambda: self.gate.stop(SOON, for_reset=True))
        eventually(lambda: not self.gate.is_open)
        assert drained == (["drained"] if is_drain else [])
        self.is_closing = True
        if is_drain:
            self.waiting = {name: "begun" if why == "asked" else why for name, why in self.waiting.items()}
        self.after_release()

    @precondition(lambda self: self.is_exclusive)
    @rule(is_reset=st.booleans())
    def resume(self, is_reset: bool) -> None:
        """V133, V134, E21: a thread that waited for a permit has it; one that waited for a state knows the outcome."""
        is_reset = is_reset or not self.is_drain
        self.is_closing = self.is_exclusive = False
        self.resets += is_reset
        self.gate.resume(after_reset=is_reset)
        if not is_reset:
            self.gate.completed()
        for name, why in list(self.waiting.items()):
            if why == "permit":
                del self.waiting[name]
                self.granted(name, self.actors[name].answers.get(timeout=SOON))
            elif is_reset or why == "begun":
                del self.waiting[name]
                assert self.actors[name].answers.get(timeout=SOON) is (not is_reset)
                self.held[name] = self.depth[name]
                self.seen[name] = self.resets
        eventually(lambda: self.gate.waiting == len(self.waiting))

    @rule()
    def who_was_given_up_comes_late(self) -> None:
        """V105: the calls of an attempt that was given up belong to another life, and have no effect."""
        late, is_open = self.gate.life - 1, self.gate.is_open
        self.gate.resume(life=late)
        assert not self.gate.stop(SOON, life=late)
        if is_open:
            assert self.runtime.ask(lambda: self.gate.drain(lambda: None, SOON, life=late)) is False
        assert self.gate.is_open == is_open

    @invariant()
    def as_many_hold_permits_as_the_model_says(self) -> None:
        assert self.gate.held == sum(1 for held in self.held.values() if held)
        assert not (self.is_exclusive and self.gate.held), "V129"
        assert self.gate.is_open != self.is_closing


TestPermits = Permits.TestCase
TestPermits.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestPermits.pytestmark = [pytest.mark.seed("V128", "V129", "V132", "V133", "V134")]


@pytest.mark.seed("V130", "E22")
def test_while_drain_runs_permits_are_given_and_afterwards_none() -> None:
    gate = PermitGate()
    other, blocked = Actor(), Actor()

    def drain() -> None:
        gate.require()
        assert other.ask(gate.acquire).resets == 0
        assert other.ask(gate.release) is None

    assert gate.drain(drain, SOON)
    blocked.tell(gate.acquire)
    eventually(lambda: gate.waiting == 1)
    assert gate.held == 0
    gate.resume()
    assert not blocked.answers.get(timeout=SOON).was_reset


@pytest.mark.seed("E21")
def test_a_thread_may_go_on_while_the_checkpoint_is_pending() -> None:
    asked: list[str] = []
    gate = PermitGate(ask=lambda: asked.append("asked"))
    start = Actor()
    start.ask(gate.acquire)
    outcomes = []
    for ending in ("pending", "completed", "reset"):
        start.tell(gate.make_consistent_non_blocking)
        eventually(lambda: gate.waiting == 1)
        assert gate.drain(lambda: None, SOON)
        if ending == "reset":
            gate.resume(after_reset=True)
        elif ending == "completed":
            with gate._changed:  # both at once, as if nothing is written in the background
                gate.is_open = False
                gate.resumed = gate._completed = gate._begun
                gate.is_open = True
                gate._changed.notify_all()
        else:
            gate.resume()
        outcomes.append(start.answers.get(timeout=SOON))
        gate.completed()
    assert outcomes == [Consistency.CHECKPOINT_PENDING, Consistency.COMPLETED, Consistency.FAILED]
    assert asked == ["asked"] * 3
    assert isinstance(start.ask(gate.make_consistent), PermitViolation), "the two are not mixed"
    assert gate.held == 1


@pytest.mark.seed("V131")
def test_a_permit_that_is_not_given_back_bounds_the_wait() -> None:
    gate = PermitGate()
    holder = Actor()
    holder.ask(gate.acquire)
    assert not gate.stop(0.05)
    assert not gate.is_open
    holder.ask(gate.release)
    assert gate.stop(SOON)


@pytest.mark.seed("V105", "V131")
def test_who_began_before_a_reset_leaves_the_gate_as_it_is() -> None:
    gate = PermitGate()
    before = gate.life
    assert gate.stop(SOON, for_reset=True)
    gate.resume(life=before)
    assert not gate.is_open, "the reset goes on"
    gate.resume(after_reset=True)
    assert not gate.stop(SOON, life=before)
    assert gate.is_open
    assert gate.stop(SOON, life=gate.life)
    gate.resume(life=gate.life)
    assert gate.is_open


@pytest.mark.seed("V105", "V131", "E10")
def test_a_drain_that_awaits_its_permit_through_a_reset_leaves_the_next_life_open() -> None:
    gate, late, before = PermitGate(), Actor(), PermitGate().life
    assert gate.stop(SOON, for_reset=True)
    late.tell(lambda: gate.drain(lambda: None, SOON, life=before))
    eventually(lambda: gate.waiting == 1)
    gate.resume(after_reset=True)
    assert late.answers.get(timeout=SOON) is False
    assert gate.is_open
    assert gate.drain(lambda: None, SOON, life=gate.life)


@pytest.mark.seed("V105", "V131")
def test_who_waits_for_permits_when_a_reset_begins_is_told() -> None:
    gate, holder, waiter = PermitGate(), Actor(), Actor()
    holder.ask(gate.acquire)
    found: list[bool] = []
    life = gate.life
    waiter.tell(lambda: found.append(gate.stop(SOON, life=life)))
    eventually(lambda: not gate.is_open)
    assert not gate.stop(0.05, for_reset=True)
    holder.ask(gate.release)
    eventually(lambda: bool(found))
    assert found == [False]


def test_the_end_of_a_run_wakes_who_waits() -> None:
    gate = PermitGate()
    gate.stop(SOON)
    actor = Actor()
    actor.tell(gate.acquire)
    eventually(lambda: gate.waiting == 1)
    gate.close()
    assert isinstance(actor.answers.get(timeout=SOON), PermitViolation)


@pytest.mark.seed("V126", "V127", "V135", "V136", "V137")
def test_every_cut_agrees_with_what_was_submitted() -> None:
    """Figure 6: threads build tuples from a counter under permits; at each cut, the counter is the submitted count."""
    lock = OperatorLock()
    gate = PermitGate(lock)
    counter, submitted, is_over = [0], [], threading.Event()

    def source() -> None:
        while not is_over.is_set():
            with gate.permit(), lock:
                for _ in range(3):  # several submissions under one permit
                    gate.require()
                    submitted.append(counter[0])
                    counter[0] += 1

    threads = [threading.Thread(target=source, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for cut in itertools.count(1):
        assert gate.drain(lambda: None, SOON)
        assert counter[0] == len(submitted)
        assert submitted == list(range(counter[0]))
        assert counter[0] % 3 == 0
        gate.resume()
        gate.completed()
        if cut >= 50 and counter[0] > 300:
            break
    is_over.set()
    for thread in threads:
        thread.join(SOON)
