"""`Threads`: what a stream's asynchronous nodes need of time and threads, so that tests can bring their own."""

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
"""After so long whoever waits looks whether anybody is left who could end that."""


class Lane(ABC):
    """A thread of a node: runs tasks one after the other, at once or when they are due."""

    @abstractmethod
    def put(self, task: Task, *, after: float = 0.0) -> None:
        """Have a task run in so many seconds, behind those that are due earlier or came earlier; returns at once."""

    @abstractmethod
    def close(self) -> None:
        """Run nothing more; the task that is under way ends by itself."""


class Threads(ABC):
    """Runs the asynchronous nodes of a stream. A stream and all nodes after it share one.

    Attributes:
        feeder: the thread that alone puts data into the graph, where that is known: while it waits nothing comes in.
    """

    feeder: int | None = None

    @abstractmethod
    def now(self) -> float:
        """Return seconds on a clock that is never set back."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait; returns early where all is closed."""

    @abstractmethod
    def lane(self, name: str) -> Lane:
        """Return a new lane; its thread starts with its first task."""

    @abstractmethod
    def lock(self) -> Any:
        """Return a lock, of a node that hands on under it: re-entrant, and fit for a condition.

        Who acquires it raises `StreamStuck` like who waits in `wait_for`: its holder may be one that waits there.
        """

    @abstractmethod
    def submit(self, pool: str, workers: int, call: Callable[[], Any], *, then: Task) -> Future[Any]:
        """Have one of so many threads of a pool make a call; the pool is made by the first.

        Args:
            then: what passes on what the call returned. It is part of the work: in between nothing looks idle.
        """

    @abstractmethod
    def wait_for(self, condition: threading.Condition, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, holding the condition, whoever makes it so notifies it.

        Raises:
            StreamStuck: it is known that nothing can make it so.
        """

    @abstractmethod
    def has_work(self, *, due: bool = False) -> bool:
        """Say whether a task or call is under way or can begin; not one that waits for room that nobody makes.

        Args:
            due: leave out tasks whose time has not come.
        """

    @abstractmethod
    def is_waited(self) -> bool:
        """Say whether somebody waits in `wait_for`, or for a lock that another has."""

    @abstractmethod
    def join(self, seconds: float | None = None) -> bool:
        """Wait until nothing is under way or due; say whether that was so within so many seconds."""

    @abstractmethod
    def close(self) -> None:
        """Close all lanes and pools; waits for nothing."""


class RealThreads(Threads):
    """A thread a lane, and pools, on the clock of the machine. A call that never ends keeps the process alive."""

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
        if is_so():  # nearly always, and then nobody has to be told
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
        """Let all know for what the calling thread waits, even while it waits for something already."""
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
        """Say whether a thread waits for what is not so; the condition of all is held.

        What it waits for is looked at without its lock: it may be so already, and the thread not have woken.
        """
        is_so = self._waiting.get(thread or 0)
        return is_so is not None and not is_so()


class _NodeLock:
    """A re-entrant lock that knows its holder: whoever waits for it is as blocked as that one.

    `_release_save`, `_acquire_restore` and `_is_owned` are what a `threading.Condition` asks of a lock of one's own.
    """

    def __init__(self, threads: RealThreads) -> None:
        self._threads = threads
        self._lock = threading.RLock()
        self._holder: int | None = None  # nobody, from before it is released until after it is acquired
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
            self._await(lambda: None)  # who leaves a condition must have its lock, stuck or not
        self._depth, self._holder = 1, threading.get_ident()
        for _ in range(depth - 1):
            self.acquire()

    def _is_owned(self) -> bool:
        return self._holder == threading.get_ident()


class _ThreadLane(Lane):
    """One thread with a heap of tasks; what waits for it waits on the condition of all."""

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
        """Say whether there is something to do, and it is done; the condition is held."""
        if self._is_running:
            return self._thread is None or not self._is_blocked(self._thread.ident)
        return bool(self._tasks) and (not due or self._tasks[0][0] <= time.monotonic())

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                task()
            except BaseException:  # nodes note what fails in them: this is one of ours
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
