"""The tables outside of a region that a run writes: each by one thread, in the order of the groups.

In another order, a late write that hung could replace newer rows in a table of one row a key. Writes of two runs have
no order: there is no fence outside of a region.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from drainmark.jobs import world
from drainmark.jobs.protocol.records.manifest import Sent
from drainmark.jobs.runtime.autonomous.input import sentence_of

WAITING = 3
"""Maximum number of groups with rows that wait for a table that hangs; the rows of later groups are dropped."""


@dataclass(slots=True)
class Outlets:
    """The outlets of a run, by name of the table."""

    _attempt: int = 0
    _tables: dict[str, _Outlet] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> int:
        """Begin an attempt at a group; return its number. Rows that earlier attempts hand over later are dropped."""
        with self._lock:
            self._attempt += 1
            return self._attempt

    def hand_over(self, attempt: int, table: str, write: Callable[[], Sent], done: Future[Sent]) -> None:
        """Queue rows to be written after those of earlier groups; `done` gets the result.

        Args:
            attempt: number from `begin`.
            write: writes the rows; its errors only go to `done`.
        """
        with self._lock:
            if attempt != self._attempt:
                done.set_result(Sent(error="given up: the next group came first"))
                return
            outlet = self._tables.setdefault(table, _Outlet(table))
            is_taken = outlet.put(write, done)
        if not is_taken:
            done.set_result(Sent(error=f"not written: {WAITING} groups before it wait for the table"))

    def close(self, seconds: float) -> None:
        """Wait at most so many seconds until all rows are written, drop the waiting ones, and take no more."""
        self.begin()
        until = world.monotonic() + seconds
        for outlet in self._tables.values():
            outlet.close(until)


@dataclass(slots=True)
class _Outlet:
    """The queue of one table; its thread lives while there are rows to write."""

    table: str
    _waiting: deque[tuple[Callable[[], Sent], Future[Sent]]] = field(default_factory=deque)
    _is_busy: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, write: Callable[[], Sent], done: Future[Sent]) -> bool:
        with self._changed:
            if len(self._waiting) >= WAITING:
                return False
            self._waiting.append((write, done))
            if not self._is_busy:
                self._is_busy = True
                # A daemon thread outside of any pool: a sink may hang, and the end of the process must not wait.
                threading.Thread(target=self._work, daemon=True, name=f"send {self.table}").start()
            return True

    def close(self, until: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_busy, max(0.0, until - world.monotonic()))
            self._waiting.clear()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_busy = False
                    self._changed.notify_all()
                    return
                write, done = self._waiting.popleft()
            try:
                done.set_result(write())
            except BaseException as error:  # the region goes on after any error; deltalake's panics are no Exception
                done.set_result(Sent(error=sentence_of(error)))
