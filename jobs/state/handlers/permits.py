"""Permits: semaphores that know the protocol, for threads that submit at any time.

A permit makes the changes and the submitted rows of a thread one transaction: while any permit is held, neither the
establishment of a state nor a reset begins. A thread takes the permit first and the operator's lock second. The other
order raises at once: the thread could wait for a permit while it holds the lock that `checkpoint` needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from drainmark.jobs import world
from drainmark.jobs.errors.operator_code import PermitViolation

_TAKE = "take one first: with context.permit(): …"


class Consistency(StrEnum):
    """The outcome of a state that a thread asked for."""

    COMPLETED = "completed"
    CHECKPOINT_PENDING = "checkpoint pending"  # the flow goes on; rows must not be purged at their source yet
    FAILED = "failed"  # the region was reset


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """The permit that a thread is granted.

    Attributes:
        was_reset: the region was reset since this thread's last permit, so that the state may be older.
        resets: number of resets of the region since it was started.
    """

    was_reset: bool
    resets: int


class PermitGate:
    """A gate that gives permits while the flow goes on, but none from a drain, or a reset's start, until it resumes.

    Threads call `permit`, `require` and `make_consistent…`; the runtime calls `drain` or `stop`, then `resume`, and
    `completed` once the whole region is checkpointed.

    Args:
        lock: of the operator, if it has one.
        ask: asks the region for a state; called by `make_consistent` without any lock held. None if the operator is no
            start, and so may not ask.

    Attributes:
        is_open: whether permits are given.
        waiting: number of threads that wait, for a permit or for a state.
        resumed: number of states after which the flow went on.
        resets: number of resets of the region that are done.
        life: number of resets that have begun.
    """

    def __init__(self, lock: OperatorLock | None = None, ask: Callable[[], None] | None = None) -> None:
        self.lock = lock
        self.ask = ask
        self._changed = threading.Condition()
        self._held: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._torn: dict[int, float] = {}
        self.is_open = True
        self.waiting = self.resumed = self.resets = self.life = 0
        self._begun = self._completed = 0
        self._is_closed_for_good = False
        self._waits_in: str | None = None

    # --- for the operator's threads ----------------------------------------------------------------------------------

    @contextmanager
    def permit(self) -> Iterator[Permit]:
        """Hold a permit: inside it, a thread reads and changes state, and submits rows."""
        granted = self.acquire()
        try:
            yield granted
        except BaseException:
            self._torn[threading.get_ident()] = world.monotonic()  # before the permit is given back
            raise
        finally:
            self.release()

    def acquire(self) -> Permit:
        """Take a permit; wait until the flow goes on. A thread that has a permit gets another one at once.

        Raises:
            PermitViolation: the thread holds the operator's lock and no permit; or the run is over.
        """
        me = threading.get_ident()
        with self._changed:
            if me in self._held:
                self._held[me] += 1
                return self._granted(me)
            if self.lock is not None and self.lock.is_mine:
                raise PermitViolation("a permit is taken under the operator's lock", remedy="the permit first, then it")
            self._wait_until(lambda: self.is_open)
            self._held[me] = 1
            self._torn.pop(me, None)
            return self._granted(me)

    def release(self) -> None:
        """Give a permit back.

        Raises:
            PermitViolation: the thread has none.
        """
        me = threading.get_ident()
        with self._changed:
            if me not in self._held:
                raise PermitViolation("a permit is given back by a thread that has none", remedy=_TAKE)
            self._held[me] -= 1
            if not self._held[me]:
                del self._held[me]
                self._changed.notify_all()

    def require(self) -> None:
        """Check that the calling thread may submit.

        Raises:
            PermitViolation: it has no permit.
        """
        with self._changed:
            if threading.get_ident() not in self._held:
                raise PermitViolation("a thread submits without a permit", remedy=_TAKE)

    def make_consistent(self) -> bool:
        """Ask for a state and wait. Return True when the whole region has it, or False when the region was reset.

        The thread's permit is given back meanwhile, and taken again afterwards.

        Raises:
            PermitViolation: the operator is no start, the thread has no permit, or `make_consistent_non_blocking` is in
                use; or the run is over before the state is known to be established.
        """
        return self._established("make_consistent", lambda begun: self._completed > begun) is not Consistency.FAILED

    def make_consistent_non_blocking(self) -> Consistency:
        """Ask for a state, and wait until the flow goes on.

        Raises:
            PermitViolation: as `make_consistent`.
        """
        return self._established("make_consistent_non_blocking", lambda begun: self.resumed > begun)

    def _established(self, way: str, is_over: Callable[[int], bool]) -> Consistency:
        me, ask = threading.get_ident(), self.ask
        if ask is None:
            raise PermitViolation(f"{way}() is for starts: a state begins there", remedy="write a dm.StartHandler")
        self.require()
        if self.lock is not None and self.lock.is_mine:
            raise PermitViolation(f"{way}() is called under the operator's lock", remedy="release the lock first")
        with self._changed:
            if self._waits_in not in (None, way):
                raise PermitViolation(f"{way}() and {self._waits_in}() are mixed", remedy="use one of them")
            # a state is enough if its drain has begun: this thread's permit is given back before its cut
            self._waits_in, begun, resets = way, self.resumed, self.resets
            depth = self._held.pop(me)
            self._changed.notify_all()
        try:
            ask()
            with self._changed:
                self._wait_until(lambda: self.resets > resets or is_over(begun))
                if self.resets > resets:
                    return Consistency.FAILED
                return Consistency.COMPLETED if self._completed > begun else Consistency.CHECKPOINT_PENDING
        finally:
            with self._changed:
                self._wait_until(lambda: self.is_open, is_needed=False)
                self._held[me] = depth
                self._seen[me] = self.resets

    # --- for the runtime ---------------------------------------------------------------------------------------------

    def drain(self, callback: Callable[[], None], seconds: float, *, life: int | None = None) -> bool:
        """Drain for a state: call the operator's `drain` under an implicit permit, then give no more.

        Until `callback` returns, threads go on and may submit.

        Args:
            life: the `life` in which the caller's work began; if a reset has begun since, the gate stays unchanged.

        Returns:
            Whether all permits were given back within so many seconds; the gate stays closed either way.
        """
        with self.permit():
            callback()
            with self._changed:  # before this permit is given back, so that no thread takes one in between
                if self._is_over(life):
                    return False
                self._begun += 1
                self.is_open = False
        return self.stop(seconds, life=life)

    def stop(self, seconds: float, *, life: int | None = None, for_reset: bool = False) -> bool:
        """Give no more permits, and wait until those that are held are given back.

        Args:
            life: as for `drain`.
            for_reset: a reset, and so a new life, begins.

        Returns:
            Whether they were given back within so many seconds; the gate stays closed either way.
        """
        until = world.monotonic() + seconds
        with self._changed:
            if self._is_over(life):
                return False
            self.life += for_reset
            self.is_open = False
            others = threading.get_ident()
            while any(thread != others for thread in self._held):
                left = until - world.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
                if self._is_over(life):
                    return False
            return True

    def resume(self, *, after_reset: bool = False, life: int | None = None) -> None:
        """Give permits again: after a checkpoint threads go on as before, after a reset from an older state.

        Args:
            life: as for `drain`.
        """
        with self._changed:
            if self._is_over(life):
                return
            if after_reset:
                self.resets += 1
                self._torn.clear()
                self._begun = self.resumed = self._completed = max(self._begun, self.resumed)
            else:
                self.resumed = self._begun
            self.is_open = True
            self._changed.notify_all()

    def completed(self, state: int | None = None) -> None:
        """Note that every operator of the region has finished its checkpoint, and that it is committed.

        Args:
            state: the count of `resumed` when the flow went on after that state; the newest state by default.
        """
        with self._changed:
            self._completed = max(self._completed, self.resumed if state is None else state)
            self._changed.notify_all()

    def close(self) -> None:
        """Close the gate for good: threads that wait, or come later, get an error."""
        with self._changed:
            self.is_open, self._is_closed_for_good = False, True
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until `close`, at most so many seconds; say whether it was called."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed_for_good, seconds)

    def is_torn(self, seconds: float) -> bool:
        """Say whether an error ended a thread's last permit within so many seconds: rows and state may not fit then."""
        return any(world.monotonic() - moment < seconds for moment in list(self._torn.values()))

    @property
    def held(self) -> int:
        """Return the number of threads that hold a permit."""
        return len(self._held)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _is_over(self, life: int | None) -> bool:
        return life is not None and life != self.life

    def _granted(self, thread: int) -> Permit:
        was_reset = self._seen.get(thread, self.resets) != self.resets
        self._seen[thread] = self.resets
        return Permit(was_reset=was_reset, resets=self.resets)

    def _wait_until(self, condition: Callable[[], bool], *, is_needed: bool = True) -> None:
        self.waiting += 1
        try:
            while not condition() and not self._is_closed_for_good:
                self._changed.wait()
        finally:
            self.waiting -= 1
        if is_needed and self._is_closed_for_good and not condition():
            raise PermitViolation("the run is over: there are no more permits", remedy="end the thread")


class OperatorLock:
    """An operator's lock, for its handler and its own threads; the thread that holds it may take it again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, timeout: float = -1) -> bool:
        """Take the lock; return False if another thread holds it for longer than the time-out in seconds."""
        if not self._lock.acquire(timeout=timeout):
            return False
        self._owner = threading.get_ident()
        self._depth += 1
        return True

    def release(self) -> None:
        if self.is_mine:
            self._depth -= 1
            if not self._depth:
                self._owner = None
        self._lock.release()

    @property
    def is_mine(self) -> bool:
        """Say whether the calling thread holds the lock."""
        return self._owner == threading.get_ident()

    def __enter__(self) -> OperatorLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def held(lock: threading.Lock | OperatorLock, seconds: float) -> Iterator[bool]:
    """Hold a lock if it can be taken within so many seconds; yield whether it is held."""
    is_held = lock.acquire(timeout=seconds)
    try:
        yield is_held
    finally:
        if is_held:
            lock.release()
