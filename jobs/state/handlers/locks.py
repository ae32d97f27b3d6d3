"""The lock of an operator: the tuple handler, callbacks and threads hold it while they change its state."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
