"""The flow of one attempt at a group: its rows pass through the operators, and what becomes of them is staged."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

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
from drainmark.jobs.runtime.commit.staged_group import StagedTable
from drainmark.jobs.runtime.group.group_quarantine import GroupQuarantine
from drainmark.jobs.runtime.group.output_staging import OutputStaging
from drainmark.jobs.runtime.group.side_reads import SideReads
from drainmark.jobs.runtime.group.stream_passing import Border, StreamPassing
from drainmark.jobs.runtime.hosting.handler_host import HandlerAttempt
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.executors import OperatorExecutors
from drainmark.jobs.runtime.spark_failures import blaming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True, kw_only=True)
class GroupFlow:
    """The rows of one attempt on their way through the operators; used once.

    Attributes:
        hosts: the handlers that run in this process, by operator.
        border: to the other stages of the region.
        pool: of the threads that stage; leave it before the attempt ends.
        outputs, quarantine: stage what leaves the flow.
        reads: of states and lookup tables.
        feeding: the autonomous sources that the region reads.
        sending: the operators that follow the region.
        streams: what the operators gave, by stream.
    """

    blueprint: Blueprint
    attempt: Attempt
    executors: OperatorExecutors
    hosts: Mapping[str, HandlerAttempt]
    border: Border
    pool: ThreadPoolExecutor
    outputs: OutputStaging
    quarantine: GroupQuarantine
    reads: SideReads
    feeding: Feeding
    sending: Sending
    streams: Mapping[str, DataFrame] = field(default_factory=dict)

    def compute(self, scanned: Mapping[str, DataFrame]) -> None:
        """Compute the rows of all outputs.

        Args:
            scanned: the rows of the starts, by stream.

        Raises:
            DrainmarkError: with the operator to blame.
        """
        region, received = self.blueprint.region, self.border.receive(self.executors.group)
        frames = self._context({**scanned, **self.feeding.take(feeding_sources(region.feeds))})
        self.streams = frames.streams
        streams = StreamPassing(
            blueprint=self.blueprint,
            executors=self.executors,
            outputs=self.outputs,
            frames=frames,
            border=self.border,
            received=received,
        )
        for operator in region.run_order:
            streams.await_inputs(operator)
            self._run(operator, frames, streams)
        for operator in region.operators:
            self.outputs.keep(operator, frames.guard(operator, partial(operator.absorb, frames)))
        for operator in region.followers:  # side by side with the region's own outputs
            streams.await_inputs(operator)
            self.sending.run(operator, frames)
        streams.leave_tables()
        self.outputs.await_rows()
        self.quarantine.await_rows()

    def staged(self) -> dict[str, StagedTable]:
        """Return the staged files of the outputs and of the quarantine by table, once they are closed."""
        return {**self.outputs.tables(), **self.quarantine.staged()}

    def _context(self, input_frames: dict[str, DataFrame]) -> OperatorContext:
        """Return the context that operators work with."""
        region, blueprint, reads, executors = self.blueprint.region, self.blueprint, self.reads, self.executors
        return OperatorContext(
            session=self.attempt.session,
            params=blueprint.params,
            first_id=self.attempt.group.first_id,
            last_id=self.attempt.group.last_id,
            scanned_frames=input_frames,
            read_state=reads.state_before,
            read_lookup=reads.lookup,
            read_statement=self.attempt.outside.statement,
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
            self.outputs.stage(operator, frames.guard(operator, partial(operator.in_places, frames)))
            return
        if isinstance(operator, Source):
            result = StepResult(None, outputs={name: operator.apply_output(frames, name) for name in operator.outputs})
        else:
            result = frames.guard(operator, lambda: operator.step(frames))
            if result.net is not None:
                frames.nets[operator.name] = result.net
            self.outputs.keep(operator, result.changes)
            self.outputs.keep_rows(operator, result.changed_rows)
            self.quarantine.put_aside(operator, result)
            self.quarantine.expect(operator, result, frames.scanned_frames)
            if result.refused is not None:
                self.quarantine.refuse(operator, result.refused, frames.scanned_frames)
        for output in operator.outputs or ("",):
            frame = frames.tagged(operator, result.of(output), output)
            if isinstance(operator, QuarantineSink):
                self.quarantine.refuse(operator, frame, frames.scanned_frames)
            elif operator.name in self.blueprint.written_by:
                self.outputs.stage(operator, frame)
            else:
                streams.pass_on(operator, output, frame)
