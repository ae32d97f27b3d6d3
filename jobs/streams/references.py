"""`RefCounter`: the number of places in a graph that hold a datum, and the callback when no place holds it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from drainmark.jobs.errors.operator_code import ReferenceMiscounted

REF = "ref"
"""The key of a datum's counter in its metadata."""

Metadata = Sequence[Mapping[str, Any]]
"""The metadata of a datum: one mapping for each source datum in it."""


class RefCounter:
    """A counter of the holders of a datum; safe to use from several threads.

    At zero it calls one callback, once: `cb` if the datum went through, `on_failure` if it failed anywhere. So an
    exception never counts as done. After that no reference can be taken: `retain` raises `ReferenceMiscounted`.

    Args:
        cb: called without arguments at zero.
        on_failure: called with the first error at zero instead of `cb`.
        initial: references that are held from the start.
        loop: of asyncio or tornado: it runs the callback, instead of the thread that released the last reference.
    """

    __slots__ = ("_cb", "_count", "_failure", "_is_done", "_lock", "_loop", "_on_failure")

    def __init__(
        self,
        cb: Callable[[], Any] | None = None,
        *,
        on_failure: Callable[[BaseException], Any] | None = None,
        initial: int = 0,
        loop: Any = None,
    ) -> None:
        self._cb, self._on_failure, self._loop = cb, on_failure, loop
        self._count = initial
        self._failure: BaseException | None = None
        self._is_done = False
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Return how many references are held."""
        return self._count

    @property
    def is_done(self) -> bool:
        """Say whether the count has fallen to zero and the datum did not fail."""
        return self._is_done and self._failure is None

    @property
    def is_over(self) -> bool:
        """Say whether the count has fallen to zero, whether the datum is done or failed."""
        return self._is_done

    @property
    def failure(self) -> BaseException | None:
        """Return the first error of the datum, even before the count is zero; None if there is none."""
        return self._failure

    def retain(self, n: int = 1) -> None:
        """Take references.

        Raises:
            ReferenceMiscounted: the datum is done; a reference was released too early.
        """
        with self._lock:
            if self._is_done:
                raise ReferenceMiscounted(
                    f"{n} reference(s) are taken to a datum that is done",
                    remedy="hold one of your own while you emit several data under one counter: retain(), … release()",
                )
            self._count += n

    def release(self, n: int = 1) -> None:
        """Release references. At zero this thread calls the callback, unless there is a loop.

        Raises:
            ReferenceMiscounted: fewer than n are held.
        """
        with self._lock:
            if n > self._count:
                raise ReferenceMiscounted(
                    f"{n} reference(s) are let go of a datum that has {self._count}",
                    remedy="a node lets go once for each reference that it took",
                )
            self._count -= n
            if self._count or not n:
                return
            self._is_done = True
        self._call_back()

    def fail(self, error: BaseException) -> None:
        """Note that the datum failed: it never counts as done. The first error is kept; references stay held."""
        with self._lock:
            if self._is_done:
                return
            self._failure = self._failure or error
            if self._count:
                return
            self._is_done = True
        self._call_back()

    def _call_back(self) -> None:
        error, on_failure = self._failure, self._on_failure
        if error is None:
            call: Callable[[], Any] | None = self._cb
        else:
            call = None if on_failure is None else lambda: on_failure(error)
        if call is None:
            return
        if self._loop is None:
            call()
        elif hasattr(self._loop, "call_soon_threadsafe"):
            self._loop.call_soon_threadsafe(call)
        else:
            self._loop.add_callback(call)

    def __repr__(self) -> str:
        said = "failed" if self._failure is not None else "done" if self._is_done else "held"
        return f"<RefCounter count={self._count} {said}>"


def counters(metadata: Metadata) -> list[RefCounter]:
    """Return the counters in metadata; a counter that is there twice is returned twice."""
    return [entry[REF] for entry in metadata if REF in entry]


def retain(references: Iterable[RefCounter], n: int = 1) -> None:
    """Take references to several data, all or none.

    Raises:
        ReferenceMiscounted: one of the data is done. The references taken so far are released, and all of the data
            fail: they travel together and go no further, so none of them may count as done.
    """
    wanted, taken = list(references), 0
    try:
        for reference in wanted:
            reference.retain(n)
            taken += 1
    except BaseException as error:
        for reference in wanted:
            reference.fail(error)
        release(wanted[:taken], n)
        raise


def release(references: Iterable[RefCounter], n: int = 1) -> None:
    """Release all references, even if a callback raises; the first error is raised at the end."""
    failed: BaseException | None = None
    for reference in references:
        try:
            reference.release(n)
        except BaseException as error:
            failed = failed or error
    if failed is not None:
        raise failed
