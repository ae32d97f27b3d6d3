"""The thread of one stage: it does group after group; if one fails, it begins again from its own last state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import DrainTimeout, Retry
from drainmark.jobs.errors.operator_code import ResetWanted
from drainmark.jobs.failpoints import ChannelPoint
from drainmark.jobs.frames.row_order import in_key_order
from drainmark.jobs.frames.tags import ORDINAL, arrow_schema
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.protocol.stage_flow import part_attempt
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.regions.stages import StagePlan
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.staged_group import GroupTime, StagedGroup, StagedTable
from drainmark.jobs.runtime.group.group_work import GroupWork
from drainmark.jobs.runtime.group.stream_passing import Border
from drainmark.jobs.runtime.input.executors import GroupExecutor
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.messages import classified
from drainmark.jobs.runtime.outside import Report
from drainmark.jobs.runtime.spark_failures import blaming
from drainmark.jobs.runtime.stages.board import Board, StageTask
from drainmark.jobs.runtime.stages.channels.rows import ArrowRows, Batch, ChannelRows, FileRows
from drainmark.jobs.runtime.timeout import Bounded, Grace
from drainmark.jobs.state.checkpointed_state import Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0


@dataclass(slots=True, kw_only=True)
class StageWorker:
    """The worker of one stage for one board.

    Attributes:
        states: of the stage.
        time: for one group in this stage.
        restarts_allowed: of one group, before the region is reset.
        note: called whenever it begins a group again.
    """

    board: Board
    plan: StagePlan
    states: RegionStates
    outlets: Outlets
    grace: Grace
    time: GroupTime
    restarts_allowed: int
    note: Report
    tag: str = ""
    _is_moving: bool = field(default=False, init=False)

    def begin(self) -> None:
        """Start the thread; it ends when the board is closed."""
        threading.Thread(target=self._work, daemon=True, name=f"stage {self.plan.name}").start()

    def cancel(self) -> None:
        """Cancel the Spark jobs of the worker; its board is closed already."""
        if self.tag:
            self.states.outside.engine.cancel(self.tag)

    def _work(self) -> None:
        group: Group | None = None
        try:
            while (task := self.board.next(self.plan.name)) is not None:
                group = task.group
                self._do(task)
                group = None
        except BaseException as error:
            self.board.failed(self.plan.name, group, error)

    def _do(self, task: StageTask) -> None:
        """Do a group, with as many restarts as it needs and as are allowed."""
        pause, failed = _FIRST_PAUSE_SECONDS, 0
        while True:
            try:
                staged, leaving = self._attempt(task)
                break
            except Exception as error:
                failed += 1
                if not self._may_restart(error, failed):
                    raise
                self.board.restarted(self.plan.name)
                ids = {"first_id": task.group.first_id, "last_id": task.group.last_id}
                self.note("restart", {"stage": self.plan.name, **ids, "error": str(error)})
                if self.board.pause(pause):
                    raise
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self.board.done(self.plan.name, task, staged, leaving)

    def _may_restart(self, error: Exception, failed: int) -> bool:
        """May the stage begin the group again while the others go on?

        No if it has starts, because the region assigns their input; if its states have moved already; if a retry cannot
        help; or if an operator asks for a reset of the region. No after a time-out either: the abandoned attempt may
        still work on states that only a reset of the region replaces.
        """
        if not self.plan.inputs or self._is_moving or self.board.is_closed or failed > self.restarts_allowed:
            return False
        return classified(error).retry is Retry.ATTEMPT and not isinstance(error, ResetWanted | DrainTimeout)

    def _attempt(self, task: StageTask) -> tuple[StagedGroup, dict[str, ChannelRows]]:
        is_start = task.taken is None
        group = replace(task.group, attempt=part_attempt(world.token()))  # gives each start an inbox of its own, too
        self.tag = group.tag
        self._is_moving = False
        batches = task.taken.batches if task.taken is not None else {}
        size = group.bytes_to_read if is_start else sum(batch.bytes for batch in batches.values())
        files: dict[str, ChannelRows] = {}
        with self.board.entered():
            self.states.begin_group()
            border = StageBorder(
                region=self.states.blueprint.region,
                received=lambda executor: self._received(batches, executor),
                send=lambda stream, frame: self._in_files(stream, frame, group, files),
                outgoing=frozenset(channel.stream for channel in self.plan.outputs),
                rows=sum(batch.rows.count for batch in batches.values()),
            )
            work = GroupWork.of(self.states, group, size=size, outlets=self.outlets, border=border)
        staged = self._bounded(group, work.stage)
        with self.board.entered():
            self._is_moving = True  # from here on, the states may differ from those after the last group
        written = self._bounded(group, lambda: self._moved_on(staged))
        left: dict[str, ChannelRows] = {stream: ArrowRows(rows) for stream, rows in border.left.items()}
        return written, left | files

    def _moved_on(self, staged: StagedGroup) -> StagedGroup:
        """Apply the stage's own changes to its states at once, and write the files that are left; return the part.

        A reset loads all states from the committed history, so changes that are applied and never committed do no harm.

        Raises:
            Interrupted: the part was abandoned, and an operator that runs in this process was reset.
        """
        with self.states.outside.engine.tagged(self.tag):
            frozen = self.states.freeze(staged)
            made = self.states.write(frozen, frozen.frozen)
            for name, state in staged.states.items():
                state.checkpointed(made.written.get(name, Written()))
        tables = {name: StagedTable(files=table.files, image=table.image) for name, table in made.tables.items()}
        return replace(made, tables=tables, states={}, frozen={}, written={})  # the commit needs only the files

    def _bounded(self, group: Group, action: Callable[[], StagedGroup]) -> StagedGroup:
        return Bounded(
            action,
            self.time.seconds,
            self.grace,
            late=lambda _: self.time.too_late(group),
            cancel=lambda: self.states.outside.engine.cancel(group.tag),
        ).result()

    # --- rows of channels -------------------------------------------------------------------------------------------

    def _received(self, batches: Mapping[str, Batch], executor: GroupExecutor) -> Mapping[str, DataFrame]:
        """Return the frames of batches: for a small group one partition in this process, else the rows in their place.

        Rows are brought together by keys when they are read, in as many partitions as the reader's Spark has then. If
        the writer did it, batches in flight would bind the next run to the number of partitions of this one.
        """
        import pyarrow as pa

        session, carried = self.states.outside.engine.session, self.states.blueprint.carried
        keys = {channel.stream: channel.keys for channel in self.plan.inputs}
        frames: dict[str, DataFrame] = {}
        for stream, batch in batches.items():
            table = batch.rows.table() if executor.are_few else None
            if table is not None:
                if ORDINAL in carried[stream].names and ORDINAL not in table.column_names:  # left by version 0.3.0
                    kind = arrow_schema(carried[stream]).field(ORDINAL).type
                    table = table.append_column(ORDINAL, pa.nulls(table.num_rows, kind))
                frames[stream] = executor.local(table, carried[stream])
            else:
                frames[stream] = batch.rows.frame(session, carried[stream])
            if keys[stream]:
                frames[stream] = in_key_order(frames[stream], keys[stream], is_one_partition=table is not None)
        return frames

    def _in_files(self, stream: str, frame: DataFrame, group: Group, files: dict[str, ChannelRows]) -> DataFrame:
        """Stage the rows of a group that is not small, so that they survive the loss of an executor."""
        spool = self.board.spool
        stem = f"{stream.replace('[', '.').replace(']', '')}-{group.first_id:019d}-{group.attempt}"
        world.pass_point(ChannelPoint.SPOOL_BEFORE)
        found = spool.staging.write_frame(frame, stem)
        world.pass_point(ChannelPoint.SPOOL_WRITTEN)
        rows = files[stream] = FileRows(found, reader=spool.reader, last_id=group.last_id)
        return rows.frame(self.states.outside.engine.session, self.states.blueprint.carried[stream])


@dataclass(slots=True, kw_only=True)
class StageBorder(Border):
    """The border of one attempt of one stage; used once.

    Attributes:
        region: the stage as a region.
        received: returns the frames of the batches, by stream.
        send: stages a stream of a group that is not small in files; returns the frame of these files, for readers here.
        left: by stream, once the work is staged, the rows of a small group that left the stage.
    """

    region: RegionPlan
    received: Callable[[GroupExecutor], Mapping[str, DataFrame]]
    send: Callable[[str, DataFrame], DataFrame]
    left: dict[str, pa.Table] = field(default_factory=dict)

    def receive(self, executor: GroupExecutor) -> Mapping[str, DataFrame]:
        return self.received(executor)

    def leave(self, operator: Operator, stream: str, frame: DataFrame, executor: GroupExecutor) -> DataFrame:
        if not executor.are_few:
            return blaming(self.region, operator, lambda: self.send(stream, frame))
        self.left[stream] = blaming(self.region, operator, frame.toArrow)
        return executor.local(self.left[stream], frame)
