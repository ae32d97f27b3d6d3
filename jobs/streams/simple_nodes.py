"""Nodes whose `update` returns when all nodes behind them have returned: they hold no reference of their own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drainmark.jobs.streams.references import Metadata
from drainmark.jobs.streams.stream import Stream, key_of


class _Calling(Stream):
    """A node that calls a function with a datum and further arguments."""

    def __init__(
        self, upstream: Stream, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        super().__init__(upstream)


class Map(_Calling, verb="map"):
    """`Stream.map`."""

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        self._emit(self._func(x, *self._args, **self._kwargs), metadata)


class Starmap(_Calling, verb="starmap"):
    """`Stream.starmap`."""

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        self._emit(self._func(*x, *self._args, **self._kwargs), metadata)


class Sink(_Calling, verb="sink"):
    """`Stream.sink`, and `Stream.sink_to_list`."""

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        self._func(x, *self._args, **self._kwargs)


class Filter(Stream, verb="filter"):
    """`Stream.filter`."""

    def __init__(self, upstream: Stream, predicate: Callable[[Any], Any]) -> None:
        self._predicate = predicate
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        if self._predicate(x):
            self._emit(x, metadata)


class Flatten(Stream, verb="flatten"):
    """`Stream.flatten`."""

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        for item in x:
            self._emit(item, metadata)


class Pluck(Stream, verb="pluck"):
    """`Stream.pluck`."""

    def __init__(self, upstream: Stream, pick: Any) -> None:
        self._pick = pick
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        pick = self._pick
        self._emit(tuple(x[one] for one in pick) if isinstance(pick, list) else x[pick], metadata)


class Union(Stream, verb="union"):
    """`Stream.union`."""


class _Ordered(Stream):
    """A node that takes one datum at a time, and emits before it takes the next one: it keeps the order."""

    def __init__(self, upstream: Stream) -> None:
        self._lock = upstream.threads.lock()
        super().__init__(upstream)


class Accumulate(_Ordered, verb="accumulate"):
    """`Stream.accumulate`; a function that raises leaves the state unchanged."""

    remembers = True

    def __init__(
        self,
        upstream: Stream,
        func: Callable[..., Any],
        start: Any,
        *,
        returns_state: bool,
        with_state: bool,
        kwargs: Mapping[str, Any],
    ) -> None:
        self._func, self._state, self._kwargs = func, start, kwargs
        self._returns_state, self._with_state = returns_state, with_state
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        with self._lock:
            if self._state is ...:
                self._state = result = x
            else:
                result = self._func(self._state, x, **self._kwargs)
                self._state, result = result if self._returns_state else (result, result)
            self._emit((self._state, result) if self._with_state else result, metadata)


class Slice(_Ordered, verb="slice"):
    """`Stream.slice`."""

    remembers = True

    def __init__(self, upstream: Stream, start: int | None, end: int | None, step: int | None) -> None:
        self._start, self._end, self._step = start or 0, end, step or 1
        if min(self._start, self._step, end or 0) < 0:
            raise ValueError("slice() knows no numbers below zero: a stream has no end to count from")
        self._number = 0
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        with self._lock:
            number, self._number = self._number, self._number + 1
            is_inside = number >= self._start and (self._end is None or number < self._end)
            if is_inside and not (number - self._start) % self._step:
                self._emit(x, metadata)


class Unique(_Ordered, verb="unique"):
    """`Stream.unique`."""

    remembers = True

    def __init__(self, upstream: Stream, maxsize: int | None, key: Any, *, hashable: bool) -> None:
        if maxsize is not None and maxsize < 1:
            raise ValueError(f"unique(maxsize={maxsize}) remembers no key")
        self._key, self._maxsize = key_of(key), maxsize
        self._seen: OrderedDict[Any, None] | list[Any] = OrderedDict() if hashable else []
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        with self._lock:
            if not self._has_seen(self._key(x)):
                self._emit(x, metadata)

    def _has_seen(self, key: Any) -> bool:
        """Say whether a key is among the keys seen, and make it the newest of them."""
        seen = self._seen
        was_there = key in seen
        if isinstance(seen, OrderedDict):
            seen[key] = None
            seen.move_to_end(key)
            if self._maxsize is not None and len(seen) > self._maxsize:
                seen.popitem(last=False)
            return was_there
        if was_there:
            seen.remove(key)
        seen.append(key)
        if self._maxsize is not None:
            del seen[: -self._maxsize]
        return was_there


class RateLimit(_Ordered, verb="rate_limit"):
    """`Stream.rate_limit`."""

    def __init__(self, upstream: Stream, interval: float) -> None:
        self._interval = interval
        self._next = 0.0
        super().__init__(upstream)
        self._next = self.threads.now()

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        with self._lock:
            self.threads.sleep(self._next - self.threads.now())
            self._next = self.threads.now() + self._interval
            self._emit(x, metadata)
