"""The run of a region of several stages, which work on groups at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from drainmark.jobs.errors import Fenced, Interrupted
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.group.group_report import GroupReport, steps_outside
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.region_run import GroupsRun, RegionRun
from drainmark.jobs.runtime.stages.board import Failure
from drainmark.jobs.runtime.stages.crew import Crew
from drainmark.jobs.runtime.stages.group_parts import replaces
from drainmark.jobs.runtime.stages.pipeline import StagePipeline
from drainmark.jobs.runtime.stages.states import MultiStageStates

_LOOK_SECONDS = 0.1
"""The time between two looks at the registry, if nothing else wakes the controller."""


@dataclass(slots=True)
class MultiStageRun(GroupsRun):
    """The run of groups through several stages; its thread is the controller of the stages."""

    run: RegionRun
    _pipeline: StagePipeline = field(init=False)

    def __post_init__(self) -> None:
        run, region = self.run, self.run.blueprint.region
        self._pipeline = StagePipeline(
            blueprint=run.blueprint,
            outside=run.outside,
            owner=run.owner,
            states=MultiStageStates.of(run.blueprint, run.outside, run.hosted),
            grace=run.grace,
            crew=Crew(region=region, grace=run.grace, small_bytes=run.limits.small_bytes, note=run.report),
        )

    def reset(self) -> None:
        self._pipeline.reset()

    def at_work(self) -> Mapping[str, Group]:
        board = self._pipeline.board
        busy = dict(board.busy) if board is not None else {}
        return {stage: group for stage, group in busy.items() if group is not None}

    def close(self) -> None:
        self._pipeline.close()

    def groups(self) -> Iterator[GroupReport]:
        """Run groups, see `RegionRun.groups`; stages that catch up later are reported as steps (`progress`)."""
        run, stages = self.run, self._pipeline
        if stages.board is None:
            stages.reset()
        try:
            while not run.interrupted.is_set():
                try:
                    halt = run.backlog.halt_requested
                    pending = self._pending() if halt is None else []
                    if not (pending or stages.is_idle or stages.under_way):  # may halt the region: not during a commit
                        run.while_waiting()
                except Exception:
                    yield from self._last_report()  # the commit under way may succeed, and must be reported
                    raise
                must_rest = replaces(pending) and not stages.is_idle  # earlier groups must be committed before
                if pending and not must_rest and stages.has_room and not run.pace.left_seconds:
                    yield from self._begin(pending)
                elif not pending and stages.is_idle:
                    if halt is not None:
                        raise run.failures.halted_on_request(halt)
                    run.housekeeping.maintain_if_due()
                    return
                yield from self._step(is_final=not pending or must_rest)
            yield from self._finish()
        finally:
            stages.leave()
        raise Interrupted(f"{run.region!r} was interrupted", remedy="start it again: no attempt was counted")

    def _pending(self) -> Sequence[Trigger]:
        """Return the triggers of the next group; none if no group may begin now."""
        self.run.hosted.check()
        in_hand = self._pipeline.in_hand
        return [] if self._pipeline.is_held_up else self.run.backlog.next_group(in_hand, self.run.max_triggers)

    def _begin(self, pending: Sequence[Trigger]) -> Iterator[GroupReport]:
        try:
            self._pipeline.give(pending)
        except Exception as error:
            yield from self._last_report()  # the commit ends first: no failure is judged, and no reset made, beside it
            self._after_failure(error, pending)

    def _step(self, *, is_final: bool) -> Iterator[GroupReport]:
        """Handle the end of a commit or a failure, or begin a commit; if there is none of these, wait for a change."""
        stages = self._pipeline
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
        """Wait for the commit under way, and return its report; None if it failed, or if it has no new group."""
        pipeline, run = self._pipeline, self.run
        triggers = pipeline.under_way.establishing.triggers if pipeline.under_way is not None else ()
        try:
            done = pipeline.end()
        except Exception as error:
            self._after_failure(error, triggers)
            return None
        flow = run.owner.history.flow
        numbers: dict[str, Any] = {"inflight_batches": len(flow.batches), "inflight_bytes": flow.bytes}
        stages = {"stages": dict(flow.through)}
        if done.is_progress:
            for step, told in steps_outside(done.staged):
                run.report(step, told)
            run.report("progress", {"id": done.staged.row_id, **stages, **numbers})
            run.housekeeping.count()
            return None
        if flow.channels:
            run.report("in_flight", {"id": done.staged.row_id, **stages, **numbers})
        report = replace(
            run.published.reported(done.establishing, is_blocking=pipeline.is_blocking),
            alignment=run.blueprint.region.parameters.alignment,
            restarts=sum(done.staged.restarts.values()),
            **numbers,
        )
        run.published.follow(report)
        return report

    def _last_report(self) -> Iterator[GroupReport]:
        report = self._established() if self._pipeline.under_way is not None else None
        if report is not None:
            yield report

    def _after_failure(self, error: Exception, triggers: Sequence[Trigger]) -> None:
        self.run.failures.after(error, triggers, self._pipeline.reset)

    def _maintain(self) -> None:
        """Maintain the tables if that is due and no commit is under way; the stages only stage files meanwhile."""
        if self._pipeline.under_way is None:
            self.run.housekeeping.maintain_if_due()

    def _failed(self, failure: Failure) -> None:
        """Reset the region, or end the run, after a stage could not do a group despite all its restarts.

        A group that is committed already cannot be split: its batches are fixed.
        """
        stages = self._pipeline
        committed = self.run.owner.history.committed_id
        members = failure.group.members if failure.group is not None else ()
        triggers = [member.trigger for member in members]
        is_committed = bool(members) and members[0].sequence_id <= committed
        if not isinstance(failure.error, Exception):
            raise failure.error
        self._after_failure(failure.error, triggers[:1] if is_committed else triggers or stages.in_hand)
        if stages.failure is not None:  # a file is gone or changed: the other groups in hand begin anew
            stages.reset()

    def _finish(self) -> Iterator[GroupReport]:
        """Commit the groups in hand after a signal if the grace time is enough; otherwise abandon them."""
        stages = self._pipeline
        while stages.failure is None and not stages.grace.is_over() and (stages.in_hand or stages.under_way):
            yield from self._step(is_final=True)
