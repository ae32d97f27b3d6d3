"""The groups of a run: its thread is the controller, and the stages work on groups beside it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced, Interrupted
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.after_publish import PublishedGroups
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.failure_handling import FailureHandling
from drainmark.jobs.runtime.group.group_report import GroupReport, steps_outside
from drainmark.jobs.runtime.stages.pipeline import Pipeline
from drainmark.jobs.runtime.stages.stages import Failure

_LOOK_SECONDS = 0.1
"""The time between two looks at the registry, if nothing else wakes the controller."""


@dataclass(slots=True, kw_only=True)
class GroupsRun:
    """The groups of a run, until no trigger is pending.

    Attributes:
        published: the steps after a group is published; it has the backlog, the housekeeping and the pace of the run.
        may_take: returns the number of triggers that the run may take; None for all.
        while_waiting, interrupted: see `RegionRun`.
    """

    pipeline: Pipeline
    published: PublishedGroups
    failures: FailureHandling
    may_take: Callable[[], int | None]
    while_waiting: Callable[[], None]
    interrupted: world.Flag

    def groups(self) -> Iterator[GroupReport]:
        """Run groups, see `RegionRun.groups`; stages that catch up later are reported as steps (`progress`)."""
        pipeline, pace = self.pipeline, self.published.pace
        if pipeline.must_reset:
            pipeline.reset()
        try:
            while not self.interrupted.is_set():
                try:
                    halt, pending = self._asked() if pipeline.may_begin else (None, ())
                except Exception:
                    yield from self._last_report()  # the checkpoint under way may succeed, and must be reported
                    raise
                if not pending and pipeline.is_idle:
                    if halt is not None:
                        raise self.failures.halted_on_request(halt)
                    self.published.housekeeping.maintain_if_due()  # all groups are visible, and no trigger is pending
                    return
                if pending and pace.left_seconds and pipeline.is_idle:
                    pace.wait(self._is_called_off)
                    continue
                must_rest = pipeline.must_wait(pending)
                if pending and not must_rest and pipeline.stages.has_room and not pace.left_seconds:
                    yield from self._begin(pending)
                yield from self._step(is_final=not pending or must_rest)
            yield from self._finish()
        finally:
            pipeline.leave()
        raise Interrupted(
            f"{self.published.region.name!r} was interrupted", remedy="start it again: no attempt was counted"
        )

    def _asked(self) -> tuple[str | None, Sequence[Trigger]]:
        """Return why the region should halt, if it should, and the triggers of the next group, if it may begin now."""
        pipeline, backlog = self.pipeline, self.published.backlog
        if (halt := backlog.halt_requested) is not None:
            return halt, ()
        self.published.hosted.check()
        pending = () if pipeline.is_held_up else backlog.next_group(pipeline.in_hand, self.may_take())
        if not (pending or pipeline.is_idle or pipeline.under_way):  # may halt the region: not during a commit
            self.while_waiting()
        return None, pending

    def _is_called_off(self, seconds: float) -> bool:
        """Wait so many seconds; say whether the run must not wait on, because of a signal or a request to halt."""
        return self.interrupted.wait(seconds) or self.published.backlog.halt_requested is not None

    def _begin(self, pending: Sequence[Trigger]) -> Iterator[GroupReport]:
        try:
            self.pipeline.give(pending)
        except Exception as error:
            # The checkpoint under way ends first: no failure is judged, and no reset made, beside it.
            if (yield from self._last_report()):
                self._after_failure(error, pending)

    def _step(self, *, is_final: bool) -> Iterator[GroupReport]:
        """Handle the end of a checkpoint and a failure, and begin a checkpoint; if there is none, wait for a change."""
        pipeline = self.pipeline
        pipeline.follow()
        if pipeline.has_ended or pipeline.stages.failure is not None:
            yield from self._last_report()
        failure = pipeline.stages.failure
        if failure is not None:
            self._failed(failure)
            return
        groups = tuple(pipeline.stages.groups)
        try:
            staged = pipeline.due(is_final=is_final)
            if staged is not None or pipeline.is_at_rest:
                self.published.housekeeping.maintain_if_due()
            if staged is not None:
                pipeline.commit(staged)
                return
        except Fenced:
            raise
        except Exception as error:
            self._after_failure(error, [trigger for group in groups for trigger in group.triggers])
            return
        pipeline.stages.await_change(_LOOK_SECONDS, pipeline.under_way)

    def _last_report(self) -> Generator[GroupReport, None, bool]:
        """Wait for the checkpoint under way, if there is one, and report it; return False if it failed."""
        pipeline = self.pipeline
        if pipeline.under_way is None:
            return True
        triggers = pipeline.under_way.triggers
        try:
            done = pipeline.end()
        except Exception as error:
            self._after_failure(error, triggers)
            return False
        more = self._reported_in_stages(done.staged) if self.published.region.channels else {}
        if triggers:
            report = replace(self.published.reported(done, is_blocking=pipeline.stages.is_blocking), **more)
            self.published.follow(report)
            yield report
        return True

    def _reported_in_stages(self, staged: StagedGroup) -> dict[str, Any]:
        """Report the batches in flight, and the progress of stages that only catch up; return the columns of a report
        that a region of one stage does not have."""
        published, flow = self.published, self.published.owner.history.flow
        in_flight: dict[str, Any] = {"inflight_batches": len(flow.batches), "inflight_bytes": flow.bytes}
        numbers = {"id": staged.row_id, "stages": dict(flow.through), **in_flight}
        if staged.progress_id is not None:
            for step, told in steps_outside(staged):
                published.owner.report(step, told)
            published.owner.report("progress", numbers)
            published.housekeeping.count()
        elif flow.channels:
            published.owner.report("in_flight", numbers)
        alignment, restarts = published.region.parameters.alignment, sum(staged.restarts.values())
        return {"alignment": alignment, "restarts": restarts, **in_flight}

    def _after_failure(self, error: Exception, triggers: Sequence[Trigger]) -> None:
        """Judge a failure: end the run, or go on from the last committed id."""
        pipeline = self.pipeline
        self.failures.after(error, triggers, pipeline.reset)
        if pipeline.must_reset or pipeline.stages.failure is not None:  # a file is gone or changed: all begins anew
            pipeline.reset()

    def _failed(self, failure: Failure) -> None:
        """Reset the region, or end the run, after a stage could not do a group despite all its restarts.

        A group that is committed already cannot be split: its batches are fixed.
        """
        committed = self.published.owner.history.committed_id
        group = failure.group
        triggers = group.triggers if group is not None else self.pipeline.in_hand
        is_committed = group is not None and group.first_id <= committed
        if not isinstance(failure.error, Exception):
            raise failure.error
        self._after_failure(failure.error, triggers[:1] if is_committed else triggers)

    def _finish(self) -> Iterator[GroupReport]:
        """Commit the groups in hand after a signal if the grace time is enough; otherwise abandon them."""
        pipeline = self.pipeline
        while pipeline.stages.failure is None and not pipeline.stages.grace.is_over():
            if not (pipeline.in_hand or pipeline.under_way):
                return
            yield from self._step(is_final=True)
        yield from self._last_report()  # a commit that has begun is waited for
