"""Nodes that emit several data as one: partitions, windows, collections."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from drainmark.jobs.streams.references import Metadata
from drainmark.jobs.streams.retained_nodes import Keeping, Kept, joined
from drainmark.jobs.streams.stream import References, Stream, _Flushed, key_of

_NEARLY = 1e-9
"""Seconds by which a timer may fire early: sums of fractions are not exact."""


@dataclass(slots=True)
class _Window:
    """The gathered data, in the order in which they will be emitted, and the time of the first of them."""

    since: float
    items: dict[Hashable, Kept] = field(default_factory=dict)


class Gathering(Keeping):
    """A node that gathers data, and emits them if there are enough, if the first is old enough, or at `flush`.

    Args:
        n: the number of data that are enough; None for no limit.
        timeout: seconds after which the first datum is old enough; None for never.
    """

    def __init__(self, upstream: Stream, n: int | None, timeout: float | None) -> None:
        if n is not None and n < 1:
            raise ValueError(f"{type(self).__name__} of {n} data is never full")
        self._n, self._timeout = n, timeout
        self._windows: dict[Hashable, _Window] = {}
        self._armed: set[Hashable] = set()
        self._numbers = itertools.count()
        super().__init__(upstream)
        self._lane = self.threads.lane(type(self).__name__.lower())

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        place = self._place(x)
        with self._lock:
            window = self._windows.get(place) or _Window(self.threads.now())
            dropped = self._admit(window, x, metadata)
            self._windows[place] = window
            self._let_go(dropped)
            if self._n is not None and len(window.items) >= self._n:
                items = self._taken(place)
                self._emit_kept(self._made(items), items)
            elif self._timeout is not None:
                self._arm(place, self._timeout)

    def flush(self, _: Any = None) -> None:
        """Emit the gathered data, if there are any."""
        with self._lock:
            for place in list(self._windows):
                items = self._taken(place)
                self._emit_kept(self._made(items), items)

    def try_flush(self) -> None:
        """Flush, unless another thread holds the lock: it may emit now, and wait until other nodes are flushed."""
        if self._lock.acquire(blocking=False):
            try:
                self.flush()
            finally:
                self._lock.release()

    def _place(self, x: Any) -> Hashable:
        """Return the key of the window that a datum belongs to."""
        return None

    def _admit(self, window: _Window, x: Any, metadata: Metadata) -> list[Kept]:
        """Put a datum into a window; return the data that it replaces there."""
        window.items[next(self._numbers)] = self._keep(x, metadata)
        return []

    def _made(self, items: list[Kept]) -> Any:
        return tuple(item.x for item in items)

    def _taken(self, place: Hashable) -> list[Kept]:
        return list(self._windows.pop(place).items.values())

    def _kept(self) -> Iterable[Kept]:
        return [item for window in self._windows.values() for item in window.items.values()]

    def _forget(self) -> None:
        self._windows.clear()

    def _arm(self, place: Hashable, seconds: float) -> None:
        """Check the window of a place later. A place has one timer, even if one window follows another meanwhile."""
        if place not in self._armed:
            self._armed.add(place)
            self._lane.put(lambda: self._look(place), after=seconds)

    def _look(self, place: Hashable) -> None:
        with self._lock:
            self._armed.discard(place)
            window = self._windows.get(place)
            if window is None or self._timeout is None:
                return
            left = window.since + self._timeout - self.threads.now()
            if left > _NEARLY:
                self._arm(place, left)
            else:
                items = self._taken(place)
                self._emit_alone(self._made(items), items)


class Partition(Gathering, verb="partition"):
    """`Stream.partition`."""

    def __init__(self, upstream: Stream, n: int, timeout: float | None, key: Any) -> None:
        self._key = None if key is None else key_of(key)
        super().__init__(upstream, n, timeout)

    def _place(self, x: Any) -> Hashable:
        return None if self._key is None else self._key(x)


class _KeepingOne(Gathering):
    """A node that keeps one datum for each key. It releases a dropped duplicate at once; streamz never releases it."""

    def __init__(self, upstream: Stream, n: int | None, timeout: float | None, key: Any, keep: str) -> None:
        if keep not in ("first", "last"):
            raise ValueError(f"keep={keep!r} is not known: one of first, last")
        self._key, self._keeps_last = key_of(key), keep == "last"
        super().__init__(upstream, n, timeout)

    def _admit(self, window: _Window, x: Any, metadata: Metadata) -> list[Kept]:
        key = self._key(x)
        if key in window.items and not self._keeps_last:
            return []
        item = self._keep(x, metadata)
        dropped = window.items.pop(key, None)
        window.items[key] = item  # at the end: the order is that of the data that are kept
        return [] if dropped is None else [dropped]


class PartitionUnique(_KeepingOne, verb="partition_unique"):
    """`Stream.partition_unique`."""


class TimedWindow(Gathering, verb="timed_window"):
    """`Stream.timed_window`."""

    def _made(self, items: list[Kept]) -> Any:
        return [item.x for item in items]


class TimedWindowUnique(_KeepingOne, verb="timed_window_unique"):
    """`Stream.timed_window_unique`."""


class Collect(Gathering, _Flushed, verb="collect"):
    """`Stream.collect`."""

    def __init__(self, upstream: Stream) -> None:
        super().__init__(upstream, None, None)


class SlidingWindow(Keeping, verb="sliding_window"):
    """`Stream.sliding_window`: a datum is held until it leaves the window, since it may be emitted again until then."""

    references: ClassVar[References] = References.LEFT
    remembers: ClassVar[bool] = True

    def __init__(self, upstream: Stream, n: int, *, return_partial: bool) -> None:
        if n < 1:
            raise ValueError(f"a window of {n} data has none")
        self._n, self._return_partial = n, return_partial
        self._items: deque[Kept] = deque()
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        with self._lock:
            self._items.append(self._keep(x, metadata))
            try:
                if self._return_partial or len(self._items) == self._n:
                    self._emit(tuple(item.x for item in self._items), joined(self._items))
            finally:
                if len(self._items) == self._n:
                    self._let_go([self._items.popleft()])

    def _kept(self) -> Iterable[Kept]:
        return self._items

    def _forget(self) -> None:
        self._items.clear()
