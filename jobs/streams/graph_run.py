"""One graph of a `StreamStart`, from one reset to the next: its data in flight, and the data ready to be submitted."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drainmark.jobs.errors.operator_code import StreamRefused
from drainmark.jobs.streams import batching, merging, queues, simple_nodes  # noqa: F401 - they define the nodes
from drainmark.jobs.streams.all_or_nothing import Wholes
from drainmark.jobs.streams.batching import Gathering
from drainmark.jobs.streams.progress import Entered, Progress
from drainmark.jobs.streams.references import REF, Metadata, RefCounter
from drainmark.jobs.streams.retained_nodes import Keeping
from drainmark.jobs.streams.stream import References, Stream
from drainmark.jobs.streams.threads import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A kind of node.

    Attributes:
        name: of the method of `Stream` that adds it.
        summary: the first line of that method's docstring.
        references, is_asynchronous, remembers: as in `Stream`.
    """

    name: str
    cls: type[Stream]
    summary: str
    references: References
    is_asynchronous: bool
    remembers: bool


def nodes() -> tuple[Node, ...]:
    """Return all kinds of nodes, sorted by name."""
    return tuple(
        Node(
            name=name,
            cls=cls,
            summary=(getattr(Stream, name).__doc__ or "").partition("\n")[0],
            references=cls.references,
            is_asynchronous=cls.is_asynchronous,
            remembers=cls.remembers,
        )
        for name, cls in sorted({**Stream.kinds, "sink_to_list": Stream.kinds["sink"]}.items())
    )


_NUMBER = "number"
_NAMES = {node.cls: node.name for node in nodes()}

Submit = Callable[["GraphRun", Sequence[Any], Sequence[Entered]], None]
"""Submits all outputs of some data; none of them if the graph run is over."""


class GraphRun:
    """A graph with its data in flight. The thread that creates it calls `take`; the graph's threads do the rest.

    Args:
        flow: builds the graph behind its source, and returns its last node.

    Attributes:
        torn: the error after which only a part of some data's outputs is submitted, and the rest never will be. No cut
            may be made then: it would contain half a datum, and the next run submits that datum as a whole.

    Raises:
        StreamRefused: a node remembers.
    """

    def __init__(self, progress: Progress, flow: Callable[[Stream], Stream], threads: Threads, submit: Submit) -> None:
        self.progress = progress
        self.torn: BaseException | None = None
        self._submit = submit
        self._leaving = 0
        self._wholes = Wholes()
        self._entered: dict[int, Entered] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._source = Stream(threads=threads)
        _End(flow(self._source), self._add)
        self._nodes = self._source.graph()
        self._refuse()
        for node in self._nodes:
            node.threads.feeder = threading.get_ident()

    @property
    def in_flight(self) -> int:
        """Return how many data are begun and not submitted."""
        with self._lock:  # data that have left the graph may still wait for a permit
            return self._wholes.open + self._leaving

    def take(self, position: Any, datum: Any) -> None:
        """Put a datum into the graph.

        Raises:
            Exception: the error that a node of the graph or `submit` raised.
        """
        entered = self.progress.enter(position)
        with self._lock:
            number = next(self._numbers)
            self._wholes.begin(number)
            self._entered[number] = entered
        reference = RefCounter(lambda: self._ended(number), on_failure=self._fail)
        self._source.emit(datum, metadata=[{REF: reference, _NUMBER: number, "position": position}])

    def check(self) -> None:
        """Raise the first error of a datum, also if a thread of the graph raised it."""
        if self._failure is not None:
            raise self._failure

    def rests(self, seconds: float) -> bool:
        """Wait at most so many seconds; say whether no task is under way or due. Windows and delays may hold data."""
        return self._source.join(seconds)

    def is_idle(self) -> bool:
        """Say whether no task or call can go on or begin, not even later."""
        return not any(node.threads.has_work() for node in self._nodes)

    def flush(self) -> None:
        """Emit the data that windows and partitions hold."""
        for node in self._nodes:
            if isinstance(node, Gathering):
                node.try_flush()

    def has_waiters(self) -> bool:
        """Say whether a thread of the graph waits for room at a node."""
        return any(node.threads.is_waited() for node in self._nodes)

    def kept(self) -> list[tuple[str, list[int]]]:
        """Return the nodes that keep data, each with the number of data it keeps from each of its upstreams."""
        return [(_name(node), list(kept.values())) for node, kept in self._keeping()]

    def told(self) -> str:
        """Return `kept` in words; for a node with several upstreams, name them."""
        return "; ".join(f"{_name(node)} keeps {_sides(kept)}" for node, kept in self._keeping())

    def close(self) -> None:
        """End the graph; the data in it fail."""
        self._source.close()

    def _add(self, output: Any, metadata: Metadata) -> None:
        numbers = [entry[_NUMBER] for entry in metadata if _NUMBER in entry]
        if not numbers:
            raise StreamRefused(
                "rows come out of the graph without the metadata of any datum: they cannot be counted",
                remedy="emit with metadata=, in a node of your own too",
            )
        if not hasattr(output, "column_names"):
            raise TypeError(f"flow() emits tables of Arrow, not {type(output).__name__}")
        with self._lock:
            self._wholes.add(output, numbers)

    def _ended(self, number: int) -> None:
        with self._lock:
            whole = self._wholes.end(number)
            if whole is None:
                return
            numbers, outputs = whole
            entered = [self._entered.pop(one) for one in numbers]
            self._leaving += len(numbers)
        try:
            self._submit(self, outputs, entered)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            with self._lock:
                self._leaving -= len(numbers)

    def _keeping(self) -> list[tuple[Stream, Mapping[Stream, int]]]:
        found = [(node, node.kept_of()) for node in self._nodes if isinstance(node, Keeping)]
        return [(node, kept) for node, kept in found if any(kept.values())]

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _refuse(self) -> None:
        for node in self._nodes:
            if node.remembers:
                raise StreamRefused(
                    f"{_name(node)} depends on data that are done, and a reset does not bring them back",
                    remedy="keep that state in the region: dm.aggregate, dm.deduplicate, dm.sliding",
                )


class _End(Stream):
    """The last node, which takes the rows that `flow` emits."""

    def __init__(self, upstream: Stream, add: Callable[[Any, Metadata], None]) -> None:
        self._add = add
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        self._add(x, metadata)


def _name(node: Stream) -> str:
    return _NAMES.get(type(node), type(node).__name__ if node.upstreams else "source")


def _sides(kept: Mapping[Stream, int]) -> str:
    if len(kept) == 1:
        return str(*kept.values())
    return " and ".join(f"{number or 'none'} of its {_name(stream)}" for stream, number in kept.items())
