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

    With asynchronous nodes position k+1 may be done before k. Telling the source k+1 then would hide a loss of k, so
    that it waits for k. A position that failed stays: neither it nor any behind it is acknowledged, and a restart
    reads them again.

    Args:
        commit: called with the newest position of the prefix, once for several where they are done at once; never two
            calls beside each other, never backwards. If it raises, whoever let go last gets the error, and the next
            position that is done commits the prefix again.
        on_failure: called with position and error where a position failed.
        after: where the source begins: what `position` says before anything is acknowledged.
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
        """Return the newest position of the prefix that `commit` took."""
        return self._position

    @property
    def pending(self) -> int:
        """Return how many positions are begun and not in the prefix."""
        return len(self._begun)

    @property
    def failure(self) -> BaseException | None:
        """Return what the first position failed with that failed."""
        return self._failure

    def begin(self, position: Any, *, loop: Any = None) -> RefCounter:
        """Return the counter of the next position; whoever emits with it holds it, or it is never done.

        Args:
            loop: as of `RefCounter`.
        """
        begun = _Begun(position)
        with self._lock:
            self._begun.append(begun)
        return RefCounter(lambda: self._done(begun), on_failure=lambda error: self._failed(begun, error), loop=loop)

    def beyond(self) -> tuple[Any, ...]:
        """Return the positions that are done behind the first one that is not: read again, they are to be skipped."""
        with self._lock:
            return tuple(begun.position for begun in self._begun if begun.is_done)

    def check(self) -> None:
        """Raise what a position failed with: nothing more will be acknowledged."""
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def together(self) -> Iterator[None]:
        """Commit once, at the end, whatever is done meanwhile."""
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
                return  # by what `commit` does itself: it is told of that when it has returned
            self._is_telling = True
            try:
                while self._tell_once():
                    pass
            finally:
                self._is_telling = False

    def _tell_once(self) -> bool:
        """Commit the prefix, if it has grown; a thread that came first may have committed it, too."""
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
