"""Autonomous operators after a region: they see its rows at least once.

They run beside the group, in threads of their own, over the frames that the region computes anyway. Their sinks write
before the group is committed, so that no row is missing. Rows that a failed attempt sent come again, under another
sequence id. No error here fails the group: it is noted in its checkpoint row. If a table hangs, its rows wait and are
written later, in order, while the run lasts; rows that are not computed in time are never written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.frames.arrow import arrow_of
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.operator import Operator, StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.sinks.delta_append import DeltaSink
from drainmark.jobs.operators.sinks.delta_upsert import DeltaUpsertSink
from drainmark.jobs.protocol.records.manifest import Sent
from drainmark.jobs.runtime.autonomous.input import sentence_of
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.state.keyed_rows import RowsPerKey, last_per_key
from drainmark.resources.delta.staging import nullable_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.resources.delta.autonomous_tables import AutonomousTable

PATIENCE_SECONDS = 30.0
"""Time that a group, otherwise drained, waits for the sinks that follow its region; or as long as they have run by
then, if that is longer: they read the same rows."""


@dataclass(slots=True, kw_only=True)
class Sending:
    """The run of the operators that follow a region, over one attempt at a group; used once.

    Attributes:
        outlets: of the run.
        number: of the attempt, from `Outlets.begin`.
    """

    attempt: Attempt
    outlets: Outlets
    number: int
    _began: float | None = None
    _computing: set[str] = field(default_factory=set)
    _writing: dict[str, Future[Sent]] = field(default_factory=dict)
    _sent: dict[str, Sent] = field(default_factory=dict)
    _broken: dict[str, str] = field(default_factory=dict)

    def run(self, operator: Operator, frames: OperatorContext) -> None:
        """Apply one operator, and begin the writing of a sink; the caller keeps the topological order."""
        self._began = world.monotonic() if self._began is None else self._began
        broken = next((self._broken[port.upstream] for port in operator.inputs if port.upstream in self._broken), None)
        try:
            made = self._applied(operator, frames) if broken is None else {}
        except Exception as error:
            broken, made = sentence_of(error), {}
        if broken is not None:
            self._broken[operator.name] = broken
            self._sent.update((f"lake/{table}", Sent(error=broken)) for table in operator.tables)
        elif isinstance(operator, DeltaSink):
            done = self._writing[f"lake/{operator.table}"] = Future()
            self._computing.add(operator.name)
            # A daemon thread outside of any pool: the computation may hang, and the end of the process must not wait.
            threading.Thread(target=self._compute, args=(operator, made[""], done), daemon=True, name="send").start()
        else:
            frames.streams.update({operator.stream(output): frame for output, frame in made.items()})

    def wait(self) -> dict[str, Sent]:
        """Return the sent rows by table, once all tables are written; wait for none longer than its patience."""
        now, is_late = world.monotonic(), False
        patience = max(PATIENCE_SECONDS, now - (self._began or now))
        for name, writing in self._writing.items():
            try:
                self._sent[name] = writing.result(timeout=max(0.0, now + patience - world.monotonic()))
            except FutureTimeout:
                is_late = True
                self._sent[name] = Sent(error=f"not written within {patience:.0f} s; it may be later")
        if is_late and self._computing:  # only these sinks still have Spark jobs with this tag
            self.attempt.engine.cancel(self.attempt.group.tag)
        return dict(self._sent)

    @staticmethod
    def _applied(operator: Operator, frames: OperatorContext) -> dict[str, DataFrame]:
        """Return the frames of an operator by output."""
        result: StepResult = frames.guard(operator, lambda: operator.step(frames))
        return {output: _numbered(operator, result.of(output), frames) for output in operator.outputs or ("",)}

    def _compute(self, sink: DeltaSink, frame: DataFrame, done: Future[Sent]) -> None:
        name, attempt = f"lake/{sink.table}", self.attempt
        try:
            with attempt.engine.tagged(attempt.group.tag):
                write = self._computed(sink, frame, attempt.outside.store.autonomous(name))
        except BaseException as error:  # the region goes on after any error
            done.set_result(Sent(error=sentence_of(error)))
        else:
            self.outlets.hand_over(self.number, name, write, done)
        finally:
            self._computing.discard(sink.name)

    def _computed(self, sink: DeltaSink, frame: DataFrame, table: AutonomousTable) -> Callable[[], Sent]:
        """Compute the rows of a sink; return the function that appends them to the table, or upserts them by key.

        If the rows are not few, tasks write them to files, and this process never has them in memory.
        """
        schema = nullable_schema(frame.schema.json())
        if not self.attempt.executor.are_few:  # the table may hang: only the returned function opens it
            return self._staged(sink, frame, table, schema)
        rows = arrow_of(frame)
        if isinstance(sink, DeltaUpsertSink):
            return lambda: _sent(rows.num_rows, lambda: table.upsert(last_per_key(rows, sink.keys), sink.keys, schema))
        return lambda: _sent(rows.num_rows, lambda: table.append(rows, schema))

    def _staged(self, sink: DeltaSink, frame: DataFrame, table: AutonomousTable, schema: str) -> Callable[[], Sent]:
        if not isinstance(sink, DeltaUpsertSink):
            files = table.gathered(table.staged(frame))
            return lambda: _sent(sum(file.rows for file in files), lambda: table.append_files(files, schema))
        keys = sink.keys
        has_id = f"coalesce({SEQUENCE_ID}, cast(raise_error('rows have no {SEQUENCE_ID}') as bigint))"
        files = table.staged(RowsPerKey(keys).current(frame.withColumn(SEQUENCE_ID, F.expr(has_id))))
        # Without the attempt's tag: a late write must not be cancelled together with late computations.
        return lambda: _sent(sum(file.rows for file in files), lambda: table.upsert_files(files, keys, schema))


def _sent(rows: int, write: Callable[[], Any]) -> Sent:
    if rows:
        write()
    return Sent(rows=rows)


def _numbered(operator: Operator, frame: DataFrame, frames: OperatorContext) -> DataFrame:
    """Return rows with a sequence id; rows that have lost theirs get the group's last id."""
    if operator.keeps_tags or SEQUENCE_ID in frame.columns:
        return frame
    return frame.withColumn(SEQUENCE_ID, F.lit(frames.last_id).cast("bigint"))
