"""The outputs of one attempt at a group; each is computed once, into staging, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

from drainmark.jobs.errors import AccountingError
from drainmark.jobs.frames.arrow import arrow_of
from drainmark.jobs.frames.row_order import in_order
from drainmark.jobs.frames.tags import POSITION
from drainmark.jobs.graph.annotations import Checkpoints
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sinks.sink import Sink
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile
from drainmark.jobs.runtime.analysis.blueprint import Blueprint, check_schema
from drainmark.jobs.runtime.analysis.column_types import require_ids
from drainmark.jobs.runtime.commit.staged_group import StagedTable
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.executors import OperatorExecutors
from drainmark.jobs.runtime.spark_failures import blaming
from drainmark.jobs.state.keyed_state import KeyedState
from drainmark.jobs.tasks.judged_rows import Giver, require_text
from drainmark.jobs.tasks.layout import Layout
from drainmark.resources.delta.staging import Staging

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(slots=True, kw_only=True)
class OutputStaging:
    """The staging of tables and of changes of states; used once.

    Attributes:
        states: by name of their tables.
        pool: of the threads.
    """

    attempt: Attempt
    executors: OperatorExecutors
    blueprint: Blueprint
    states: Mapping[str, KeyedState]
    pool: ThreadPoolExecutor
    _staged: dict[str, Future[StagedTable]] = field(default_factory=dict)
    _computed: list[tuple[threading.Event, Future[StagedTable]]] = field(default_factory=list)

    def stage(self, operator: Operator, frame: DataFrame) -> None:
        """Begin to stage the output of an operator."""
        self._begin(operator, self.blueprint.written_by[operator.name], frame)

    def keep(self, operator: Operator, changes: Mapping[str, DataFrame]) -> None:
        """Begin to stage the changes of states that are kept beside an output."""
        for part, frame in changes.items():
            self._begin(operator, self.blueprint.kept[operator.name, part], frame)

    def keep_rows(self, operator: Operator, changed: Mapping[str, pa.Table]) -> None:
        """Begin to stage the changes of states that are in memory."""
        from pyspark.sql.pandas.types import from_arrow_schema

        for part, rows in changed.items():
            name = self.blueprint.kept[operator.name, part]
            check_schema(self.blueprint.table(name), from_arrow_schema(rows.schema))
            self._submit(operator, name, partial(self._write_rows, operator, name, rows))

    def frame_of(self, table: str) -> DataFrame:
        """Wait for the rows of a table, and return the frame that downstream operators read."""
        frame = self._staged[table].result().frame
        if frame is None:
            raise AccountingError(f"{table} is read, and only staged")
        return frame

    def await_rows(self) -> None:
        """Wait until the rows of all outputs are computed; the rows of a small group need not be in files yet.

        Raises:
            DrainmarkError: an output could not be computed.
        """
        for computed, staged in self._computed:
            computed.wait()
            if staged.done():
                staged.result()

    def tables(self) -> dict[str, StagedTable]:
        """Wait for all outputs, and return them by name of table."""
        return {name: future.result() for name, future in self._staged.items()}

    def _begin(self, operator: Operator, name: str, frame: DataFrame) -> None:
        shown = frame.drop(POSITION) if _is_placed(operator) else frame
        check_schema(self.blueprint.table(name), shown.schema)
        self._submit(operator, name, partial(self._write, operator, name, frame))

    def _submit(self, operator: Operator, name: str, write: Callable[[Callable[[], None]], StagedTable]) -> None:
        computed = threading.Event()
        self._staged[name] = staged = self.pool.submit(self._blamed, operator, partial(write, computed.set))
        staged.add_done_callback(lambda _: computed.set())  # it may fail before it has rows
        self._computed.append((computed, staged))

    def _blamed(self, operator: Operator, write: Callable[[], StagedTable]) -> StagedTable:
        with self.attempt.engine.tagged(self.attempt.group.tag):
            return blaming(self.blueprint.region, operator, write)

    def _write(self, operator: Operator, name: str, frame: DataFrame, computed: Callable[[], None]) -> StagedTable:
        """Compute one output, once, into staging; runs in a thread of its own, beside the other outputs.

        Args:
            computed: called when the rows are computed.
        """
        executor = self.executors.of(operator)
        if executor.are_few:
            rows = _in_place(operator, arrow_of(frame), self.blueprint.table(name))
            staged = self._write_rows(operator, name, rows, computed)
            shown = executor.local(rows, frame) if self._is_read(operator, name) else frame
            return replace(staged, frame=shown)
        shown = frame.drop(POSITION) if _is_placed(operator) and not operator.keeps_places else frame
        # the same Spark jobs compute and write
        files = self._staging(name).write_frame(shown, "rows", Giver.of(operator))
        computed()
        kept = self.states[name].read_if_in_memory(files) if name in self.states else None
        staged = self._staged_frame(name, files, frame)
        return self._checked(operator, StagedTable(files=files, rows=kept, frame=staged))

    def _write_rows(self, operator: Operator, name: str, rows: pa.Table, computed: Callable[[], None]) -> StagedTable:
        """Write rows that are in memory, as `_write` does."""
        require_text(operator, rows)
        computed()
        files = () if self._is_left(operator, name) else self._staging(name).write(rows, "rows")
        return self._checked(operator, StagedTable(files=files, rows=rows))

    def _checked(self, operator: Operator, staged: StagedTable) -> StagedTable:
        require_ids(operator, staged.files, self.attempt.group.first_id, self.attempt.group.last_id)
        return staged

    def _staging(self, name: str) -> Staging:
        group = self.attempt.group
        return self.attempt.outside.store.staging(self.blueprint.table(name), group.epoch, group.attempt)

    def _is_left(self, operator: Operator, name: str) -> bool:
        """Say whether the background checkpoint writes the changes; the next group then finds them in memory."""
        if self.blueprint.region.parameters.checkpoints == Checkpoints.BLOCKING or not operator.non_blocking:
            return False
        return name in self.states and self.states[name].is_in_memory

    def _is_read(self, operator: Operator, name: str) -> bool:
        own = self.blueprint.written_by.get(operator.name) == name
        return own and self.blueprint.region.consumers(operator.name) > 0

    def _staged_frame(self, name: str, files: tuple[StagedFile, ...], frame: DataFrame) -> DataFrame:
        session = self.attempt.session
        if not files:
            return session.createDataFrame([], frame.schema)
        return self.attempt.outside.store.table(name).files.frame(session, files, frame.schema)


def _is_placed(operator: Operator) -> TypeGuard[Sink]:
    """Say whether the rows to stage come with `_position`, which puts them into the order of their stream."""
    return isinstance(operator, Sink) and not operator.keys


def _in_place(operator: Operator, rows: pa.Table, table: RegionTable) -> pa.Table:
    """Return the rows of a sink in the order of their stream, which Spark may have changed."""
    if not _is_placed(operator):
        return rows
    is_resorted = Layout.from_options(table.options, has_statistics=False).order
    rows = in_order(rows)
    return rows if operator.keeps_places and is_resorted else rows.drop_columns([POSITION])
