"""`StreamStart`: a counted stream at the beginning of a consistent region."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from drainmark.jobs.errors.operator_code import PermitViolation, StreamClosed, StreamStuck
from drainmark.jobs.state.handlers.state_handler import StartHandler
from drainmark.jobs.streams.graph_run import GraphRun
from drainmark.jobs.streams.progress import Entered, Progress
from drainmark.jobs.streams.stream import Stream
from drainmark.jobs.streams.threads import RealThreads, Threads

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.02


class Boundary:
    """The marker that `read` yields to ask for a state of all data that it has yielded so far."""


BOUNDARY = Boundary()


class StreamStart(StartHandler):
    """A start for `dm.ThreadedStart` whose rows come from a stream of Python objects, exactly once.

        class Orders(dm.counting.StreamStart):
            def read(self, after, context):
                for message in consumer(after):                   # None: from the beginning
                    yield message.offset, message.value           # or None: nothing there, ask again

            def flow(self, source):
                return source.map(parse).map_async(enrich, parallelism=8).partition(100, timeout=1.0).map(to_arrow)

            def acknowledge(self, offset):
                consumer.commit(offset)

    The rows that `flow` emits, tables of Arrow, are submitted under a permit, in *wholes*: a datum's rows are submitted
    when no more can come from it, and together with those of all data that share an output with it. So a cut has all
    rows of a datum or none. Its state is the position up to which all data are in, and the data after it that are in.

    Each datum has a reference of its own, released when the region has a committed state of the cut with the datum; a
    position is acknowledged when all data up to it are committed. A reset begins a new graph, and reads again after the
    position of the newest cut, without the later data that the cut has. A failure anywhere in the graph fails the run.

    Nodes that remember (`drainmark.counting.nodes()`) are refused, since a replay could not give them their past: keep
    such state in the region, by `dm.aggregate`, `dm.deduplicate`, `dm.sliding`.

    Attributes:
        max_in_flight: limit of the data that are read and not submitted; at the limit, reading waits.
    """

    max_in_flight: ClassVar[int] = 10_000

    _progress: Progress
    _graph_run: GraphRun | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__new__(cls, *args, **kwargs)
        made._progress, made._graph_run = Progress(made.acknowledge), None
        return made

    # --- methods that a subclass overrides ---------------------------------------------------------------------------

    def read(self, after: Any, context: Any) -> Iterator[tuple[Any, Any] | Boundary | None]:
        """Yield positions and data after a position, the same in the same order each time; or None if there are none.

        One thread at a time calls this, in a run and after each reset. The iterator is closed when the region is reset
        or the run ends, but only when it yields. So yield None at least once a second while no data come, and sleep by
        `context.wait(0.2)`. A source that returns is at its end: windows are flushed, and all data in flight are waited
        for. After `BOUNDARY` the same happens; then reading goes on when the region has a consistent state of all that
        (`make_consistent`).

        Args:
            after: a position, of a type that `checkpoint.write` takes; None for the beginning.
        """
        raise NotImplementedError

    def flow(self, source: Stream) -> Stream:
        """Build the graph behind a source, and return its last node. Called at the start of a run and after a reset."""
        return source

    def acknowledge(self, position: Any) -> None:
        """Note that no replay will read a position or an earlier one; called under the operator's lock, in order.

        An error fails the run; the next position that is acknowledged includes this one.
        """

    def threads(self) -> Threads:
        """Return the threads that run the asynchronous nodes of a new graph."""
        return RealThreads()

    # --- the thread --------------------------------------------------------------------------------------------------

    def run(self, context: Any) -> None:
        """Feed graphs, a new one after each reset, until the source is at its end or the run is over."""
        is_over = False
        while not is_over:
            with context.permit(), self.lock:  # a reset is over then, and `_progress` is the new one
                graph_run = self._graph_run = GraphRun(self._progress, self.flow, self.threads(), self._submit)
            try:
                is_over = self._feed(graph_run)
            except (StreamClosed, PermitViolation, StreamStuck):
                if self._graph_run is graph_run:
                    raise
            finally:
                graph_run.close()

    def _feed(self, graph_run: GraphRun) -> bool:
        """Read data into a graph, and wait until they are submitted; return False if a reset ended the graph."""
        found = self.read(graph_run.progress.position, self._context)
        try:
            for item in found:
                if self._is_over(graph_run):
                    break
                graph_run.check()
                if isinstance(item, Boundary):
                    self._establish(graph_run)
                elif item is not None:
                    self._take(graph_run, *item)
                    self._wait_for_room(graph_run)
        finally:
            getattr(found, "close", lambda: None)()
        self._see_through(graph_run)
        return self._graph_run is graph_run

    def _see_through(self, graph_run: GraphRun, *, is_boundary: bool = False) -> None:
        """Wait until all data of the source are submitted: the source is at its end, or at a boundary.

        Raises:
            StreamStuck: data wait in vain. At the end or a boundary: for room at a node, so that later data never
                leave. At a boundary: for data to join, so that no state would have all data before the boundary.
        """
        while graph_run.in_flight and not self._is_over(graph_run):
            graph_run.check()
            if not graph_run.rests(_PAUSE_SECONDS):
                continue
            graph_run.flush()
            if graph_run.in_flight and graph_run.is_idle():  # they wait for data that will not come
                if is_boundary or graph_run.has_waiters():
                    raise self._stuck(graph_run, f"{graph_run.in_flight} data wait for others that do not come")
                left = {"action": "stream_data_left", "data": graph_run.in_flight, "kept": graph_run.kept()}
                logger.warning("A source ended with data that go with none", extra=left)
                break
            self._context.wait(_PAUSE_SECONDS)  # a delay may hold data
        if not self._is_over(graph_run):
            graph_run.check()

    def _take(self, graph_run: GraphRun, position: Any, datum: Any) -> None:
        if not graph_run.progress.has(position):
            try:
                graph_run.take(position, datum)
            except StreamStuck as error:
                raise self._stuck(graph_run, "a datum waits for room that nothing makes") from error
            return
        with self._context.permit(), self.lock:
            graph_run.progress.skip(position)

    def _establish(self, graph_run: GraphRun) -> None:
        self._see_through(graph_run, is_boundary=True)
        with self._context.permit():
            if not self._is_over(graph_run):
                self._context.make_consistent()  # if a reset comes instead, the next item notices it

    def _wait_for_room(self, graph_run: GraphRun) -> None:
        while graph_run.in_flight >= self.max_in_flight and not self._is_over(graph_run):
            graph_run.check()
            is_stuck = (
                graph_run.rests(_PAUSE_SECONDS) and graph_run.is_idle() and graph_run.in_flight >= self.max_in_flight
            )
            if not is_stuck:
                self._context.wait(_PAUSE_SECONDS)
            else:
                raise self._stuck(
                    graph_run, f"{graph_run.in_flight} data wait for others to come, and no more are taken"
                )

    def _stuck(self, graph_run: GraphRun, why: str) -> StreamStuck:
        remedy = (
            "let every stream of a zip() give as many, or raise its maxsize; give partition() a timeout or fewer keys; "
            "or raise max_in_flight of the class"
        )
        name, told = self._context.operator, graph_run.told()
        return StreamStuck(f"start {name!r}: {why}: {told}", operator=name, remedy=remedy, kept=graph_run.kept())

    def _submit(self, graph_run: GraphRun, outputs: Sequence[Any], entered: Sequence[Entered]) -> None:
        with self._context.permit(), self.lock:
            if self._graph_run is not graph_run:
                return  # a reset came: another graph reads them again
            try:
                for rows in outputs:
                    self._context.submit(rows)
                graph_run.progress.submitted(entered)
                if not outputs and graph_run.progress.uncut >= self.max_in_flight:
                    self._context.gate.ask()  # rows make a cut due; data that leave without rows must be cut as well
            except BaseException as error:
                graph_run.torn = error  # set before the permit is released, since a cut can begin then
                raise

    def _is_over(self, graph_run: GraphRun) -> bool:
        return self._graph_run is not graph_run or self._context.wait(0.0)

    @property
    def _context(self) -> Any:
        return self.context  # type: ignore[attr-defined] # the host sets it

    # --- the protocol ------------------------------------------------------------------------------------------------

    def checkpoint(self, checkpoint: Any) -> None:
        if self._graph_run is not None and self._graph_run.torn is not None:
            raise self._graph_run.torn
        position, beyond = self._progress.state()
        checkpoint.write(position)
        checkpoint.write(list(beyond))
        self._progress.cut(checkpoint.sequence_id)

    def reset(self, checkpoint: Any) -> None:
        position, beyond = checkpoint.read(), checkpoint.read(list)
        cut, told = checkpoint.sequence_id, self._context.committed_cut
        self._graph_run, self._progress = None, Progress(self.acknowledge, position, beyond, cut, is_told=told >= cut)

    def reset_to_initial_state(self) -> None:
        self._graph_run, self._progress = None, Progress(self.acknowledge)

    def region_checkpointed(self, sequence_id: int) -> None:
        self._progress.committed(self._context.committed_cut)
