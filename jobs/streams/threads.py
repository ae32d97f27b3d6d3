"""`Threads`: the clock, threads and pools of a stream's asynchronous nodes; an interface, so that tests can fake it."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from drainmark.jobs.errors.operator_code import StreamStuck

logger = logging.getLogger(__name__)

Task = Callable[[], Any]

_STUCK_SECONDS = 0.1
"""The interval at which a waiting thread checks whether any other thread can still end its wait."""


class Lane(ABC):
    """A thread of a node: runs tasks one after the other, at once or when they are due."""

    @abstractmethod
    def put(self, task: Task, *, after: float = 0.0) -> None:
        """Run a task in so many seconds, after tasks that are due earlier or were put earlier; return at once."""

    @abstractmethod
    def close(self) -> None:
        """Start no more tasks; a task that is under way ends by itself."""


class Threads(ABC):
    """The clock and threads that run the asynchronous nodes of a stream. A stream and all nodes after it share one.

    Attributes:
        feeder: the only thread that puts data into the graph, if that is known: while it waits, no data come in.
    """

    feeder: int | None = None

    @abstractmethod
    def now(self) -> float:
        """Return seconds on a clock that is never set back."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait; return early when `close` is called."""

    @abstractmethod
    def lane(self, name: str) -> Lane:
        """Return a new lane; its thread starts with its first task."""

    @abstractmethod
    def lock(self) -> Any:
        """Return a re-entrant lock for a node that emits while it holds it; a `threading.Condition` can use it.

        `acquire` can raise `StreamStuck`, as `wait_for` does: the holder of the lock may wait there.
        """

    @abstractmethod
    def submit(self, pool: str, workers: int, call: Callable[[], Any], *, then: Task) -> Future[Any]:
        """Make a call in a pool of so many threads; the first call creates the pool.

        Args:
            then: called after the call; it passes the result on. Until it returns, `has_work` is true.
        """

    @abstractmethod
    def wait_for(self, condition: threading.Condition, is_so: Callable[[], bool]) -> None:
        """Wait, holding the condition, until a predicate is true. Code that makes it true must notify the condition.

        Raises:
            StreamStuck: it is known that nothing can make the predicate true.
        """

    @abstractmethod
    def has_work(self, *, due: bool = False) -> bool:
        """Say whether a task or call is under way or can begin; a task that waits for room does not count.

        Args:
            due: leave out tasks that are not due yet.
        """

    @abstractmethod
    def is_waited(self) -> bool:
        """Say whether a thread waits in `wait_for`, or for a lock that another thread holds."""

    @abstractmethod
    def join(self, seconds: float | None = None) -> bool:
        """Wait until no task is under way or due; return False if one still is after so many seconds."""

    @abstractmethod
    def close(self) -> None:
        """Close all lanes and pools, without waiting for their threads."""


