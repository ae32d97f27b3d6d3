"""One attempt at a group: take in its input, compute its rows, drain; nothing here commits.

The result is a `StagedGroup`: staged files by table and the number of rows of each id. Until the checkpoint commit
names these files, they are orphans that no reader sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.errors.environment import EnvironmentFailed
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.autonomous.input import Feeding
from drainmark.jobs.runtime.autonomous.output import Sending
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.publish.adopted_table_checks import require_accepted
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.group.group_flow import GroupFlow
from drainmark.jobs.runtime.group.group_quarantine import GroupQuarantine
from drainmark.jobs.runtime.group.output_staging import OutputStaging
from drainmark.jobs.runtime.group.side_reads import SideReads, large_states
from drainmark.jobs.runtime.group.stream_passing import Border
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
        size: bytes of the input, about.
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
    ports: PermitGate
    life: int
    outlets: Outlets
    number: int
    border: Border
    is_draining: bool = False

    @classmethod
    def of(cls, states: RegionStates, group: Group, *, size: int, outlets: Outlets, border: Border) -> GroupWork:
        """Begin an attempt with the states as they are now; a reset replaces them, and the attempt keeps its own."""
        return cls(
            blueprint=states.blueprint,
            outside=states.outside,
            group=group,
            states=states.states,
            hosts=states.hosted.attempts(),
            size=size,
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
        with self.outside.engine.tagged(self.group.tag), self._taken() as (taking, scanned):
            flow = self._flow(taking)
            try:
                with flow.pool:
                    flow.compute(scanned)
                    world.pass_point(FailPoint.DRAIN)
                    draining, self.is_draining = world.monotonic(), True
                    tables = flow.staged()
                    sent = flow.sending.wait()
                    require_accepted(self.blueprint.region, self.blueprint.tables, tables, self.group, self.outside)
            except OperatorFailed as error:
                raise blamed_upstream(error, self.blueprint.region, flow.streams) from error.__cause__
            taking.check()
            world.pass_point(FailPoint.PROCESS_STAGED)
        ended = world.monotonic()
        return StagedGroup(
            group=self.group,
            rows_in=taking.rows_in,
            rows_quarantined=flow.quarantine.by_id(),
            unmet=flow.quarantine.unmet(),
            refused=taking.remarks,
            tables=tables,
            lookups=flow.reads.lookups,
            feeds=flow.feeding.taken,
            sent=sent,
            states=self.states,
            process_seconds=draining - started,
            drain_seconds=ended - draining,
            upserts=tuple(table.name for table in self.blueprint.upserts()),
        )

    @contextmanager
    def _taken(self) -> Iterator[tuple[GroupInput, Mapping[str, DataFrame]]]:
        """Take in the input of the starts, and yield it with its rows; at the end, nothing of it is left."""
        attempt = Attempt.of(self.outside, self.group, size=self.size, times=self.blueprint.memory_factor)
        taking = self._input(attempt)
        try:
            try:
                scanned = self._scanned(taking)
            except TooLarge:
                taking.remove()
                taking = self._input(attempt.by_tasks())
                scanned = self._scanned(taking)
            yield taking, scanned
        except EnvironmentFailed:
            taking.check()  # the error of a link to a missing file does not name the input; this check does
            raise
        finally:
            attempt.release()
            taking.remove()

    def _input(self, attempt: Attempt) -> GroupInput:
        region = self.blueprint.region
        sources = [operator for operator in region.operators if isinstance(operator, Source)]
        return GroupInput(attempt=attempt, sources=sources, horizon=region.parameters.rewind_horizon)

    def _scanned(self, taking: GroupInput) -> Mapping[str, DataFrame]:
        """Return the rows of the starts; input that cannot be read is quarantined, or halts the region."""
        return blaming(self.blueprint.region, taking.sources[0], taking.take) if taking.sources else {}

    def _flow(self, taking: GroupInput) -> GroupFlow:
        attempt, blueprint, pool = taking.attempt, self.blueprint, ThreadPoolExecutor(_WRITERS, "stage")
        executors = OperatorExecutors(
            region=blueprint.region,
            group=attempt.executor,
            spark=attempt.spark,
            in_files=large_states(blueprint, self.states),
        )
        return GroupFlow(
            blueprint=blueprint,
            attempt=attempt,
            executors=executors,
            hosts=self.hosts,
            border=self.border,
            pool=pool,
            outputs=self._output_staging(attempt, executors, pool),
            quarantine=GroupQuarantine(
                attempt=attempt, executors=executors, region=blueprint.region, taking=taking, pool=pool
            ),
            reads=SideReads(
                attempt=attempt,
                executors=executors,
                blueprint=blueprint,
                states=self.states,
                rows_come_in=self.border.rows + sum(taking.rows_in.values()),
            ),
            feeding=Feeding(attempt=attempt, region=blueprint.region.name, ports=self.ports, life=self.life),
            sending=Sending(attempt=attempt, outlets=self.outlets, number=self.number),
        )

    def _output_staging(
        self, attempt: Attempt, executors: OperatorExecutors, pool: ThreadPoolExecutor
    ) -> OutputStaging:
        return OutputStaging(
            attempt=attempt, executors=executors, blueprint=self.blueprint, states=self.states, pool=pool
        )
