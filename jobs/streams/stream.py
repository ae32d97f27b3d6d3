"""`Stream`: nodes that pass data on by calling each other, and count the holders of each datum.

This module has the path of a datum and the methods that add nodes. The modules beside it define the nodes.
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
    """The time for which a node holds its own references to a datum."""

    NONE = "none: it returns when everything behind it has"
    EMITTED = "until the datum is emitted"
    LEFT = "until the datum leaves the window, emitted several times"
    REPLACED = "until a newer datum takes its place, emitted several times"


class Stream:
    """A node, and as `Stream()` the source of a graph.

    `emit` takes a datum and its metadata: a list with one mapping for each source datum in it. The key `ref` of a
    mapping has the counter. Before a node emits a datum, it takes one reference for each node that gets the datum, and
    releases it when that node has returned. A node that keeps a datum holds a reference of its own. So the count is
    zero when nothing in the graph has the datum any more: it went through, or was dropped on purpose.

    An error in a node, or behind it, fails all data that are on their way there: their counters fall to zero as usual,
    but call `on_failure` instead of `cb`. In a chain without asynchronous nodes, `emit` raises the error, too. Behind
    an asynchronous node it is logged, and `failure` has it. After a failure, a node's state may include the failed
    datum: begin a new graph, and replay.

    Any thread may emit. Nodes with state take data one at a time, and keep their order. A graph has no cycles.

    Args:
        threads: runs asynchronous nodes; `RealThreads()` by default. Nodes inherit it.

    Attributes:
        references: how long a node holds a datum.
        remembers: its output depends on data that it has emitted or dropped and does not hold completely: a
            replay from an acknowledged position gives other results.
        is_asynchronous: it may return from `update` before the datum is emitted.
    """

    references: ClassVar[References] = References.NONE
    remembers: ClassVar[bool] = False
    is_asynchronous: ClassVar[bool] = False

    threads: Threads
    kinds: ClassVar[dict[str, type[Stream]]] = {}

    def __init_subclass__(cls, verb: str = "", **options: Any) -> None:
        """Register a node class under the method of `Stream` that adds it: `verb`."""
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

    # --- the path of a datum -----------------------------------------------------------------------------------------

    def emit(self, x: Any, metadata: Metadata | None = None) -> None:
        """Put a datum in at this node.

        It returns when every synchronous chain behind the node has returned. Behind an asynchronous node, the datum may
        still be in work then. If no node follows, the datum is done at once.

        Raises:
            StreamClosed: the graph is closed.
            Exception: the error of a node on the way; the datum failed.
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
        """Pass a datum to the nodes behind this one, and hold a reference for each of them until it returns."""
        downstreams = self.downstreams
        if not isinstance(metadata, (tuple, list)):  # a user's node may pass an iterator, which is read only once
            metadata = tuple(metadata)
        if not metadata:
            for downstream in downstreams:
                downstream.update(x, self, metadata)
            return
        if len(downstreams) == len(metadata) == 1 and REF in metadata[0]:  # the same as below, twice as fast
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
        """Process a datum from an upstream; the classes of nodes override this."""
        self._emit(x, metadata)

    def held(self) -> Iterator[Mapping[str, Any]]:
        """Yield the metadata of the data that this node keeps: one entry for each reference that it holds."""
        yield from ()

    # --- the whole graph ---------------------------------------------------------------------------------------------

    def graph(self) -> list[Stream]:
        """Return all nodes connected with this one, itself included, upstreams before downstreams."""
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
        """Return an error that was raised behind an asynchronous node of the graph; None if there was none."""
        return next((node._own_failure for node in self.graph() if node._own_failure is not None), None)

    def join(self, seconds: float | None = None) -> bool:
        """Wait until no task in the graph is under way or due; data in windows and delays stay there.

        Returns:
            False if a task was still under way or due after so many seconds.
        """
        return all(threads.join(seconds) for threads in {node.threads: None for node in self.graph()})

    def close(self) -> None:
        """End the graph: the data that nodes keep fail. A second call does nothing.

        Threads that wait for room get `StreamClosed`. Nodes that emit now finish by themselves; this call waits for a
        node that keeps the order of its data.
        """
        nodes = self.graph()
        for node in nodes:
            node._is_closed = True
        for threads in {node.threads: None for node in nodes}:
            threads.close()
        for node in reversed(nodes):  # a thread that waits for room at a node holds the locks of nodes before it
            node._give_up(StreamClosed("the stream was closed while it kept a datum", remedy="replay it"))

    def _give_up(self, error: BaseException) -> None:
        """Fail and release all data that the node keeps."""

    def _note(self, error: BaseException) -> None:
        """Remember and log an error in a thread of the node: no caller is there to get it."""
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
        """Emit the data for which `predicate` is true; by default, the data that are true. The rest is dropped."""
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
            start: the first state; the first datum by default, which is emitted unchanged.
            returns_state: `func` returns the state and the result to emit.
            with_state: emit the state and the result.
        """
        return self._node("accumulate", func, start, returns_state=returns_state, with_state=with_state, kwargs=kwargs)

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Stream:
        """Emit data by their number, as `list[start:end:step]` does; negative numbers are not allowed."""
        return self._node("slice", start, end, step)

    def flatten(self) -> Stream:
        """Emit each element of a datum. A node that keeps an element holds the datum."""
        return self._node("flatten")

    def pluck(self, pick: Any) -> Stream:
        """Emit `x[pick]`; for a list of picks, emit a tuple."""
        return self._node("pluck", pick)

    def unique(
        self, maxsize: int | None = None, key: Callable[[Any], Any] | None = None, *, hashable: bool = True
    ) -> Stream:
        """Emit a datum if its key is not among the last `maxsize` keys; by default, if its key is new."""
        return self._node("unique", maxsize, key, hashable=hashable)

    def rate_limit(self, interval: float) -> Stream:
        """Emit at most one datum in so many seconds; the thread that emits waits."""
        return self._node("rate_limit", interval)

    def sink(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Stream:
        """Call `func(x, *args, **kwargs)`; this node is done with the datum when the call returns."""
        return self._node("sink", func, args, kwargs)

    def sink_to_list(self) -> list[Any]:
        """Return a list that data are appended to."""
        found: list[Any] = []
        self.sink(found.append)
        return found

    # --- queues and threads --------------------------------------------------------------------------

    def buffer(self, n: int) -> Stream:
        """Emit from a thread of its own. At most n data wait; then the thread that emits into it waits."""
        return self._node("buffer", n)

    def delay(self, interval: float) -> Stream:
        """Emit each datum so many seconds later."""
        return self._node("delay", interval)

    def latest(self) -> Stream:
        """Emit the newest datum from a thread of its own. Older data that still wait are dropped, and done."""
        return self._node("latest")

    def map_async(
        self, func: Callable[..., Any], *args: Any, parallelism: int = 1, stop_on_exception: bool = False, **kwargs: Any
    ) -> Stream:
        """Emit `func(x, *args, **kwargs)` in the order of the data, computed in a pool of `parallelism` threads.

        At most `parallelism` data are in work at once; then the thread that emits waits. A call that raises fails its
        datum, which never counts as done. The other data go on, unless `stop_on_exception` is set: then the node takes
        and emits nothing more.
        """
        return self._node("map_async", func, args, kwargs, parallelism=parallelism, stop_on_exception=stop_on_exception)

    # --- groups and windows ---------------------------------------------------------------------------

    def partition(self, n: int, timeout: float | None = None, key: Any = None) -> Stream:
        """Emit tuples of n data of the same key; of fewer, if `timeout` seconds have passed since the first of them.

        Args:
            key: a function of a datum, or a value to pluck with; by default all data have the same key.
        """
        return self._node("partition", n, timeout, key)

    def partition_unique(
        self, n: int, key: Any = None, keep: Literal["first", "last"] = "first", timeout: float | None = None
    ) -> Stream:
        """Emit tuples of n data of different keys. Of each key one datum is kept; the others are dropped, and done.

        Args:
            key: as in `partition`; the datum itself by default.
            timeout: as in `partition`.
        """
        return self._node("partition_unique", n, timeout, key, keep)

    def timed_window(self, interval: float, count_trigger: int | None = None) -> Stream:
        """Emit lists of the data that came within `interval` seconds of the first of them; no empty lists.

        Args:
            count_trigger: emit a window early when it has so many data: a replay reads an hour of data in a second.
        """
        return self._node("timed_window", count_trigger, interval)

    def timed_window_unique(
        self,
        interval: float,
        key: Any = None,
        keep: Literal["first", "last"] = "first",
        count_trigger: int | None = None,
    ) -> Stream:
        """Emit tuples, timed as in `timed_window`, of data of different keys, chosen as in `partition_unique`."""
        return self._node("timed_window_unique", count_trigger, interval, key, keep)

    def sliding_window(self, n: int, *, return_partial: bool = True) -> Stream:
        """Emit a tuple of the last n data for each datum; the last n-1 are never done.

        Args:
            return_partial: emit from the first datum on, when there are fewer than n.
        """
        return self._node("sliding_window", n, return_partial=return_partial)

    def collect(self) -> _Flushed:
        """Keep all data until `flush()` emits them as a tuple. `flush` can be the function of another stream's sink."""
        return cast("_Flushed", self._node("collect"))

    # --- several streams -----------------------------------------------------------------------------------

    def union(self, *others: Stream) -> Stream:
        """Emit the data of all these streams."""
        return self._node("union", *others)

    def zip(self, *others: Stream, maxsize: int = 10) -> Stream:
        """Emit tuples of the first data of each stream, then of the second ones, …

        At most `maxsize` data of one stream wait for the others; then the thread that emits waits. So the other streams
        must be fed by other threads.
        """
        return self._node("zip", *others, maxsize=maxsize)

    def combine_latest(self, *others: Stream, emit_on: Stream | int | Sequence[Stream | int] | None = None) -> Stream:
        """Emit a tuple of the newest datum of each stream, whenever one comes; the newest ones are never done.

        Args:
            emit_on: emit only when a datum comes from these streams, given as streams or as their numbers.
        """
        return self._node("combine_latest", *others, emit_on=emit_on)

    def zip_latest(self, *others: Stream) -> Stream:
        """Emit a tuple for each datum of this stream, with the newest of the others; wait until these all have one."""
        return self._node("zip_latest", *others)


class _Flushed(Stream):
    """A node that emits when `flush` is called."""

    def flush(self) -> None:
        """Emit the data that are kept."""
        raise NotImplementedError


def key_of(key: Any) -> Callable[[Any], Hashable]:
    """Return the function that gives a datum's key: `key` itself, or one that plucks; for None, the identity."""
    if key is None:
        return lambda x: x  # type: ignore[no-any-return]
    if callable(key):
        return key  # type: ignore[no-any-return]
    return lambda x: x[key]  # type: ignore[no-any-return]
