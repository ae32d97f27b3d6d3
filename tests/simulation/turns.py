"""Threads of which one runs at a time, in an order that a choice decides, with a clock that only they move.

Each has an OS thread of its own, and stands at a lock of its own unless it is its turn. The one that gives way wakes
the next one itself, so that a turn costs one switch of the system.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from simulation.script import Step

HUNG_SECONDS = 300.0
_CALL_SECONDS = 1e-6  # asking for the time takes time, so that no loop waits for ever and no duration is 0
_TICK_SECONDS = 0.001
_TICK_OF_PAUSES = 0.1  # while a process stands still, the clock runs faster: leases end within a few hundred seams


class Crashed(BaseException):
    """The process of this thread is dead: the thread must end without any further effect."""


class Deadlock(AssertionError):
    """All threads wait, and none of them can wake another."""


class Hung(AssertionError):
    """The thread whose turn it is waits for something that the simulation does not know, such as a real lock."""


class Stray(AssertionError):
    """A thread that the world did not start reached a seam."""


class Died(AssertionError):
    """A thread ended by an error."""


@dataclass(eq=False, slots=True)
class Process:
    """What dies at once.

    Attributes:
        is_calm: nothing happens at its seams.
        paused_until: it stands still before so many ticks have passed.
    """

    name: str
    step: Step | None = None
    is_calm: bool = False
    is_dead: bool = False
    paused_until: int = 0
    threads: list[SimThread] = field(default_factory=list)


@dataclass(eq=False, slots=True, weakref_slot=True)
class SimThread:
    """A thread of a process.

    Attributes:
        passed: how many seams.
        drawn: how many tokens and numbers.
        holds: how many transactions are open, for which others would wait in real time.
        awaits: what it waits for; None if it could run.
        until: the end of its waiting, in seconds of the clock.
    """

    turns: Turns
    process: Process
    number: int
    passed: int = 0
    drawn: int = 0
    holds: int = 0
    awaits: Callable[[], bool] | None = None
    until: float | None = None
    has_ended: bool = False
    ident: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.lock.acquire()

    @property
    def label(self) -> str:
        step = self.process.step
        return f"{step.actor if step else self.process.name}.{self.number}"

    @property
    def key(self) -> str:
        """Name the seam it has come to, in choices."""
        step = self.process.step
        return f"{step.id if step else self.process.name}.{self.number}/{self.passed}"

    def join(self, timeout: float | None = None) -> None:
        self.turns.wait(lambda: self.has_ended, timeout)

    def is_alive(self) -> bool:
        return not self.has_ended

    def is_ready(self, ticks: int, now: float) -> bool:
        if self.process.paused_until > ticks:
            return False
        return self.awaits is None or self.awaits() or (self.until is not None and self.until <= now)


class SimEvent:
    """An event for which threads wait in the time of the simulation."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._turns.wait(self.is_set, timeout)


