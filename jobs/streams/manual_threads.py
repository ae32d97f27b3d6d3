"""`ManualThreads`: a clock and threads that advance when a test tells them to, in one order, without sleeping."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from drainmark.jobs.errors.operator_code import StreamStuck
from drainmark.jobs.streams.threads import Lane, Task, Threads


class ManualThreads(Threads):
    """Threads that all run in the thread of the test: `run()` runs due tasks, `advance(seconds)` moves the clock.

    A caller that would have to wait for another thread runs the due tasks in place of that thread. If that does not
    help, it raises `StreamStuck`. Calls of pools run one by one in the order of their submission, or the newest first.

    Args:
        newest_first: run the newest call of a pool first.
    """

    def __init__(self, *, newest_first: bool = False) -> None:
        self._now = 0.0
        self._newest_first = newest_first
        self._tasks: list[tuple[float, int, _ManualLane, Task]] = []
        self._calls: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._numbers = itertools.count()
        self._is_closed = False

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        """Advance the clock, but run no task that becomes due: the thread that sleeps is the only one."""
        self._now += max(0.0, seconds)

    def lane(self, name: str) -> Lane:
        return _ManualLane(self)

    def lock(self) -> Any:
        return threading.RLock()

    def submit(self, pool: str, workers: int, call: Callable[[], Any], *, then: Task) -> Future[Any]:
        future: Future[Any] = Future()
        future.add_done_callback(lambda _: then())
        self._calls.append((future, call))
        return future

    def wait_for(self, condition: threading.Condition, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if not self._step():
                raise StreamStuck(
                    "a node waits for room, and nothing is due that makes any",
                    remedy="advance the clock, or feed the other side first",
                )

    def is_waited(self) -> bool:
        return False

    def has_work(self, *, due: bool = False) -> bool:
        return bool(self._calls) or any(not due or at <= self._now for at, *_ in self._tasks)

    def join(self, seconds: float | None = None) -> bool:
        self.run()
        return True

    def close(self) -> None:
        self._is_closed = True
        self._tasks.clear()
        for future, _ in self._calls:
            future.cancel()
        self._calls.clear()

    def run(self) -> int:
        """Run all due tasks and calls, and those that they add; return how many ran."""
        steps = 0
        while self._step():
            steps += 1
        return steps

    def advance(self, seconds: float) -> None:
        """Advance the clock, and run each task when it is due."""
        until = self._now + seconds
        self.run()
        while self._tasks and self._tasks[0][0] <= until:
            self._now = max(self._now, self._tasks[0][0])
            self.run()
        self._now = max(self._now, until)  # a task may have slept longer

    def _put(self, lane: _ManualLane, task: Task, after: float) -> None:
        if not self._is_closed:
            heapq.heappush(self._tasks, (self._now + after, next(self._numbers), lane, task))

    def _step(self) -> bool:
        """Run one due task of a lane that runs no other task, or else one call; return False if there is neither."""
        ready = sorted(entry for entry in self._tasks if entry[0] <= self._now and not entry[2].is_running)
        if ready:
            entry = ready[0]
            self._tasks.remove(entry)
            heapq.heapify(self._tasks)
            entry[2].run(entry[3])
            return True
        if self._calls:
            future, call = self._calls.pop(-1 if self._newest_first else 0)
            _make(future, call)
            return True
        return False


class _ManualLane(Lane):
    def __init__(self, threads: ManualThreads) -> None:
        self._threads = threads
        self._is_closed = self.is_running = False

    def put(self, task: Task, *, after: float = 0.0) -> None:
        if not self._is_closed:
            self._threads._put(self, task, max(0.0, after))

    def close(self) -> None:
        self._is_closed = True

    def run(self, task: Task) -> None:
        """Run a task as the lane's thread."""
        if self._is_closed:
            return
        self.is_running = True
        try:
            task()
        finally:
            self.is_running = False


def _make(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        made = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(made)
