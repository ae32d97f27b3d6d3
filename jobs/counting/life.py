"""`Life`: one graph of a `StreamStart`, from a reset to the next: what is in it, and what of it may be submitted."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from jobs.counting.gathering import Gathering
from jobs.counting.progress import Entered, Progress
from jobs.counting.references import REF, Metadata, RefCounter
from jobs.counting.registry import nodes
from jobs.counting.stream import Stream
from jobs.counting.threads import Threads
from jobs.counting.wholes import Wholes
from jobs.handler_errors import StreamRefused

_NUMBER = "number"

Submit = Callable[["Life", Sequence[Any], Sequence[Entered]], None]
"""Submits outputs of data, all or, where the life is over, none."""


class Life:
    """A graph with its data in flight. `take` is called by one thread; the graph's threads do the rest.

    Args:
        flow: builds the graph behind its source, and returns the end.

    Raises:
        StreamRefused: a node remembers.
    """

    def __init__(self, progress: Progress, flow: Callable[[Stream], Stream], threads: Threads, submit: Submit) -> None:
        self.progress = progress
        self._submit = submit
        self._wholes = Wholes()
        self._entered: dict[int, Entered] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._source = Stream(threads=threads)
        _End(flow(self._source), self._add)
        self._nodes = self._source.graph()
        self._refuse()

    @property
    def in_flight(self) -> int:
        """Return how many data are begun and not submitted."""
        return self._wholes.open

    def take(self, position: Any, datum: Any) -> None:
        """Put a datum in.

        Raises:
            Exception: what the graph raised, or `submit`.
        """
        entered = self.progress.enter(position)
        with self._lock:
            number = next(self._numbers)
            self._wholes.begin(number)
            self._entered[number] = entered
        reference = RefCounter(lambda: self._ended(number), on_failure=self._fail)
        self._source.emit(datum, metadata=[{REF: reference, _NUMBER: number, "position": position}])

    def check(self) -> None:
        """Raise what failed in a thread of the graph's own."""
        if self._failure is not None:
            raise self._failure

    def rests(self, seconds: float) -> bool:
        """Say whether nothing is under way within so many seconds; windows and delays may hold something."""
        return self._source.join(seconds)

    def is_idle(self) -> bool:
        """Say whether nothing will ever happen by itself."""
        return not any(node.threads.has_work() for node in self._nodes)

    def flush(self) -> None:
        """Emit what windows and partitions hold."""
        for node in self._nodes:
            if isinstance(node, Gathering):
                node.flush()

    def close(self) -> None:
        """End the graph; what is in it is given up."""
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
        try:
            self._submit(self, outputs, entered)
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _refuse(self) -> None:
        names = {node.cls: node.name for node in nodes()}
        for node in self._nodes:
            if node.remembers:
                raise StreamRefused(
                    f"{names.get(type(node), type(node).__name__)} depends on data that are done, and a reset does not "
                    "bring them back",
                    remedy="keep that state in the region: dm.aggregate, dm.deduplicate, dm.sliding",
                )


class _End(Stream):
    """What `flow` emits goes here."""

    def __init__(self, upstream: Stream, add: Callable[[Any, Metadata], None]) -> None:
        self._add = add
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Metadata) -> None:
        self._add(x, metadata)
