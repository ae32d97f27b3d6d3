"""`Keeping`: the base class of nodes that keep data, with one reference for each datum, released exactly once."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from drainmark.jobs.errors.operator_code import StreamClosed
from drainmark.jobs.streams.references import Metadata, counters, release, retain
from drainmark.jobs.streams.stream import References, Stream


class Kept(NamedTuple):
    """A datum that a node holds a reference to."""

    x: Any
    metadata: Metadata


class Keeping(Stream, ABC):
    """A node that keeps data, under a lock that any thread may take. A thread that waits for room waits on `_room`.

    A node that must emit in the order of the data emits while it holds its lock.
    """

    references: ClassVar[References] = References.EMITTED
    is_asynchronous: ClassVar[bool] = True

    def __init__(self, *upstreams: Stream) -> None:
        self._lock = upstreams[0].threads.lock()
        self._room = threading.Condition(self._lock)
        super().__init__(*upstreams)

    @abstractmethod
    def _kept(self) -> Iterable[Kept]:
        """Return all data that are kept. The caller holds the lock."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget the data that `_kept` returns, but release none. The caller holds the lock."""

    def held(self) -> Iterator[Mapping[str, Any]]:
        with self._lock:
            items = list(self._kept())
        for item in items:
            yield from item.metadata

    def kept_of(self) -> Mapping[Stream, int]:
        """Return how many data of each upstream are kept; all under the first if the node does not tell them apart.

        It does not wait: it returns nothing if another thread holds the lock, for it may emit and wait for other nodes.
        """
        if not self._lock.acquire(blocking=False):
            return {}
        try:
            return {self.upstreams[0]: len(list(self._kept()))}
        finally:
            self._lock.release()

    def _keep(self, x: Any, metadata: Metadata) -> Kept:
        """Take a reference to a datum. The caller holds the lock.

        Raises:
            StreamClosed: the node is closed and would never release the datum.
        """
        if self._is_closed:
            raise StreamClosed("a datum comes to a node that is closed", remedy="build the graph anew, and replay it")
        retain(counters(metadata))
        return Kept(x, metadata)

    def _let_go(self, items: Iterable[Kept]) -> None:
        release(_counters(items))

    def _lose(self, items: Iterable[Kept], error: BaseException) -> None:
        """Fail data, and release them."""
        references = _counters(items)
        for reference in references:
            reference.fail(error)
        release(references)

    def _emit_kept(self, x: Any, items: Sequence[Kept]) -> None:
        """Emit a result with the metadata of all data that it was made from, and release them, even after an error."""
        try:
            self._emit(x, joined(items))
        finally:
            self._let_go(items)

    def _emit_alone(self, x: Any, items: Sequence[Kept]) -> None:
        """Emit from a thread of the node: note an error, also a `SystemExit`, and let the thread go on."""
        try:
            self._emit_kept(x, items)
        except BaseException as error:
            self._note(error)
            if isinstance(error, KeyboardInterrupt):  # with `ManualThreads` this is the main thread of the test
                raise

    def _wait(self, is_so: Callable[[], bool]) -> None:
        """Wait on `_room` until a predicate is true or the node is closed."""
        self.threads.wait_for(self._room, lambda: self._is_closed or is_so())

    def _give_up(self, error: BaseException) -> None:
        with self._room:
            items = list(self._kept())
            self._forget()
            self._room.notify_all()
        self._lose(items, error)


def joined(items: Iterable[Kept]) -> list[Mapping[str, Any]]:
    """Return the metadata of several data."""
    return [entry for item in items for entry in item.metadata]


def _counters(items: Iterable[Kept]) -> list[Any]:
    return counters(joined(items))
