"""The processing and draining of one group: read, compute, stage; nothing here commits.

The result is a `StagedGroup`: staged files by table and the number of rows of each id. Until the checkpoint commit
names these files, they are orphans that no reader sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.errors.environment import EnvironmentFailed
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.frames.arrow import arrow_of
from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.operator import Operator, StepResult
from drainmark.jobs.operators.sinks.quarantine import QuarantineSink
from drainmark.jobs.operators.sinks.sink import Sink
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.analysis.vectorisation import is_repeatable
from drainmark.jobs.runtime.autonomous.input import Feeding, feeding_sources
from drainmark.jobs.runtime.autonomous.output import Sending
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.publish.adopted_table_checks import require_accepted
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.group.group_quarantine import GroupQuarantine
from drainmark.jobs.runtime.group.output_staging import OutputStaging
from drainmark.jobs.runtime.group.side_reads import SideReads, large_states
from drainmark.jobs.runtime.group.stream_passing import Border, StreamPassing
from drainmark.jobs.runtime.hosting.handler_host import HandlerAttempt
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.executors import OperatorExecutors
from drainmark.jobs.runtime.input.group_input import GroupInput
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.runtime.spark_failures import blamed_upstream, blaming
from drainmark.jobs.state.handlers.permits import PermitGate
from drainmark.jobs.state.keyed_state import KeyedState
from drainmark.jobs.tasks.places import TooLarge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITERS = 4


@dataclass(slots=True, kw_only=True)
class GroupWork:
    """One attempt at a group, by a region or by one stage of it; used once.

    Attributes:
        hosts: the handlers that run in this process, by operator.
        size, small_bytes: of the input, see `executors_for`.
        ports: the permits of autonomous ports; see `RegionStates`.
        outlets: of the run, to tables outside of the region.
        life, number: number of resets of the ports when the attempt began; its own number, from `Outlets.begin`.
        border: to the other stages of the region.
        is_draining: all rows are computed; the rest is to close and check files, and to wait for writes outside.
    """

    blueprint: Blueprint
    outside: Outside
    group: Group
    states: Mapping[str, KeyedState]
    hosts: Mapping[str, HandlerAttempt]
    size: int
    small_bytes: int
    ports: PermitGate
    life: int
    outlets: Outlets
    number: int
    border: Border
    is_draining: bool = False
    _taking: GroupInput = field(init=False)
    _executors: OperatorExecutors = field(init=False)
    _reads: SideReads = field(init=False)
    _outputs: OutputStaging = field(init=False)
    _quarantine: GroupQuarantine = field(init=False)
    _streams: Mapping[str, DataFrame] = field(default_factory=dict)
    _feeding: Feeding | None = None
    _sending: Sending | None = None

    @classmethod
    def of(
        cls, states: RegionStates, group: Group, *, size: int, small_bytes: int, outlets: Outlets, border: Border
    ) -> GroupWork:
        """Begin an attempt with the states as they are now; a reset replaces them, and the attempt keeps its own."""
        return cls(
            blueprint=states.blueprint,
            outside=states.outside,
            group=group,
            states=states.states,
            hosts=states.hosted.attempts(),
            size=size,
            small_bytes=small_bytes,
            ports=states.ports,
            life=states.ports.resets,
            outlets=outlets,
            number=outlets.begin(),
            border=border,
        )

    def stage(self) -> StagedGroup:
        """Read, compute and stage the group.

        Raises:
            DrainmarkError: with the operator or the file to blame; only orphan files are left.
        """
        world.pass_point(FailPoint.PROCESS_BEFORE)
        started = world.monotonic()
        small = self.small_bytes * self.blueprint.small_groups
        ways = [*Attempt.ways(self.outside, self.group, size=self.size, small_bytes=small)]
        self._begin(ways[0], ways[-1])
        try:
            with (
                ThreadPoolExecutor(_WRITERS, thread_name_prefix="stage") as pool,
                self.outside.engine.tagged(self.group.tag),
            ):
                self._compute(self._take_in(ways), pool)
                self._outputs.await_rows()
                self._quarantine.await_rows()
                world.pass_point(FailPoint.DRAIN)
                draining, self.is_draining = world.monotonic(), True
                tables = self._outputs.tables()
                tables.update(self._quarantine.staged())
                sent = self._sending.wait() if self._sending else {}
                require_accepted(self.blueprint.region, self.blueprint.tables, tables, self.group, self.outside)
            self._taking.check()
            world.pass_point(FailPoint.PROCESS_STAGED)
        except OperatorFailed as error:
            with self.outside.engine.tagged(self.group.tag):
                raise blamed_upstream(error, self.blueprint.region, self._streams) from error.__cause__
        except EnvironmentFailed:
            self._taking.check()  # the error of a link to a missing file does not name the input; this check does
            raise
        finally:
            self._executors.release()
            if self._feeding is not None:
                self._feeding.release()
            self._taking.remove()
        ended = world.monotonic()
        return StagedGroup(
            group=self.group,
            rows_in=self._taking.rows_in,
            rows_quarantined=self._quarantine.by_id(),
            unmet=self._quarantine.unmet(),
            refused=self._taking.remarks,
            tables=tables,
            lookups=self._reads.lookups,
            feeds=self._feeding.taken if self._feeding else {},
            sent=sent,
            states=self.states,
            process_seconds=draining - started,
            drain_seconds=ended - draining,
            upserts=tuple(table.name for table in self.blueprint.upserts()),
        )

    def _begin(self, attempt: Attempt, on_spark: Attempt) -> None:
        region = self.blueprint.region
        sources = [operator for operator in region.operators if isinstance(operator, Source)]
        self._taking = GroupInput(attempt=attempt, sources=sources, horizon=region.parameters.rewind_horizon)
        large, spark = large_states(self.blueprint, self.states), on_spark.executor
        self._executors = OperatorExecutors(region=region, group=attempt.executor, spark=spark, in_files=large)

    def _take_in(self, ways: Sequence[Attempt]) -> dict[str, DataFrame]:
        """Take in the input of the starts; input that cannot be read is quarantined, or halts the region.

        Args:
            ways: the attempt that has begun, and the one for input that is too large for that.
        """
        if not self._taking.sources:
            return {}

        def taken() -> dict[str, DataFrame]:
            try:
                return self._taking.take()
            except TooLarge:
                self._taking.remove()
                self._begin(ways[-1], ways[-1])
                return self._taking.take()

        return blaming(self.blueprint.region, self._taking.sources[0], taken)

    def _prepare(self, pool: ThreadPoolExecutor) -> None:
        attempt, executors, blueprint = self._taking.attempt, self._executors, self.blueprint
        self._outputs = OutputStaging(
            attempt=attempt, executors=executors, blueprint=blueprint, states=self.states, pool=pool
        )
        self._quarantine = GroupQuarantine(
            attempt=attempt, executors=executors, region=blueprint.region, taking=self._taking, pool=pool
        )
        self._reads = SideReads(
            attempt=attempt,
            executors=executors,
            blueprint=blueprint,
            states=self.states,
            rows_come_in=lambda: self.border.rows + sum(self._taking.rows_in.values()),
        )

    def _compute(self, scanned: dict[str, DataFrame], pool: ThreadPoolExecutor) -> None:
        self._prepare(pool)
        region, received = self.blueprint.region, self.border.receive(self._executors.group)
        frames = self._context(scanned | self._fed())
        self._streams = frames.streams
        streams = StreamPassing(
            blueprint=self.blueprint,
            executors=self._executors,
            outputs=self._outputs,
            frames=frames,
            border=self.border,
            received=received,
        )
        for operator in region.run_order:
            streams.await_inputs(operator)
            self._run(operator, frames, streams)
        for operator in region.operators:
            changes = frames.guard(operator, partial(operator.absorb, frames))
            self._outputs.keep(operator, changes)
        self._send(frames, streams)
        streams.leave_tables()

    def _context(self, input_frames: dict[str, DataFrame]) -> OperatorContext:
        """Return the context that operators work with."""
        region, blueprint, reads, executors = self.blueprint.region, self.blueprint, self._reads, self._executors
        return OperatorContext(
            session=self.outside.engine.session,
            params=blueprint.params,
            first_id=self.group.first_id,
            last_id=self.group.last_id,
            scanned_frames=input_frames,
            read_state=reads.state_before,
            read_lookup=reads.lookup,
            read_statement=self.outside.statement,
            read_kept=reads.kept_before,
            read_kept_rows=reads.kept_rows,
            looks_up=reads.looks_up,
            materialise=lambda operator, frame: blaming(region, operator, lambda: executors.of(operator).once(frame)),
            is_repeatable=is_repeatable,
            collect=lambda operator, frame: blaming(region, operator, lambda: arrow_of(frame)),
            hosts=self.hosts,
            is_run=True,
            few=executors.few,
            known_types=reads.state_types(),
            made=blueprint.made,
            readers=blueprint.readers,
            own_places=blueprint.own_places,
            multiplied=blueprint.multiplied,
        )

    def _run(self, operator: Operator, frames: OperatorContext, streams: StreamPassing) -> None:
        if streams.shares(operator):
            return
        if isinstance(operator, Sink) and not operator.keys:
            self._outputs.stage(operator, frames.guard(operator, partial(operator.in_places, frames)))
            return
        if isinstance(operator, Source):
            result = StepResult(None, outputs={name: operator.apply_output(frames, name) for name in operator.outputs})
        else:
            result = frames.guard(operator, lambda: operator.step(frames))
            if result.net is not None:
                frames.nets[operator.name] = result.net
            self._outputs.keep(operator, result.changes)
            self._outputs.keep_rows(operator, result.changed_rows)
            self._quarantine.put_aside(operator, result)
            self._quarantine.expect(operator, result, frames.scanned_frames)
            if result.refused is not None:
                self._quarantine.refuse(operator, result.refused, frames.scanned_frames)
        for output in operator.outputs or ("",):
            frame = frames.tagged(operator, result.of(output), output)
            if isinstance(operator, QuarantineSink):
                self._quarantine.refuse(operator, frame, frames.scanned_frames)
            elif operator.name in self.blueprint.written_by:
                self._outputs.stage(operator, frame)
            else:
                streams.pass_on(operator, output, frame)

    def _send(self, frames: OperatorContext, streams: StreamPassing) -> None:
        """Begin the operators that follow the region, side by side with the region's own outputs."""
        followers = self.blueprint.region.followers
        if not followers:
            return
        self._sending = Sending(attempt=self._taking.attempt, outlets=self.outlets, number=self.number)
        for operator in followers:
            streams.await_inputs(operator)
            self._sending.run(operator, frames)

    def _fed(self) -> dict[str, DataFrame]:
        """Take the new input of autonomous sources; their errors do not fail the group."""
        sources = feeding_sources(self.blueprint.region.feeds)
        if not sources:
            return {}
        attempt, region = self._taking.attempt, self.blueprint.region.name
        self._feeding = Feeding(attempt=attempt, region=region, ports=self.ports, life=self.life)
        return self._feeding.take(sources)