class RealThreads(Threads):
    """One thread for each lane, and thread pools. A call in a pool that never ends keeps the process alive."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lanes: list[_ThreadLane] = []
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._calls = 0
        self._waiting: dict[int, Callable[[], bool]] = {}
        self._is_closed = threading.Event()

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        self._is_closed.wait(max(0.0, seconds))

    def lane(self, name: str) -> Lane:
        lane = _ThreadLane(name, self._changed, self._is_blocked)
        with self._changed:
            self._lanes.append(lane)
        return lane

    def submit(self, pool: str, workers: int, call: Callable[[], Any], *, then: Task) -> Future[Any]:
        with self._changed:
            if pool not in self._pools:
                self._pools[pool] = ThreadPoolExecutor(workers, thread_name_prefix=pool)
            found = self._pools[pool]
            self._calls += 1
        try:
            future = found.submit(call)
        except BaseException:
            self._called()
            raise
        future.add_done_callback(lambda _: self._called(then))
        return future

    def wait_for(self, condition: threading.Condition, is_so: Callable[[], bool]) -> None:
        if is_so():  # nearly always; then the wait need not be recorded
            return
        with self._waits(is_so):
            while not condition.wait_for(is_so, _STUCK_SECONDS):
                self._require_work()

    def lock(self) -> Any:
        return _NodeLock(self)

    def is_waited(self) -> bool:
        with self._changed:
            return bool(self._waiting)

    def has_work(self, *, due: bool = False) -> bool:
        with self._changed:
            return bool(self._calls) or any(lane.has_work(due=due) for lane in self._lanes)

    def join(self, seconds: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self.has_work(due=True), seconds)

    def close(self) -> None:
        self._is_closed.set()
        with self._changed:
            lanes, pools = list(self._lanes), list(self._pools.values())
        for lane in lanes:
            lane.close()
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)

    def _called(self, then: Task = lambda: None) -> None:
        try:
            then()
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    @contextmanager
    def _waits(self, is_so: Callable[[], bool]) -> Iterator[None]:
        """Record the predicate that the calling thread waits for; waits of one thread may be nested."""
        me = threading.get_ident()
        with self._changed:
            before = self._waiting.get(me)
            self._waiting[me] = is_so
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                if before is None:
                    del self._waiting[me]
                else:
                    self._waiting[me] = before

    def _require_work(self) -> None:
        if threading.get_ident() == self.feeder and not self.has_work():
            msg = "the caller waits for room, and nothing in progress makes room"
            raise StreamStuck(msg, remedy="give the node more room, or feed its other side first")

    def _is_blocked(self, thread: int | None) -> bool:
        """Say whether a thread waits for a predicate that is false. The caller holds `_changed`.

        The predicate is evaluated without its own lock: it may be true before the waiting thread has woken up.
        """
        is_so = self._waiting.get(thread or 0)
        return is_so is not None and not is_so()


class _NodeLock:
    """A re-entrant lock that knows its holder: a thread that waits for it is blocked if the holder is.

    `threading.Condition` calls `_release_save`, `_acquire_restore` and `_is_owned` of a custom lock.
    """

    def __init__(self, threads: RealThreads) -> None:
        self._threads = threads
        self._lock = threading.RLock()
        self._holder: int | None = None  # set after `_lock` is acquired, and cleared before it is released
        self._depth = 0

    def acquire(self, blocking: bool = True) -> bool:
        if not self._lock.acquire(blocking=False):
            if not blocking:
                return False
            self._await(self._threads._require_work)
        self._depth += 1
        self._holder = threading.get_ident()
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
        self._lock.release()

    __enter__ = acquire

    def __exit__(self, *error: object) -> None:
        self.release()

    def _await(self, look: Callable[[], None]) -> None:
        me = threading.get_ident()

        def is_so() -> bool:
            holder = self._holder
            return holder is None or holder == me or not self._threads._is_blocked(holder)

        with self._threads._waits(is_so):
            while not self._lock.acquire(timeout=_STUCK_SECONDS):
                look()

    def _release_save(self) -> int:
        depth = self._depth
        for _ in range(depth):
            self.release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        if not self._lock.acquire(blocking=False):
            self._await(lambda: None)  # a thread that leaves a condition must have its lock, stuck or not
        self._depth, self._holder = 1, threading.get_ident()
        for _ in range(depth - 1):
            self.acquire()

    def _is_owned(self) -> bool:
        return self._holder == threading.get_ident()


class _ThreadLane(Lane):
    """One thread with a heap of tasks. All lanes share the condition `changed` with `RealThreads`."""

    def __init__(self, name: str, changed: threading.Condition, is_blocked: Callable[[int | None], bool]) -> None:
        self._name, self._changed, self._is_blocked = name, changed, is_blocked
        self._tasks: list[tuple[float, int, Task]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._is_running = self._is_closed = False

    def put(self, task: Task, *, after: float = 0.0) -> None:
        with self._changed:
            if self._is_closed:
                return
            heapq.heappush(self._tasks, (time.monotonic() + max(0.0, after), next(self._numbers), task))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name=self._name)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._tasks.clear()
            self._changed.notify_all()

    def has_work(self, *, due: bool) -> bool:
        """Say whether the task under way is not blocked, or, without one, a task waits. The caller holds `_changed`."""
        if self._is_running:
            return self._thread is None or not self._is_blocked(self._thread.ident)
        return bool(self._tasks) and (not due or self._tasks[0][0] <= time.monotonic())

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                task()
            except BaseException:  # nodes catch and note their own errors: this is an error in Drainmark
                logger.exception("A task of a stream failed", extra={"action": "stream_task_failed"})
            finally:
                with self._changed:
                    self._is_running = False
                    self._changed.notify_all()

    def _next(self) -> Task | None:
        with self._changed:
            while not self._is_closed:
                left = self._tasks[0][0] - time.monotonic() if self._tasks else None
                if left is not None and left <= 0:
                    self._is_running = True
                    return heapq.heappop(self._tasks)[2]
                self._changed.wait(left)
        return None
