"""`Stream`: nodes that hand data on by calling each other, and count who holds each datum.

Here is the way of a datum and the methods that add nodes; what the nodes do stands in the modules beside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Literal, cast

from drainmark.jobs.errors.operator_code import StreamClosed
from drainmark.jobs.streams.references import REF, Metadata, counters, release, retain
from drainmark.jobs.streams.threads import RealThreads, Threads

logger = logging.getLogger(__name__)


class References(StrEnum):
    """How long a node holds references of its own to a datum."""

    NONE = "none: it returns when everything behind it has"
    EMITTED = "until the datum is emitted"
    LEFT = "until the datum leaves the window, emitted several times"
    REPLACED = "until a newer datum takes its place, emitted several times"


class Stream:
    """A node, and as `Stream()` the source of a graph.

    `emit` puts in a datum and its metadata, a list with a mapping for each source datum in it; a counter is there under
    `ref`. Before a node hands a datum on, it takes a reference for each node that is to get it, and releases one
    when that node has returned; a node that keeps a datum holds a reference of its own. So the count is zero when
    nothing in the graph has the datum any more: it went through, or was dropped on purpose.

    An error in a node, or behind it, fails all data that are on their way there: their counters fall like any
    others', and call back `on_failure` instead of `cb`. In a chain without asynchronous nodes `emit` raises it, too;
    behind one it is logged, and `failure` has it. After a failure the memory of stateful nodes may have the datum that
    failed: begin a new graph, and replay.

    Any thread may emit. Nodes with state take data one at a time, and keep their order. A graph has no cycles.

    Args:
        threads: where asynchronous nodes run; `RealThreads()` by default. Nodes inherit it.

    Attributes:
        references: how long a node holds a datum.
        remembers: its output depends on data that it has emitted or dropped, and does not hold as a whole: a
            replay from an acknowledged position gives other results.
        is_asynchronous: it may return from `update` before the datum is emitted.
    """

    references: ClassVar[References] = References.NONE
    remembers: ClassVar[bool] = False
    is_asynchronous: ClassVar[bool] = False

    threads: Threads
    kinds: ClassVar[dict[str, type[Stream]]] = {}

    def __init_subclass__(cls, verb: str = "", **options: Any) -> None:
        """Note which nodes a method of `Stream` adds: the modules beside this one define them, by `verb`."""
        super().__init_subclass__(**options)
        if verb:
            Stream.kinds[verb] = cls

    def _node(self, verb: str, *args: Any, **options: Any) -> Stream:
        return self.kinds[verb](self, *args, **options)

    def __init__(self, *upstreams: Stream, threads: Threads | None = None) -> None:
        self.upstreams = upstreams
        self.downstreams: tuple[Stream, ...] = ()
        self._own_failure: BaseException | None = None
        self._is_closed = False
        self.threads = threads or (upstreams[0].threads if upstreams else RealThreads())
        for upstream in upstreams:
            upstream.downstreams = (*upstream.downstreams, self)

    # --- the way of a datum ------------------------------------------------------------------------------------------

    def emit(self, x: Any, metadata: Metadata | None = None) -> None:
        """Put a datum in at this node.

        Returns when every synchronous chain behind it has (that says nothing once an asynchronous node is there).
        Where nothing follows, it is done at once.

        Raises:
            StreamClosed: the graph is closed.
            Exception: what a node raised on the way; the datum failed.
        """
        if self._is_closed:
            raise StreamClosed("a datum is put into a stream that is closed", remedy="build the graph anew")
        metadata = tuple(metadata or ())  # read several times, and kept; the caller may use its list again
        self._emit(x, metadata)
        if not self.downstreams and metadata:
            references = counters(metadata)
            retain(references)
            release(references)

    def _emit(self, x: Any, metadata: Metadata = ()) -> None:
        """Hand a datum to the nodes behind this one, each holding a reference meanwhile."""
        downstreams = self.downstreams
        if not isinstance(metadata, (tuple, list)):  # of a node of an author's own: an iterator is read only once
            metadata = tuple(metadata)
        if not metadata:
            for downstream in downstreams:
                downstream.update(x, self, metadata)
            return
        if len(downstreams) == len(metadata) == 1 and REF in metadata[0]:  # as below, at half the price
            reference = metadata[0][REF]
            reference.retain()
            try:
                downstreams[0].update(x, self, metadata)
            except BaseException as error:
                reference.fail(error)
                reference.release()
                raise
            reference.release()
            return
        references, left = counters(metadata), len(downstreams)
        retain(references, left)
        try:
            for downstream in downstreams:
                downstream.update(x, self, metadata)
                left -= 1
                release(references)
        except BaseException as error:
            for reference in references:
                reference.fail(error)
            release(references, left)
            raise

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        """Take a datum from an upstream; nodes say here what they do with it."""
        self._emit(x, metadata)

    def held(self) -> Iterator[Mapping[str, Any]]:
        """Yield the metadata of what this node keeps: an entry for each reference that it holds."""
        yield from ()

    # --- the whole graph ---------------------------------------------------------------------------------------------

    def graph(self) -> list[Stream]:
        """Return all nodes that hang together with this one, upstreams before downstreams."""
        found: dict[Stream, None] = {}
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found[node] = None
                waiting += [*node.upstreams, *node.downstreams]
        ordered: dict[Stream, None] = {}
        while len(ordered) < len(found):
            ordered.update((node, None) for node in found if ordered.keys() >= {*node.upstreams})
        return list(ordered)

    @property
    def failure(self) -> BaseException | None:
        """Return what failed behind an asynchronous node, anywhere in the graph; None where nothing did."""
        return next((node._own_failure for node in self.graph() if node._own_failure is not None), None)

    def join(self, seconds: float | None = None) -> bool:
        """Wait until nothing is under way in the graph, and nothing due; what windows and delays keep stays there.

        Returns:
            Whether it was so within so many seconds.
        """
        return all(threads.join(seconds) for threads in {node.threads: None for node in self.graph()})

    def close(self) -> None:
        """End the graph: what nodes keep is given up, and fails; again is harmless.

        Whoever waits for room is sent away. What is just being handed on ends by itself, and is waited for where its
        node keeps an order.
        """
        nodes = self.graph()
        for node in nodes:
            node._is_closed = True
        for threads in {node.threads: None for node in nodes}:
            threads.close()
        for node in reversed(nodes):  # who waits for room at one holds the locks of those before it
            node._give_up(StreamClosed("the stream was closed while it kept a datum", remedy="replay it"))

    def _give_up(self, error: BaseException) -> None:
        """Let everything go that is kept, failed."""

    def _note(self, error: BaseException) -> None:
        """Remember what failed in a thread of a node's own, where nobody is called back."""
        self._own_failure = self._own_failure or error
        text = "A datum failed behind an asynchronous node"
        logger.error(text, exc_info=error, extra={"action": "stream_datum_failed", "node": type(self).__name__})

    # --- one datum at a time ------------------------------------------------------------------------------

    def map(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Stream:
        """Emit `func(x, *args, **kwargs)`."""
        return self._node("map", func, args, kwargs)

    def starmap(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Stream:
        """Emit `func(*x, *args, **kwargs)`."""
        return self._node("starmap", func, args, kwargs)

    def filter(self, predicate: Callable[[Any], Any] | None = None) -> Stream:
        """Emit what a predicate holds for, or what is true; the rest is done when this returns."""
        return self._node("filter", predicate or bool)

    def accumulate(
        self,
        func: Callable[..., Any],
        start: Any = ...,
        *,
        returns_state: bool = False,
        with_state: bool = False,
        **kwargs: Any,
    ) -> Stream:
        """Emit `func(state, x, **kwargs)`, which is the new state.

        Args:
            start: the first state; the first datum by default, which is emitted as it is.
            returns_state: `func` returns the state and what to emit.
            with_state: emit the state and the result.
        """
        return self._node("accumulate", func, start, returns_state=returns_state, with_state=with_state, kwargs=kwargs)

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Stream:
        """Emit data by their number, as `list[start:end:step]` does; numbers are not negative."""
        return self._node("slice", start, end, step)

    def flatten(self) -> Stream:
        """Emit each element of a datum; each holds it, since any of them may be kept somewhere."""
        return self._node("flatten")

    def pluck(self, pick: Any) -> Stream:
        """Emit `x[pick]`, of a list of picks a tuple."""
        return self._node("pluck", pick)

    def unique(
        self, maxsize: int | None = None, key: Callable[[Any], Any] | None = None, *, hashable: bool = True
    ) -> Stream:
        """Emit what was not there before, among the `maxsize` keys that came last, or ever."""
        return self._node("unique", maxsize, key, hashable=hashable)

    def rate_limit(self, interval: float) -> Stream:
        """Emit at most one datum in so many seconds; whoever emits waits."""
        return self._node("rate_limit", interval)

    def sink(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Stream:
        """Call `func(x, *args, **kwargs)`: the datum is done here when it returns."""
        return self._node("sink", func, args, kwargs)

    def sink_to_list(self) -> list[Any]:
        """Return a list that data are appended to."""
        found: list[Any] = []
        self.sink(found.append)
        return found

    # --- queues and threads --------------------------------------------------------------------------

    def buffer(self, n: int) -> Stream:
        """Emit from a thread of its own; at most n data wait, then whoever emits does."""
        return self._node("buffer", n)

    def delay(self, interval: float) -> Stream:
        """Emit each datum so many seconds later."""
        return self._node("delay", interval)

    def latest(self) -> Stream:
        """Emit the newest datum from a thread of its own; what is overtaken meanwhile is dropped, and done."""
        return self._node("latest")

    def map_async(
        self, func: Callable[..., Any], *args: Any, parallelism: int = 1, stop_on_exception: bool = False, **kwargs: Any
    ) -> Stream:
        """Emit `func(x, *args, **kwargs)` in the order of the data, computed in a pool of so many threads.

        As many data are in work at once; then whoever emits waits. What raises fails its datum, which never counts as
        done; the others go on, unless `stop_on_exception`: then nothing more is taken or emitted.
        """
        return self._node("map_async", func, args, kwargs, parallelism=parallelism, stop_on_exception=stop_on_exception)

    # --- groups and windows ---------------------------------------------------------------------------

    def partition(self, n: int, timeout: float | None = None, key: Any = None) -> Stream:
        """Emit tuples of n data, of the same key; or of fewer, so many seconds after the first of them came.

        Args:
            key: of a datum, a function, or what to pluck; all are one by default.
        """
        return self._node("partition", n, timeout, key)

    def partition_unique(
        self, n: int, key: Any = None, keep: Literal["first", "last"] = "first", timeout: float | None = None
    ) -> Stream:
        """Emit tuples of n data of different keys; of the same key one is kept, and the others are dropped and done.

        Args:
            key: as of `partition`; the datum itself by default.
            timeout: as of `partition`.
        """
        return self._node("partition_unique", n, timeout, key, keep)

    def timed_window(self, interval: float, count_trigger: int | None = None) -> Stream:
        """Emit lists of what came within so many seconds of the first datum; no empty ones.

        Args:
            count_trigger: data at which a window is emitted earlier: a replay brings in a second what took an hour.
        """
        return self._node("timed_window", count_trigger, interval)

    def timed_window_unique(
        self,
        interval: float,
        key: Any = None,
        keep: Literal["first", "last"] = "first",
        count_trigger: int | None = None,
    ) -> Stream:
        """Emit tuples as `timed_window` does, of data of different keys as `partition_unique` does."""
        return self._node("timed_window_unique", count_trigger, interval, key, keep)

    def sliding_window(self, n: int, *, return_partial: bool = True) -> Stream:
        """Emit a tuple of the last n data for each datum; the last n-1 are never done.

        Args:
            return_partial: emit from the first datum on.
        """
        return self._node("sliding_window", n, return_partial=return_partial)

    def collect(self) -> _Flushed:
        """Keep all data until `flush()` emits them as a tuple; it may be the function of another stream's sink."""
        return cast("_Flushed", self._node("collect"))

    # --- several streams -----------------------------------------------------------------------------------

    def union(self, *others: Stream) -> Stream:
        """Emit what comes from any of the streams."""
        return self._node("union", *others)

    def zip(self, *others: Stream, maxsize: int = 10) -> Stream:
        """Emit tuples of the first data of each stream, then of the second ones, …

        At most `maxsize` data of one stream wait for the others; then whoever emits does, so that the others must come
        from threads of their own.
        """
        return self._node("zip", *others, maxsize=maxsize)

    def combine_latest(self, *others: Stream, emit_on: Stream | int | Sequence[Stream | int] | None = None) -> Stream:
        """Emit a tuple of the newest datum of each stream, whenever one comes; the newest ones are never done.

        Args:
            emit_on: emit only when a datum comes from these streams, or those of these numbers.
        """
        return self._node("combine_latest", *others, emit_on=emit_on)

    def zip_latest(self, *others: Stream) -> Stream:
        """Emit a tuple for each datum of this stream, with the newest of the others; waits for their first ones."""
        return self._node("zip_latest", *others)


class _Flushed(Stream):
    """A node that emits when it is told to."""

    def flush(self) -> None:
        """Emit what is kept."""
        raise NotImplementedError


def key_of(key: Any) -> Callable[[Any], Hashable]:
    """Return the function of a key: itself, or one that plucks; of None the datum is its own."""
    if key is None:
        return lambda x: x  # type: ignore[no-any-return]
    if callable(key):
        return key  # type: ignore[no-any-return]
    return lambda x: x[key]  # type: ignore[no-any-return]
