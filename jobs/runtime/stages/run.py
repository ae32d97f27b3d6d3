"""A run of a region of several stages: as any run, but for the groups, which stages work at side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drainmark.jobs.errors import Fenced, Interrupted
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.group_report import GroupReport, steps_outside
from drainmark.jobs.runtime.maintenance.housekeeping import Housekeeping
from drainmark.jobs.runtime.region_run import RegionRun
from drainmark.jobs.runtime.stages.board import Failure
from drainmark.jobs.runtime.stages.pipeline import StagedPipeline
from drainmark.jobs.runtime.stages.states import StagedStates
from drainmark.jobs.runtime.timeout import Grace

_LOOK_SECONDS = 0.1
"""Between two looks at the registry, where nothing else wakes the controller."""


@dataclass(slots=True, kw_only=True)
class StagedRun(RegionRun):
    """As `RegionRun`; its thread is the controller of the stages (K4, K5, K23)."""

    def __post_init__(self) -> None:
        RegionRun.__post_init__(self)
        self._pipeline = StagedPipeline(
            blueprint=self.blueprint,
            outside=self.outside,
            owner=self.owner,
            states=StagedStates.of(self.blueprint, self.outside),
            grace=Grace(self._is_interrupted),
            small_bytes=self.limits.small_bytes,
            note=self.report,
        )
        self._housekeeping = Housekeeping(
            region=self.blueprint.region, owner=self.owner, states=self.states, report=self.report
        )

    @property
    def _stages(self) -> StagedPipeline:
        pipeline = self._pipeline
        if not isinstance(pipeline, StagedPipeline):
            raise TypeError("a staged run has a staged pipeline")
        return pipeline

    def groups(self) -> Iterator[GroupReport]:
        """Process groups until nothing is pending, nothing is in flight, and all of it is committed.

        Yields what became of groups when their ids are committed and published; stages that catch up later are
        reported as steps (`progress`).

        Raises:
            DrainmarkError: as of `RegionRun.groups`.
        """
        stages = self._stages
        if stages.life is None:
            stages.reset()
        try:
            while not self.interrupted.is_set():
                try:
                    halt = self.outside.registry.region_info(self.region).halt_requested
                    pending = self._pending() if halt is None else []
                    if not (pending or stages.is_idle or stages.under_way):  # it may halt the region: no commit beside
                        self.while_waiting()
                except Exception:
                    yield from self._last_report()  # what is under way may well end, and is to be reported
                    raise
                must_rest = stages.must_rest(pending)
                if pending and not must_rest and stages.has_room and not self._pace.left_seconds:
                    yield from self._begin(pending)
                elif not pending and stages.is_idle:
                    if halt is not None:
                        raise self._halted_on_request(halt)
                    self._housekeeping.maintain_if_due()
                    return
                yield from self._step(is_final=not pending or must_rest)
            yield from self._finish()
        finally:
            stages.leave()
        raise Interrupted(f"{self.region!r} was interrupted", remedy="start it again: no attempt was counted")

    def _begin(self, pending: Sequence[Trigger]) -> Iterator[GroupReport]:
        try:
            self._stages.give(pending)
        except Exception as error:
            yield from self._last_report()  # what is under way ends first: nobody judges, or resets, beside its commit
            self._after_failure(error, pending)

    def _step(self, *, is_final: bool) -> Iterator[GroupReport]:
        """Do what there is to do, else wait until there is something: a failure, the end of a commit, a commit."""
        stages = self._stages
        stages.follow()
        failure = stages.failure
        if stages.under_way is not None and (stages.has_ended or failure is not None):
            yield from self._last_report()
            self._maintain()
            return
        if failure is not None:
            self._failed(failure)
            return
        try:
            has_begun = stages.commit_if_due(is_final=is_final)
        except Fenced:
            raise
        except Exception as error:
            self._after_failure(error, stages.in_hand)
            return
        if not has_begun:
            stages.await_change(_LOOK_SECONDS)

    def _established(self) -> GroupReport | None:
        """As `RegionRun._established`; None also where stages have caught up, and no group is new."""
        pipeline = self._stages
        triggers = pipeline.under_way.triggers if pipeline.under_way is not None else ()
        try:
            done = pipeline.end()
        except Exception as error:
            self._after_failure(error, triggers)
            return None
        flow = self.owner.history.flow
        numbers: dict[str, Any] = {"inflight_batches": len(flow.batches), "inflight_bytes": flow.bytes}
        stages = {"stages": dict(flow.through)}
        if done.is_progress:
            for step, told in steps_outside(done.staged):
                self.report(step, told)
            self.report("progress", {"id": done.staged.row_id, **stages, **numbers})
            self._housekeeping.count()
            return None
        if flow.channels:
            self.report("in_flight", {"id": done.staged.row_id, **stages, **numbers})
        report = replace(
            self._reported(done),
            alignment=self.blueprint.region.parameters.alignment,
            restarts=sum(done.staged.restarts.values()),
            **numbers,
        )
        self.size = self.size.after_success()
        self.done_triggers += report.triggers
        self._housekeeping.count()
        self._tell_sources(report)
        self._pace.passed(report.rows_in)
        return report

    def _last_report(self) -> Iterator[GroupReport]:
        report = self._established() if self._stages.under_way is not None else None
        if report is not None:
            yield report

    def _maintain(self) -> None:
        """Maintain the tables where that is due, no commit being under way: stages only stage meanwhile."""
        if self._stages.under_way is None:
            self._housekeeping.maintain_if_due()

    def _failed(self, failure: Failure) -> None:
        """Reset the region, or end the run, after a stage could not do a group however often it began again.

        What is committed already cannot be split: its batches are what they are.
        """
        stages = self._stages
        committed = self.owner.history.committed_id
        members = failure.group.members if failure.group is not None else ()
        triggers = [member.trigger for member in members]
        is_committed = bool(members) and members[0].sequence_id <= committed
        if not isinstance(failure.error, Exception):
            raise failure.error
        self._after_failure(failure.error, triggers[:1] if is_committed else triggers or stages.in_hand)
        if stages.failure is not None:  # a file that is not what was scanned: what else was begun begins anew
            stages.reset()

    def _finish(self) -> Iterator[GroupReport]:
        """After a signal: let what is in hand be committed if that is soon, and abandon it else."""
        stages = self._stages
        while stages.failure is None and not stages.grace.is_over() and (stages.in_hand or stages.under_way):
            yield from self._step(is_final=True)
