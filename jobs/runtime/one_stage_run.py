"""The groups of a region with one stage: at most one is staged while the checkpoint of another is under way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from drainmark.jobs.errors import Fenced, Interrupted
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.group.group_report import GroupReport
from drainmark.jobs.runtime.group_pipeline import Pipeline
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.region_run import GroupsRun, RegionRun


@dataclass(slots=True)
class OneStageRun(GroupsRun):
    """The groups of a run of a region with one stage, one after the other."""

    run: RegionRun
    _pipeline: Pipeline = field(init=False)

    def __post_init__(self) -> None:
        run = self.run
        self._pipeline = Pipeline(
            blueprint=run.blueprint,
            outside=run.outside,
            owner=run.owner,
            states=RegionStates(blueprint=run.blueprint, outside=run.outside, hosted=run.hosted),
            grace=run.grace,
            small_bytes=run.limits.small_bytes,
        )

    def reset(self) -> None:
        self._pipeline.reset()

    def at_work(self) -> Mapping[str, Group]:
        group = self._pipeline.at_work
        return {"": group} if group is not None else {}

    def close(self) -> None:
        self._pipeline.close()

    def groups(self) -> Iterator[GroupReport]:
        run = self.run
        try:
            while not run.interrupted.is_set():
                try:
                    halt = run.backlog.halt_requested
                    pending = self._pending() if halt is None else []
                except Exception:
                    yield from self._turn([])  # the checkpoint under way may succeed: report its group
                    raise
                if not pending and self._pipeline.under_way is None:
                    if halt is not None:
                        raise run.failures.halted_on_request(halt)
                    run.housekeeping.maintain_if_due()  # all groups are visible, and no trigger is pending
                    return
                if pending and run.pace.left_seconds:
                    yield from self._turn([])  # the throttle must not delay the checkpoint under way
                    run.pace.wait(lambda seconds: run.interrupted.wait(seconds))  # noqa: PLW0108 - may be another event
                    continue
                yield from self._turn(pending)
            yield from self._turn([])
        finally:
            self._pipeline.leave()
        raise Interrupted(f"{run.region!r} was interrupted", remedy="start it again: no attempt was counted")

    def _pending(self) -> Sequence[Trigger]:
        """Return the triggers of the next group; none if no group may begin now."""
        self.run.hosted.check()
        in_hand = self._pipeline.in_hand
        return [] if self._pipeline.is_held_up else self.run.backlog.next_group(in_hand, self.run.max_triggers)

    def _turn(self, pending: Sequence[Trigger]) -> Iterator[GroupReport]:
        """Stage the next group while the checkpoint of the last one ends; then begin the checkpoint of the next one.

        If the checkpoint of the last group fails, the group staged meanwhile is dropped, too.
        """
        pipeline, failure = self._pipeline, None
        try:
            if pending:
                pipeline.stage(pending)
        except Exception as error:
            failure = error
        if is_ending := pipeline.under_way is not None:
            report = self._established()
            if report is None:
                return
            yield report
        try:
            staged = pipeline.staged()
            if is_ending:
                self.run.housekeeping.maintain_if_due()
            if staged is not None:
                pipeline.begin(staged)
        except Fenced:
            raise
        except Exception as error:
            failure = error
        if failure is not None:
            self.run.failures.after(failure, pending, pipeline.reset)

    def _established(self) -> GroupReport | None:
        """Wait for the checkpoint under way; None if it failed: the failure is handled, and the states are reset."""
        triggers = self._pipeline.in_hand
        try:
            done = self._pipeline.end()
        except Exception as error:
            self.run.failures.after(error, triggers, self._pipeline.reset)
            return None
        report = self.run.published.reported(done, is_blocking=self._pipeline.is_blocking)
        self.run.published.follow(report)
        return report