class Turns:
    """Who runs.

    Args:
        pick: chooses among at least two threads that are ready, when one gives way or cannot go on.

    Attributes:
        now: seconds of the clock since the beginning; they never go back.
        ticks: how many seams were reached.
        finding: the first error that ends the history.
    """

    def __init__(self, pick: Callable[[SimThread, Sequence[SimThread]], SimThread]) -> None:
        self._pick = pick
        self.now = 0.0
        self.ticks = 0
        self.switches = 0
        self.finding: BaseException | None = None
        self._alive: list[SimThread] = []
        self._only: Process | None = None
        self._running: SimThread | None = None
        self._paused_until = 0
        self._calms = 0
        self._local = threading.local()
        self._is_playing = False
        self._over = threading.Lock()
        self._over.acquire()

    # --- the thread that runs ------------------------------------------------------------------------------------

    def here(self) -> SimThread:
        """Return the thread of the caller.

        Raises:
            Stray: the world did not start it.
        """
        try:
            return self._local.thread  # type: ignore[no-any-return]
        except AttributeError:
            pass
        if self._is_playing:
            stray = Stray(f"{threading.current_thread().name} was started beside the world, and reached a seam")
            self.find(stray)
            raise stray
        thread = self._added(self._calm_process())
        self._local.thread = self._running = thread
        return thread

    def tick(self) -> SimThread:
        """Come to a seam, and return the thread.

        Raises:
            Crashed: its process is dead.
        """
        thread = self.here()
        self._require_alive(thread)
        thread.passed += 1
        self.ticks += 1
        self.now += _TICK_OF_PAUSES if self.ticks < self._paused_until else _TICK_SECONDS
        return thread

    def clock(self) -> float:
        """Return the time, which passes by that."""
        self.now += _CALL_SECONDS
        return self.now

    def wait(self, awaits: Callable[[], bool], timeout: float | None) -> bool:
        """Let others go on until something is true, or the time is over; return whether it is true.

        Raises:
            Crashed: the process died meanwhile.
        """
        thread = self.tick()
        if awaits():
            return True
        thread.awaits, thread.until = awaits, None if timeout is None else self.now + timeout
        try:
            self.give_way(thread, self._next(thread))
        finally:
            thread.awaits = thread.until = None
        return awaits()

    def others(self, thread: SimThread) -> Sequence[SimThread]:
        """Return the other threads that could go on now."""
        return [each for each in self._ready(thread) if each is not thread]

    def give_way(self, thread: SimThread, to: SimThread | None) -> None:
        """Let another thread go on, and return when it is this one's turn again.

        Raises:
            Crashed: the process died meanwhile.
        """
        if to is not thread:
            self._hand_over(thread, to)
        self._require_alive(thread)

    def _require_alive(self, thread: SimThread) -> None:
        if thread.process.is_dead:
            raise Crashed if self._is_playing or self.finding is None else self.finding

    def pause(self, thread: SimThread, ticks: int) -> None:
        """Let the whole process stand still while others reach so many seams, or until none of them can go on."""
        thread.passed += 1
        thread.process.paused_until = self.ticks + ticks
        self._paused_until = max(self._paused_until, thread.process.paused_until)
        self.give_way(thread, self._next(thread))

    # --- processes -----------------------------------------------------------------------------------------------

    def start(self, work: Callable[[], object], name: str) -> SimThread:
        """Add a thread to the process of the caller; it runs when it is its turn."""
        parent = self.tick()
        thread = self._added(parent.process)
        self._spawn(thread, partial(self._guarded, thread, work, name), name)
        return thread

    def _guarded(self, thread: SimThread, work: Callable[[], object], name: str) -> None:
        try:
            if not thread.process.is_dead:
                work()
        except Crashed:
            pass
        except BaseException as error:
            self.find(Died(f"thread {name} of {thread.label} ended by {type(error).__name__}: {error}"), error)

    def crash(self, process: Process) -> None:
        """Let a process die: its threads end one after the other, and no other one runs before they have.

        Raises:
            Crashed: always.
        """
        process.is_dead = True
        self._only = process
        raise Crashed

    def kill_others(self) -> None:
        """Let every process but the caller's die: none of its threads has any further effect."""
        own = self.here().process
        for thread in self._alive:
            thread.process.is_dead = thread.process.is_dead or thread.process is not own

    def end(self, process: Process) -> None:
        """End the other threads of a process, as the end of the process ends its daemon threads."""
        process.is_dead = True
        thread, before, self._only = self.here(), self._only, process
        for other in process.threads:
            while other is not thread and not other.has_ended:
                self._hand_over(thread, other)
        self._only = before if before is not process else None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be in another process inside the block, a calm one, while all other threads stand still."""
        thread = self.here()
        held = thread.process, thread.number, thread.passed
        process = self._calm_process(thread)
        before, self._only = self._only, process
        thread.process, thread.number, thread.passed = process, 0, 0
        try:
            yield
        finally:
            self.end(process)
            thread.process, thread.number, thread.passed = held
            if self.finding is None:
                self._only = before
            else:
                thread.process.is_dead = True
        self._require_alive(thread)

    def _calm_process(self, *threads: SimThread) -> Process:
        self._calms += 1
        return Process(f"calm{self._calms}", is_calm=True, threads=list(threads))

    def find(self, finding: BaseException, cause: BaseException | None = None) -> None:
        """Note a finding, by which all processes die."""
        if self.finding is None:
            finding.__cause__ = cause
            self.finding = finding
        self._only = None
        for thread in self._alive:
            thread.process.is_dead = True

    # --- playing -------------------------------------------------------------------------------------------------

    def play(self, works: Mapping[str, Callable[[], None]]) -> None:
        """Run several works, each in a thread of its own, and return when all threads have ended.

        Raises:
            BaseException: the finding.
        """
        here = self.here()
        self.end(here.process)  # what a rest left
        self._alive.remove(here)
        del self._local.thread
        threads = []
        for name, work in works.items():
            threads.append(thread := self._added(Process(name)))
            self._spawn(thread, partial(self._guarded, thread, work, name), name)
        self._is_playing = True
        try:
            if threads:
                self._wake(threads[0])
                self._await_end()
        finally:
            self._is_playing = False
        if self.finding is not None:
            raise self.finding

    def _await_end(self) -> None:
        seen = None
        while not self._over.acquire(timeout=HUNG_SECONDS):
            if seen == (seen := (self.ticks, self.switches)) and self._running is not None:
                self._alive.clear()
                stack = "".join(traceback.format_stack(sys._current_frames().get(self._running.ident)))
                msg = f"{self._running.label} neither goes on nor waits:\n{stack}"
                self.finding = self.finding or Hung(msg)
                return

    # --- the order -----------------------------------------------------------------------------------------------

    def _ready(self, thread: SimThread) -> list[SimThread]:
        return [t for t in self._among(thread) if t.process.is_dead or t.is_ready(self.ticks, self.now)]

    def _among(self, thread: SimThread) -> list[SimThread]:
        if self._only is not None or thread.holds:  # others would wait for the lock of a database in real time
            return [t for t in (self._only or thread.process).threads if not t.has_ended]
        return self._alive

    def _next(self, thread: SimThread) -> SimThread | None:
        """Return the thread that goes on when this one cannot; None if there is none at all."""
        while not (ready := self._ready(thread)):
            if not self._pass_time(thread):
                waiting = self._alive
                if not waiting:
                    return None
                self.find(Deadlock(f"all threads wait: {', '.join(each.label for each in waiting)}"))
        if len(ready) == 1 or ready[0].process.is_dead:
            return ready[0]
        return self._pick(thread, ready)

    def _pass_time(self, thread: SimThread) -> bool:
        """Let the clock go on to the first moment at which a thread can; return whether there is one."""
        among = self._among(thread)
        until = [t.until for t in among if t.until is not None and t.process.paused_until <= self.ticks]
        paused = [t.process for t in among if t.process.paused_until > self.ticks]
        if until:
            self.now = max(self.now, min(until))
        elif paused:
            min(paused, key=lambda process: process.paused_until).paused_until = self.ticks
            self._paused_until = max(process.paused_until for process in paused)
        return bool(until or paused)

    def _hand_over(self, thread: SimThread, to: SimThread | None) -> None:
        self.switches += 1
        self._wake(to)
        if not thread.has_ended:
            thread.lock.acquire()

    def _wake(self, thread: SimThread | None) -> None:
        self._running = thread
        (self._over if thread is None else thread.lock).release()

    def _added(self, process: Process) -> SimThread:
        thread = SimThread(self, process, len(process.threads))
        process.threads.append(thread)
        self._alive.append(thread)
        return thread

    def _spawn(self, thread: SimThread, work: Callable[[], None], name: str) -> None:
        def run() -> None:
            thread.lock.acquire()
            self._local.thread, thread.ident = thread, threading.get_ident()
            work()
            thread.passed += 1
            thread.has_ended = True
            self._alive.remove(thread)
            self._hand_over(thread, self._next(thread))

        threading.Thread(target=run, daemon=True, name=f"simulated {name}").start()
