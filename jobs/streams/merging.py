"""Nodes with several upstreams, which merge the metadata of the data that they join."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from drainmark.jobs.streams.references import Metadata
from drainmark.jobs.streams.retained_nodes import Keeping, Kept, joined
from drainmark.jobs.streams.stream import References, Stream


class _Joining(Keeping):
    """A node with several upstreams, each of them a different stream."""

    def __init__(self, *upstreams: Stream) -> None:
        if len(set(upstreams)) < len(upstreams):
            raise ValueError(f"{type(self).__name__} reads a stream twice; write .map(lambda x: (x, x))")
        super().__init__(*upstreams)


class Zip(_Joining, verb="zip"):
    """`Stream.zip`."""

    def __init__(self, *upstreams: Stream, maxsize: int) -> None:
        if maxsize < 1:
            raise ValueError(f"zip(maxsize={maxsize}) has no room for a datum")
        self._maxsize = maxsize
        self._queues: dict[Stream, deque[Kept]] = {upstream: deque() for upstream in upstreams}
        super().__init__(*upstreams)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        queue = self._queues[who]
        with self._room:
            self._wait(lambda: len(queue) < self._maxsize)
            queue.append(self._keep(x, metadata))
            if all(self._queues.values()):
                items = [waiting.popleft() for waiting in self._queues.values()]
                self._room.notify_all()
                self._emit_kept(tuple(item.x for item in items), items)

    def kept_of(self) -> Mapping[Stream, int]:
        return {upstream: len(queue) for upstream, queue in self._queues.items()}

    def _kept(self) -> Iterable[Kept]:
        return [item for queue in self._queues.values() for item in queue]

    def _forget(self) -> None:
        for queue in self._queues.values():
            queue.clear()


class _Newest(_Joining):
    """A node that keeps the newest datum of a stream until a newer one replaces it."""

    references: ClassVar[References] = References.REPLACED
    remembers: ClassVar[bool] = True

    def __init__(self, *upstreams: Stream) -> None:
        self._newest: dict[Stream, Kept] = {}
        super().__init__(*upstreams)

    def _kept(self) -> Iterable[Kept]:
        return self._newest.values()

    def _forget(self) -> None:
        self._newest.clear()


class CombineLatest(_Newest, verb="combine_latest"):
    """`Stream.combine_latest`."""

    def __init__(self, *upstreams: Stream, emit_on: Stream | int | Sequence[Stream | int] | None) -> None:
        chosen = [emit_on] if isinstance(emit_on, Stream | int) else emit_on
        self._emit_on = {upstreams[one] if isinstance(one, int) else one for one in chosen or upstreams}
        if not self._emit_on <= set(upstreams):
            raise ValueError("emit_on names a stream that is not combined")
        super().__init__(*upstreams)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        with self._lock:
            item = self._keep(x, metadata)
            replaced = self._newest.get(who)
            self._newest[who] = item
            try:
                if who in self._emit_on and len(self._newest) == len(self.upstreams):
                    items = [self._newest[upstream] for upstream in self.upstreams]
                    self._emit(tuple(one.x for one in items), joined(items))
            finally:
                self._let_go([] if replaced is None else [replaced])


class ZipLatest(_Newest, verb="zip_latest"):
    """`Stream.zip_latest`: it emits every datum of the first stream, with the newest datum of each other stream."""

    def __init__(self, *upstreams: Stream) -> None:
        self._waiting: deque[Kept] = deque()
        super().__init__(*upstreams)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        with self._lock:
            item = self._keep(x, metadata)
            replaced = None
            if who is self.upstreams[0]:
                self._waiting.append(item)
            else:
                replaced = self._newest.get(who)
                self._newest[who] = item
            try:
                self._emit_waiting()
            finally:
                self._let_go([] if replaced is None else [replaced])

    def _emit_waiting(self) -> None:
        while self._waiting and len(self._newest) == len(self.upstreams) - 1:
            first = self._waiting.popleft()
            others = [self._newest[upstream] for upstream in self.upstreams[1:]]
            try:
                self._emit((first.x, *(item.x for item in others)), joined([first, *others]))
            finally:
                self._let_go([first])

    def _kept(self) -> Iterable[Kept]:
        return [*self._waiting, *self._newest.values()]

    def _forget(self) -> None:
        self._waiting.clear()
        super()._forget()
