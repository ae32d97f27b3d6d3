"""Process and drain one group: read, compute, stage; nothing here commits (design.md §3.1).

What it leaves behind is a `StagedGroup`: staged files by table and the number of rows of each id. Until the checkpoint
commit names them, they are orphans that no reader sees.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import AccountingError, DrainmarkError
from drainmark.jobs.errors.environment import EnvironmentFailed
from drainmark.jobs.errors.spark_faults import environment_fault
from drainmark.jobs.failpoints import FailPoint, InjectedFailure, reach
from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.graph.annotations import Checkpoints
from drainmark.jobs.graph.blame import blamed_operator, failure_of
from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.operator import Operator, Result
from drainmark.jobs.operators.lookup import Lookup
from drainmark.jobs.operators.sinks.quarantine import QuarantineSink
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.operators.windows.running_aggregate import Aggregate
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.runtime.adapters import Outside
from drainmark.jobs.runtime.analysis.column_types import require_ids, require_text
from drainmark.jobs.runtime.analysis.physical_plan import (
    Blueprint,
    check_schema,
    read_lookup,
    seen_downstream,
    shares_history,
)
from drainmark.jobs.runtime.autonomous.input import Feeding, feeding_sources
from drainmark.jobs.runtime.autonomous.output import Sending
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.commit.adopted_table_checks import require_accepted
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.hosting.handler_host import Attempt
from drainmark.jobs.runtime.input.group_input import Taking
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.input.materialisation import Materialiser, materialiser_of
from drainmark.jobs.runtime.input.quarantine_rows import put_aside, quarantine_table
from drainmark.jobs.runtime.input.rejected_rows import Refusals, read_by, stage_refused
from drainmark.jobs.state.handlers.permits import PermitGate
from drainmark.jobs.state.keyed_state import KeyedState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITERS = 4


@dataclass(slots=True, kw_only=True)
class GroupWork:
    """One attempt at a group; used once.

    Attributes:
        hosts: by operator, the handlers that run in this process.
        tag: marks the attempt's Spark jobs, so that a time-out can cancel them.
        ports: the permits of autonomous ports; see `RegionStates`.
        outlets: of the run, to tables outside of the region.
        is_draining: all work is begun; it is to be awaited and compared.
    """

    blueprint: Blueprint
    outside: Outside
    group: Group
    states: Mapping[str, KeyedState]
    hosts: Mapping[str, Attempt]
    small: bool
    tag: str
    ports: PermitGate = field(default_factory=PermitGate)
    outlets: Outlets = field(default_factory=Outlets)
    lookups: dict[str, int] = field(default_factory=dict)
    is_draining: bool = False
    _taking: Taking = field(init=False)
    _feeding: Feeding | None = None
    _sending: Sending | None = None
    _staged: dict[str, Future[StagedTable]] = field(default_factory=dict)
    _refused: list[Future[Refusals]] = field(default_factory=list)
    _life: int = field(init=False)
    _attempt: int = field(init=False)

    def __post_init__(self) -> None:
        self._life, self._attempt = self.ports.resets, self.outlets.begin()

    def stage(self) -> StagedGroup:
        """Read, compute and stage the group.

        Raises:
            DrainmarkError: with the operator or the file to blame; nothing is left but orphans.
        """
        reach(FailPoint.PROCESS_BEFORE)
        started = time.monotonic()
        materialiser = materialiser_of(self.outside, self.group, small=self.small)
        sources = [operator for operator in self.blueprint.region.operators if isinstance(operator, Source)]
        taking = Taking(sources=sources, group=self.group, outside=self.outside, materialiser=materialiser)
        self._taking = taking
        try:
            with ThreadPoolExecutor(_WRITERS, thread_name_prefix="stage") as pool, self.outside.engine.tagged(self.tag):
                self._compute(materialiser, pool)
                reach(FailPoint.DRAIN)
                draining, self.is_draining = time.monotonic(), True
                tables = {name: future.result() for name, future in self._staged.items()}
                tables.update(self._quarantined())
                sent = self._sending.wait() if self._sending else {}
                require_accepted(self.blueprint.region, self.blueprint.tables, tables, self.group, self.outside)
            taking.check()
            reach(FailPoint.PROCESS_STAGED)
        except EnvironmentFailed:
            taking.check()  # a link whose file is gone says no more than that
            raise
        finally:
            materialiser.release()
            if self._feeding is not None:
                self._feeding.release()
            taking.remove()
        ended = time.monotonic()
        return StagedGroup(
            group=self.group,
            rows_in=taking.rows_in,
            rows_quarantined=self._quarantined_by_id(),
            refused=taking.remarks,
            tables=tables,
            lookups=self.lookups,
            feeds=self._feeding.taken if self._feeding else {},
            sent=sent,
            states=self.states,
            process_seconds=draining - started,
            drain_seconds=ended - draining,
            upserts=tuple(table.name for table in self.blueprint.upserts()),
        )

    def _compute(self, materialiser: Materialiser, pool: ThreadPoolExecutor) -> None:
        region = self.blueprint.region
        frames = OperatorContext(
            session=self.outside.engine.session,
            params=self.blueprint.params,
            first_id=self.group.first_id,
            last_id=self.group.last_id,
            scanned_frames=self._scan() | self._fed(),
            read_state=lambda operator, partials: self._state_before(operator, partials, materialiser),
            read_lookup=self._lookup,
            read_statement=self.outside.statement,
            read_kept=self._kept_before,
            materialise=lambda operator, frame: self._blaming(operator, lambda: materialiser.once(frame)),
            collect=lambda operator, frame: self._blaming(operator, frame.toArrow),
            hosts=self.hosts,
            is_run=True,
            small=self.small,
            known_types=self._state_types(),
            made=self.blueprint.made,
            in_files=self._in_files(),
            readers=region.consumers,
            own_places=self.blueprint.own_places,
            multiplied=self.blueprint.multiplied,
        )
        for operator in region.run_order:
            self._await_inputs(operator, frames)
            self._run(operator, frames, materialiser, pool)
        for operator in region.operators:
            changes = frames.guard(operator, partial(operator.absorb, frames))
            self._keep(operator, changes, materialiser, pool)
        self._send(frames)

    def _run(
        self, operator: Operator, frames: OperatorContext, materialiser: Materialiser, pool: ThreadPoolExecutor
    ) -> None:
        if self._shares(operator):
            return
        if isinstance(operator, Source):
            result = Result(None, outputs={name: operator.apply_output(frames, name) for name in operator.outputs})
        else:
            result = frames.guard(operator, lambda: operator.step(frames))
            self._keep(operator, result.changes, materialiser, pool)
            self._put_aside(operator, result)
        for output in operator.outputs or ("",):
            frame = frames.tagged(operator, result.of(output), output)
            if isinstance(operator, QuarantineSink):
                read = read_by(operator, self.blueprint.region, frames.scanned_frames)
                self._refused.append(pool.submit(self._refuse, operator, frame, read, materialiser))
            elif operator.name in self.blueprint.written_by:
                self._stage(operator, frame, materialiser, pool)
            else:
                self._pass_on(operator, output, frame, frames, materialiser)

    def _put_aside(self, operator: Operator, result: Result) -> None:
        """Quarantine the rows that an operator could not make sense of."""
        if result.bad is None:
            return
        found = result.bad.limit(CAPS.bad_rows + 1)
        rows = self._blaming(operator, lambda: found.toArrow()).to_pylist()  # noqa: PLW0108 - looked up when called
        put_aside(self._taking.aside, operator, rows, self.group, halts=result.bad_halts)

    def _pass_on(
        self, operator: Operator, output: str, frame: DataFrame, frames: OperatorContext, materialiser: Materialiser
    ) -> None:
        """Enter what downstream operators read, computed once where several do."""
        if self.blueprint.region.consumers(operator.name, output) > 1 and not self._is_fixed(operator, frame, frames):
            frame = self._blaming(operator, lambda: materialiser.once(frame))
        frames.streams[f"{operator.name}[{output}]" if output else operator.name] = frame

    def _send(self, frames: OperatorContext) -> None:
        """Begin what follows the region outside of it, side by side with the region's own outputs (V48)."""
        followers = self.blueprint.region.followers
        if not followers:
            return
        self._sending = Sending(
            engine=self.outside.engine,
            table=self.outside.store.autonomous,
            tag=self.tag,
            outlets=self.outlets,
            attempt=self._attempt,
        )
        for operator in followers:
            self._await_inputs(operator, frames)
            self._sending.run(operator, frames)

    def _keep(
        self,
        operator: Operator,
        changes: Mapping[str, DataFrame],
        materialiser: Materialiser,
        pool: ThreadPoolExecutor,
    ) -> None:
        """Stage the changes of states that are kept beside an output."""
        for part, frame in changes.items():
            name = self.blueprint.kept[operator.name, part]
            check_schema(self.blueprint.table(name), frame)
            self._staged[name] = pool.submit(self._write, operator, name, frame, materialiser)

    def _is_fixed(self, operator: Operator, frame: DataFrame, frames: OperatorContext) -> bool:
        """Is a source's frame what was materialised when it was read, but for columns left out or renamed?"""
        if not isinstance(operator, Source):
            return False
        verdict = self.blueprint.verdicts.get(operator.name)
        is_as_read = any(frame is read for read in frames.scanned_frames.values())
        return is_as_read or (verdict is not None and verdict.only_picks)

    def _scan(self) -> dict[str, DataFrame]:
        """Take in what the starts have; what cannot be read is quarantined, or halts the region."""
        if not self._taking.sources:
            return {}
        frames: dict[str, DataFrame] = self._blaming(self._taking.sources[0], self._taking.take)
        return frames

    def _fed(self) -> dict[str, DataFrame]:
        """Take what has come from autonomous sources; what goes wrong there is no failure of the group (V53)."""
        sources = feeding_sources(self.blueprint.region.feeds)
        if not sources:
            return {}
        self._feeding = Feeding(
            outside=self.outside,
            region=self.blueprint.region.name,
            group=self.group,
            folder=self._taking.folder,
            ports=self.ports,
            life=self._life,
        )
        return self._feeding.take(sources)

    def _refuse(
        self, operator: QuarantineSink, frame: DataFrame, read: DataFrame | None, materialiser: Materialiser
    ) -> Refusals:
        """Stage what an operator puts into quarantine; runs in a thread of its own, beside the outputs."""
        name = quarantine_table(self.blueprint.region).name
        staging = self.outside.store.staging(name, self.group.epoch, self.group.attempt)
        with self.outside.engine.tagged(self.tag):
            refusals: Refusals = self._blaming(
                operator,
                lambda: stage_refused(
                    operator, frame, read=read, group=self.group, materialiser=materialiser, staging=staging
                ),
            )
            return refusals

    def _quarantined(self) -> dict[str, StagedTable]:
        """Stage the rows that could not be read beside those that operators refused; no file where there are none."""
        refused = [future.result() for future in self._refused]
        if not self._taking.sources and not refused and not self._taking.aside.records:
            return {}
        name = quarantine_table(self.blueprint.region).name
        files = tuple(file for refusals in refused for file in refusals.files)
        rows = self._taking.quarantine_rows()
        if rows is not None:
            files += self.outside.store.staging(name, self.group.epoch, self.group.attempt).write(rows, "rows")
        staged, counted = sum(file.rows for file in files), sum(self._quarantined_by_id().values())
        if staged != counted:
            raise AccountingError(f"{counted} rows are to be quarantined, and {staged} are staged in {name}")
        return {name: StagedTable(files=files)}

    def _quarantined_by_id(self) -> dict[int, int]:
        counts = Counter(self._taking.quarantined) + Counter(self._taking.aside.counts())
        for refused in self._refused:
            counts.update(refused.result().counts)
        return dict(counts)

    def _state_before(
        self, operator: Aggregate, partials: DataFrame, materialiser: Materialiser
    ) -> tuple[DataFrame, DataFrame | None]:
        state = self.states[self.blueprint.written_by[operator.name]]
        whole = state.is_read_whole(self._rows_come_in())
        if not whole:  # its keys choose the rows of the state, so they may not be computed twice
            partials = self._blaming(operator, lambda: materialiser.once(partials))
        before = state.before(self.outside.engine.session, partials, whole=whole)
        return state.beside(partials), before

    def _rows_come_in(self) -> int:
        return sum(self._taking.rows_in.values())

    def _kept_before(self, operator: Operator, part: str, changed: DataFrame | None) -> DataFrame | None:
        state = self.states[self.blueprint.kept[operator.name, part]]
        return state.current(self.outside.engine.session, changed)

    def _in_files(self) -> set[str]:
        states = self.blueprint.states()
        return {states[name][0].name for name, state in self.states.items() if not state.is_small}

    def _state_types(self) -> dict[str, dict[str, Any]]:
        return {
            operator.name: {field.name: field.dataType for field in self.states[name].schema.fields}
            for operator in self.blueprint.region.stateful
            if (name := self.blueprint.written_by.get(operator.name, "")) in self.states
        }

    def _lookup(self, operator: Lookup) -> DataFrame:
        version = self.outside.lookups.version(operator.table)
        self.lookups[operator.table] = version
        return read_lookup(self.outside.engine.session, operator, self.outside, version)

    def _await_inputs(self, operator: Operator, frames: OperatorContext) -> None:
        for port in operator.inputs:
            upstream = self.blueprint.region.operator(port.upstream)
            table = self.blueprint.written_by.get(port.upstream)
            if table is None or port.stream in frames.streams or self._shares(operator):
                continue
            frames.streams[port.stream] = seen_downstream(upstream, self._frame_of(table))

    def _shares(self, operator: Operator) -> bool:
        region = self.blueprint.region
        return operator not in region.followers and shares_history(operator, region)

    def _frame_of(self, table: str) -> DataFrame:
        frame = self._staged[table].result().frame
        if frame is None:
            raise AccountingError(f"{table} is read, and only staged")
        return frame

    def _stage(
        self, operator: Operator, frame: DataFrame, materialiser: Materialiser, pool: ThreadPoolExecutor
    ) -> None:
        name = self.blueprint.written_by[operator.name]
        check_schema(self.blueprint.table(name), frame)
        self._staged[name] = pool.submit(self._write, operator, name, frame, materialiser)

    def _write(self, operator: Operator, name: str, frame: DataFrame, materialiser: Materialiser) -> StagedTable:
        """Compute one output, once, into staging; runs in a thread of its own, beside the other outputs."""
        staging = self.outside.store.staging(name, self.group.epoch, self.group.attempt)

        def write() -> StagedTable:
            rows: Any = None
            if self.small:
                rows = require_text(operator, frame.toArrow())
                files = () if self._is_left(operator, name) else staging.write(rows, "rows")
                staged = materialiser.local(rows, frame) if self._is_read(operator, name) else frame
            else:
                files = staging.write_frame(frame, "rows")
                staged = self._staged_frame(name, staging, files, frame)
                rows = self.states[name].read_if_small(files) if name in self.states else None
            require_ids(operator, files, self.group.first_id, self.group.last_id)
            return StagedTable(files=files, rows=rows, frame=staged)

        with self.outside.engine.tagged(self.tag):
            staged: StagedTable = self._blaming(operator, write)
            return staged

    def _is_left(self, operator: Operator, name: str) -> bool:
        """Are the changes left to the checkpoint in the background? The next group finds them in memory then (N19)."""
        if self.blueprint.region.parameters.checkpoints == Checkpoints.BLOCKING or not operator.non_blocking:
            return False
        return name in self.states and self.states[name].is_small

    def _is_read(self, operator: Operator, name: str) -> bool:
        own = self.blueprint.written_by.get(operator.name) == name
        return own and self.blueprint.region.consumers(operator.name) > 0

    def _staged_frame(self, name: str, staging: Any, files: tuple[StagedFile, ...], frame: DataFrame) -> DataFrame:
        session = self.outside.engine.session
        if not files:
            return session.createDataFrame([], frame.schema)
        return session.read.schema(frame.schema).parquet(*self.outside.store.table(name).files.spark_paths(files))

    def _blaming(self, operator: Operator, action: Any) -> Any:
        """Run something that starts Spark jobs; its failure names an operator."""
        try:
            return action()
        except (DrainmarkError, InjectedFailure, KeyboardInterrupt):
            raise
        except BaseException as error:
            blamed = blamed_operator(error, self.blueprint.region.run_order, operator)
            raise environment_fault(error) or failure_of(blamed, error) from error
