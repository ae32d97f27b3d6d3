"""Nodes with their own threads, which emit each datum once, after `update` has returned."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from drainmark.jobs.errors.operator_code import StreamClosed
from drainmark.jobs.streams.references import Metadata
from drainmark.jobs.streams.retained_nodes import Keeping, Kept
from drainmark.jobs.streams.stream import Stream


class _Queue(Keeping):
    """A node that emits data from its lane, in the order in which they came."""

    def __init__(self, upstream: Stream) -> None:
        self._items: deque[Kept] = deque()
        super().__init__(upstream)
        self._lane = self.threads.lane(type(self).__name__.lower())

    def _kept(self) -> Iterable[Kept]:
        return self._items

    def _forget(self) -> None:
        self._items.clear()

    def _next(self) -> None:
        with self._room:
            if not self._items:
                return
            item = self._items.popleft()
            self._room.notify_all()
        self._emit_alone(item.x, [item])


class Buffer(_Queue, verb="buffer"):
    """`Stream.buffer`."""

    def __init__(self, upstream: Stream, n: int) -> None:
        if n < 1:
            raise ValueError(f"buffer({n}) has no room for a datum")
        self._n = n
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        with self._room:
            self._wait(lambda: len(self._items) < self._n)
            self._items.append(self._keep(x, metadata))
        self._lane.put(self._next)


class Delay(_Queue, verb="delay"):
    """`Stream.delay`."""

    def __init__(self, upstream: Stream, interval: float) -> None:
        self._interval = interval
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        with self._room:  # the lock keeps the order of the data and of their timers the same
            self._items.append(self._keep(x, metadata))
            self._lane.put(self._next, after=self._interval)


class Latest(_Queue, verb="latest"):
    """`Stream.latest`. Unlike streamz, it releases the newest datum once it is emitted, so that datum gets done."""

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        with self._room:
            item = self._keep(x, metadata)
            overtaken = list(self._items)
            self._items.clear()
            self._items.append(item)
            if not overtaken:
                self._lane.put(self._next)
        self._let_go(overtaken)


class MapAsync(Keeping, verb="map_async"):
    """`Stream.map_async`: calls run in parallel, and their results are emitted in the order of the data."""

    def __init__(
        self,
        upstream: Stream,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        parallelism: int,
        stop_on_exception: bool,
    ) -> None:
        if parallelism < 1:
            raise ValueError(f"map_async(parallelism={parallelism}) has no thread to call anything")
        self._func = functools.partial(_called, func, args, kwargs)
        self._parallelism, self._stops = parallelism, stop_on_exception
        self._work: deque[tuple[Future[Any], Kept]] = deque()
        self._stopped_by: BaseException | None = None
        super().__init__(upstream)
        self._lane = self.threads.lane("map_async")

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        with self._room:
            self._wait(lambda: len(self._work) < self._parallelism or self._stopped_by is not None)
            if self._stopped_by is not None:
                raise self._stopped_by
            item = self._keep(x, metadata)
            try:
                future = self.threads.submit(
                    f"map_async-{id(self)}",
                    self._parallelism,
                    lambda: self._func(x),
                    then=lambda: self._lane.put(self._emit_ready),
                )
            except BaseException as error:  # the pool is closed
                self._lose([item], error)
                raise
            self._work.append((future, item))

    def _kept(self) -> Iterable[Kept]:
        return [item for _, item in self._work]

    def _forget(self) -> None:
        self._work.clear()

    def _emit_ready(self) -> None:
        while (ready := self._ready()) is not None:
            future, item = ready
            error = _error_of(future)
            if error is None:
                self._emit_alone(future.result(), [item])
            else:
                self._lose([item], error)
                self._note(error)
                if self._stops:
                    self._stop(error)

    def _ready(self) -> tuple[Future[Any], Kept] | None:
        """Take the oldest datum, if its call has ended; later data wait for it."""
        with self._room:
            if not self._work or not self._work[0][0].done():
                return None
            self._room.notify_all()
            return self._work.popleft()

    def _stop(self, error: BaseException) -> None:
        with self._room:
            self._stopped_by = error
        self._give_up(error)


def _called(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], x: Any) -> Any:
    return func(x, *args, **kwargs)


def _error_of(future: Future[Any]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError:
        return StreamClosed("the stream was closed before a call began", remedy="replay the datum")
