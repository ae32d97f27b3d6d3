"""`Acknowledged`: tells a source which positions are done, always as a prefix without holes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from drainmark.jobs.streams.references import RefCounter


@dataclass(slots=True, eq=False)
class _Begun:
    position: Any
    is_done: bool = False


class Acknowledged:
    """The positions of a source that are begun and not acknowledged, in the order in which they began.

    With asynchronous nodes, position k+1 may be done before k. Acknowledging k+1 then would hide a loss of k, so k+1
    waits for k. A position that failed stays: neither it nor any position after it is acknowledged, and a restart
    reads them again.

    Args:
        commit: called with the newest position of the prefix; one call for several positions that become done together.
            Calls never overlap and never go backwards. If it raises, the caller that released the last reference gets
            the error, and the next position that is done commits the prefix again.
        on_failure: called with a position and its error if the position failed.
        after: the position at which the source begins; `position` returns it until a commit succeeds.
    """

    def __init__(
        self,
        commit: Callable[[Any], Any] | None = None,
        *,
        on_failure: Callable[[Any, BaseException], Any] | None = None,
        after: Any = None,
    ) -> None:
        self._commit, self._on_failure = commit, on_failure
        self._begun: deque[_Begun] = deque()
        self._lock = threading.Lock()
        self._committing = threading.RLock()
        self._prefix = self._position = after
        self._is_behind = self._is_together = self._is_telling = False
        self._failure: BaseException | None = None

    @property
    def position(self) -> Any:
        """Return the newest position that `commit` took without an error."""
        return self._position

    @property
    def pending(self) -> int:
        """Return how many positions are begun and not in the prefix."""
        return len(self._begun)

    @property
    def failure(self) -> BaseException | None:
        """Return the error of the first position that failed; None if none did."""
        return self._failure

    def begin(self, position: Any, *, loop: Any = None) -> RefCounter:
        """Return the counter of the next position. Its count starts at zero; it is done when the count is zero again.

        Args:
            loop: as of `RefCounter`.
        """
        begun = _Begun(position)
        with self._lock:
            self._begun.append(begun)
        return RefCounter(lambda: self._done(begun), on_failure=lambda error: self._failed(begun, error), loop=loop)

    def beyond(self) -> tuple[Any, ...]:
        """Return the done positions after the first one that is not done. A replay reads them again and skips them."""
        with self._lock:
            return tuple(begun.position for begun in self._begun if begun.is_done)

    def check(self) -> None:
        """Raise the error of the first position that failed: nothing more will be acknowledged."""
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def together(self) -> Iterator[None]:
        """Commit once, at the end of the block, for all positions that become done within it."""
        with self._committing:
            self._is_together = True
            try:
                yield
            finally:
                self._is_together = False
                self._tell()

    def _done(self, begun: _Begun) -> None:
        with self._lock:
            begun.is_done = True
            for done in self._taken():
                self._prefix, self._is_behind = done.position, True
        if not self._is_together:
            self._tell()

    def _tell(self) -> None:
        with self._committing:
            if self._is_telling:
                return  # `commit` itself finished a position: the outer call commits that when `commit` has returned
            self._is_telling = True
            try:
                while self._tell_once():
                    pass
            finally:
                self._is_telling = False

    def _tell_once(self) -> bool:
        """Commit the prefix and return True; return False if it has not grown, or another thread committed it."""
        with self._lock:
            if not self._is_behind:
                return False
            prefix, self._is_behind = self._prefix, False
        try:
            if self._commit is not None:
                self._commit(prefix)
        except BaseException:
            self._is_behind = True
            raise
        self._position = prefix
        return True

    def _taken(self) -> Iterator[_Begun]:
        while self._begun and self._begun[0].is_done:
            yield self._begun.popleft()

    def _failed(self, begun: _Begun, error: BaseException) -> None:
        self._failure = self._failure or error
        if self._on_failure is not None:
            self._on_failure(begun.position, error)
