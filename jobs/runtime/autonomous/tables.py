"""The tables outside of a region that a run writes: each by one thread, in the order of the groups.

A table of one row a key would else keep for good what a write that hung brings late. What two runs write is in no
order: there is no fence outside of a region.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from drainmark.jobs.protocol.records.manifest import Sent
from drainmark.jobs.runtime.autonomous.input import sentence_of

WAITING = 3
"""Groups whose rows wait for a table that hangs: so many are held in memory, and those after them are dropped."""


@dataclass(slots=True)
class Outlets:
    """The outlets of a run, by name of the table."""

    _attempt: int = 0
    _tables: dict[str, _Outlet] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> int:
        """Begin an attempt at a group; what an earlier one has not handed over by now never will be."""
        with self._lock:
            self._attempt += 1
            return self._attempt

    def hand_over(self, attempt: int, table: str, write: Callable[[], Sent], done: Future[Sent]) -> None:
        """Have rows written after those of earlier groups; `done` says what became of them.

        Args:
            attempt: as `begin` gave it.
            write: writes them; nothing that it raises gets any further than `done`.
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
        """Wait so many seconds until all is written, and drop what waits then; nothing is taken any more."""
        self.begin()
        until = time.monotonic() + seconds
        for outlet in self._tables.values():
            outlet.close(until)


@dataclass(slots=True)
class _Outlet:
    """One table; its thread lives while there is something to write."""

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
                # A thread that no pool, and no end of the process, waits for: a sink may hang.
                threading.Thread(target=self._work, daemon=True, name=f"send {self.table}").start()
            return True

    def close(self, until: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_busy, max(0.0, until - time.monotonic()))
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
            except BaseException as error:  # whatever it is (deltalake's panics are no Exception), the region goes on
                done.set_result(Sent(error=sentence_of(error)))
