"""One run of a region: claim, groups until no trigger is pending, hand over. The CLI and Dagster use the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import (
    Fenced,
    Halted,
    ResetTimeout,
    Retry,
)
from drainmark.jobs.protocol.failure_policy import GroupSize, Halt, Proceed, after_claim, may_be_of_input
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.runtime.after_publish import Pace, PublishedGroups
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.failure_handling import FailureHandling, resetting
from drainmark.jobs.runtime.group.backlog import Backlog, IdAssignment, Limits
from drainmark.jobs.runtime.group.group_report import GroupReport
from drainmark.jobs.runtime.hosting.hosted_parts import Hosted
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.maintenance.housekeeping import Disposal, Housekeeping
from drainmark.jobs.runtime.messages import classified, described, halted_error
from drainmark.jobs.runtime.stages.connected_stages import CommitIntervals, ConnectedStages
from drainmark.jobs.runtime.stages.crew import Crew, states_of
from drainmark.jobs.runtime.stages.pipeline import Pipeline
from drainmark.jobs.runtime.stages.run import GroupsRun
from drainmark.jobs.runtime.stages.sole_stage import SoleStage
from drainmark.jobs.runtime.stages.stages import Stages
from drainmark.jobs.runtime.table_names import TableNames
from drainmark.jobs.runtime.timeout import Bounded, Grace

StagesOf = Callable[[Blueprint, RegionOwner, Hosted, Grace], Stages]


def stages_of(blueprint: Blueprint, owner: RegionOwner, hosted: Hosted, grace: Grace) -> Stages:
    """Return the stages of a region."""
    region, outside = blueprint.region, owner.outside
    if not region.channels:
        states = RegionStates(blueprint=blueprint, outside=outside, hosted=hosted)
        return SoleStage(blueprint=blueprint, owner=owner, states=states, grace=grace)
    crew = Crew(
        region=region,
        states=states_of(blueprint, outside),
        hosted=hosted,
        grace=grace,
        note=owner.report,
    )
    intervals = CommitIntervals(region.parameters.checkpoint_interval)
    return ConnectedStages(blueprint=blueprint, owner=owner, crew=crew, intervals=intervals, grace=grace)


@dataclass(slots=True, kw_only=True)
class RegionRun:
    """A run of one region, used once; `GroupsRun` uses its parts.

    Attributes:
        blueprint: the analysed region.
        hosted: the handlers and starts in this process; its `takes_starts` may be set before `claim`.
        interrupted: set from a signal handler; a group that can commit soon is committed, otherwise it is abandoned.
        max_triggers: the run stops after so many triggers (1 with `runs="per_trigger"`); None for all.
        while_waiting: called repeatedly while no trigger is pending and stages are still at work.
    """

    blueprint: Blueprint
    owner: RegionOwner
    hosted: Hosted
    grace: Grace
    pipeline: Pipeline
    published: PublishedGroups
    failures: FailureHandling
    interrupted: world.Flag
    max_triggers: int | None = None
    while_waiting: Callable[[], None] = lambda: None

    @classmethod
    def of(
        cls,
        blueprint: Blueprint,
        owner: RegionOwner,
        *,
        limits: Limits,
        interrupted: world.Flag,
        max_triggers: int | None = None,
        stages_of: StagesOf = stages_of,
    ) -> RegionRun:
        region, hosted, grace = blueprint.region, Hosted(), Grace(interrupted.is_set)
        backlog = Backlog(registry=owner.outside.registry, region=owner.region, limits=limits)
        stages = stages_of(blueprint, owner, hosted, grace)
        disposal = Disposal(owner=owner, starts=region.starts)
        return cls(
            blueprint=blueprint,
            owner=owner,
            hosted=hosted,
            grace=grace,
            pipeline=Pipeline(owner=owner, stages=stages, ids=IdAssignment(owner)),
            published=PublishedGroups(
                region=region,
                owner=owner,
                hosted=hosted,
                backlog=backlog,
                housekeeping=Housekeeping(region=region, owner=owner, hosted=hosted, disposal=disposal),
                names=TableNames(owner=owner),
                pace=Pace.of(region.operators),
            ),
            failures=FailureHandling(region=region, owner=owner, backlog=backlog, in_python=blueprint.in_python),
            interrupted=interrupted,
            max_triggers=max_triggers,
        )

    @property
    def region(self) -> str:
        return self.owner.region

    def claim(self) -> None:
        """Take over the region and load its state.

        Raises:
            Owned, Fenced: another owner has it: there is nothing to hand over.
            Halted: it waits for `resume`, or this claim exceeds the allowed reset attempts.
            ResetTimeout: rolling forward took longer than reset_timeout.
        """
        parameters = self.blueprint.region.parameters
        with resetting(self.owner):
            Bounded(
                lambda: self.owner.claim(self.blueprint.tables, self.blueprint.code),
                parameters.reset_timeout.total_seconds(),
                self.grace,
                late=lambda seconds: ResetTimeout(
                    f"the reset of {self.region!r} took longer than {seconds:g} s",
                    remedy="look at the store; a new attempt starts by itself",
                ),
            ).result()
            self.owner.halts.lift()
            if self.owner.history.halt is not None:
                raise halted_error(self.region, self.owner.history)
            backlog = self.published.backlog
            limit = 1 if self.blueprint.forced_single else backlog.limits.triggers
            decision = after_claim(
                self.owner.history, max_attempts=parameters.max_consecutive_reset_attempts, max_group=limit
            )
            if isinstance(decision, Halt):
                error = self.owner.history.last_error or {}
                suspect = backlog.next_uri() if may_be_of_input(error.get("id")) else None
                trigger = error.get("trigger") or suspect
                raise self.failures.halted(decision.reason, error=error, trigger=trigger)
            first = decision.first_group if isinstance(decision, Proceed) else 1
            backlog.size = GroupSize(first, limit)
            self.pipeline.reset()
        self.published.housekeeping.dispose()

    def groups(self) -> Iterator[GroupReport]:
        """Process groups until no trigger is pending and all groups are published; yield the report of each.

        While a group's checkpoint is under way the next one is processed, unless the region's checkpoints block.

        Raises:
            DrainmarkError: the run is over; `hand_over` notes the error for the next owner.
        """
        return GroupsRun(
            pipeline=self.pipeline,
            published=self.published,
            failures=self.failures,
            may_take=lambda: self.max_triggers,
            while_waiting=self.while_waiting,
            interrupted=self.interrupted,
        ).groups()

    def at_work(self) -> Mapping[str, Group]:
        """Return the groups that are processed now, by name of the stage ("" if there is one); from any thread."""
        return self.pipeline.stages.at_work

    def rest(self) -> None:
        """Bring up lagging tables, and commit the note of publishing now, since the next group may come late."""
        if self._bring_up() or self.owner.ledger.open_note():
            self.owner.ledger.note_published()
        self.published.names.give()

    def hand_over(self, error: BaseException | None = None) -> None:
        """Note how the run ended and release the region. Once `claim` has begun, call it once, also after an error.

        Raises:
            Fenced: another owner has claimed it; most often the run failed because of that: its staged files are gone.
        """
        self.pipeline.close()
        if isinstance(error, Fenced):
            self.owner.leave()
            return
        if not self.owner.epoch:
            self.owner.outside.lease.release(clean=False)
            return
        outcome = Outcome.CLEAN
        blamed: Mapping[str, Any] | None = None
        if isinstance(error, Exception) and classified(error).retry is Retry.WAIT:
            outcome = Outcome.INTERRUPTED
        elif error is not None and not isinstance(error, Halted):
            outcome, blamed = Outcome.FAILED, described(error)
        try:
            if blamed:
                self.failures.note(blamed)
            self.published.housekeeping.remember()
            if outcome is not Outcome.FAILED:  # after a failure another attempt comes soon
                self._bring_up()
            self.owner.release(outcome, blamed)
            if error is None:
                self.published.names.settle()
        except Fenced as fenced:
            self.owner.leave()
            if blamed and isinstance(error, Exception) and self.owner.has_claimed:
                raise fenced.after(error) from error

    def _bring_up(self) -> int:
        """Bring up the visible tables that lag, and return their number; after an error tables go on lagging."""
        try:
            return self.owner.visible.bring_up_all()
        except Fenced:
            raise
        except Exception as error:  # all rows are committed; the next owner tries again
            self.owner.report("visible", {"failed": str(error)})
            return 0


__all__ = ["GroupReport", "Limits", "RegionRun", "classified"]
