"""One run of a region: claim, groups until nothing is pending, hand over. The CLI and Dagster use the same one.

Errors are judged here, once: split and try again, end the run for a retry, halt, or leave quietly (design.md §3.5).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs.errors import (
    DrainmarkError,
    DrainTimeout,
    Fenced,
    Halted,
    InputChanged,
    InputMissing,
    Interrupted,
    ResetTimeout,
    Retry,
    SplitBrain,
    StoreUnavailable,
)
from drainmark.jobs.operators.sources.directory_source import DirectorySource
from drainmark.jobs.protocol.decisions import (
    SPLIT,
    GroupSize,
    Halt,
    Leave,
    Proceed,
    Split,
    Stop,
    after_claim,
    after_failure,
)
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.protocol.records.triggers import Trigger, TriggerStatus
from drainmark.jobs.protocol.transitions import IN_HAND, Event, State
from drainmark.jobs.runtime.adapters import Outside, Report
from drainmark.jobs.runtime.analysis.physical_plan import Blueprint
from drainmark.jobs.runtime.checkpoint_pipeline import Pipeline
from drainmark.jobs.runtime.commit.background_checkpoint import Establishing
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.replacement import one_of_each
from drainmark.jobs.runtime.commit.row_author import Identity
from drainmark.jobs.runtime.group_report import GroupReport, steps_outside
from drainmark.jobs.runtime.limits import Limits
from drainmark.jobs.runtime.maintenance.housekeeping import Housekeeping
from drainmark.jobs.runtime.messages import classified, described, full_identity, halted_error
from drainmark.jobs.runtime.throttle import Pace
from drainmark.jobs.runtime.timeout import Bounded, Grace


@dataclass(slots=True, kw_only=True)
class RegionRun:
    """A run of one region, used once.

    Attributes:
        blueprint: the analysed region.
        max_triggers: stop after so many triggers (`runs="per_trigger"` gives one), None for all.
        while_waiting: called every so often while nothing is pending and stages are still at work.
        interrupted: set from a signal handler; the group ends if it can commit soon, else it is abandoned.
    """

    blueprint: Blueprint
    outside: Outside
    identity: Identity
    limits: Limits = field(default_factory=Limits)
    report: Report = lambda step, numbers: None
    max_triggers: int | None = None
    while_waiting: Callable[[], None] = lambda: None
    interrupted: threading.Event = field(default_factory=threading.Event)
    owner: RegionOwner = field(init=False)
    size: GroupSize = field(default_factory=lambda: GroupSize(1, 1))
    done_triggers: int = 0
    _split: Mapping[str, Any] = field(default_factory=dict)
    _pipeline: Pipeline = field(init=False)
    _housekeeping: Housekeeping = field(init=False)
    _pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.owner = RegionOwner(identity=self.identity, outside=self.outside, report=self.report)
        self._pace = Pace.of(self.blueprint.region.operators)
        self._pipeline = Pipeline(
            blueprint=self.blueprint,
            outside=self.outside,
            owner=self.owner,
            states=RegionStates(blueprint=self.blueprint, outside=self.outside),
            grace=Grace(self._is_interrupted),
            small_bytes=self.limits.small_bytes,
        )
        self._housekeeping = Housekeeping(
            region=self.blueprint.region, owner=self.owner, states=self.states, report=self.report
        )

    @property
    def region(self) -> str:
        return self.identity.region

    @property
    def states(self) -> RegionStates:
        """Return the states of its operators; before `claim` it can be said whether it `hosts_starts`."""
        return self._pipeline.states

    def _is_interrupted(self) -> bool:
        return self.interrupted.is_set()  # whoever owns the run may give it another event

    def claim(self) -> None:
        """Take the region over and load its state.

        Raises:
            Owned, Fenced: somebody else has it: nothing to hand over.
            Halted: it waits for an operator, or this claim was one reset too many.
            ResetTimeout: rolling forward took longer than reset_timeout.
        """
        parameters = self.blueprint.region.parameters
        with self._resetting():
            Bounded(
                lambda: self.owner.claim(self.blueprint.tables, self.blueprint.code),
                parameters.reset_timeout.total_seconds(),
                self._pipeline.grace,
                late=lambda seconds: ResetTimeout(
                    f"the reset of {self.region!r} took longer than {seconds:g} s",
                    remedy="look at the store; a new attempt starts by itself",
                ),
            ).result()
            self.owner.lift()
            if self.owner.history.halt is not None:
                raise halted_error(self.region, self.owner.history)
            limit = 1 if self.blueprint.forced_single else self.limits.triggers
            decision = after_claim(
                self.owner.history, max_attempts=parameters.max_consecutive_reset_attempts, max_group=limit
            )
            if isinstance(decision, Halt):
                error = self.owner.history.last_error or {}
                raise self._halt(decision.reason, error=error, trigger=error.get("trigger") or self._next_uri())
            first = decision.first_group if isinstance(decision, Proceed) else 1
            self.size = GroupSize(first, limit)
            self._pipeline.reset()
        self._housekeeping.dispose()

    @contextmanager
    def _resetting(self) -> Iterator[None]:
        """Bring the region back to the last committed id; the controller is told how that ends."""
        try:
            yield
        except ResetTimeout:
            if self.owner.state in (State.STARTED, State.RESETTING) and self.owner.epoch:
                self.owner.moved(Event.RESET_TIMED_OUT, told=False)
            raise
        self.owner.reset_done()

    def groups(self) -> Iterator[GroupReport]:
        """Process groups until nothing is pending; yields after each one is published.

        While a group's checkpoint is under way the next one is processed, unless the region's checkpoints block.

        Raises:
            DrainmarkError: the run is over; `hand_over` says so to the next owner.
        """
        try:
            while not self.interrupted.is_set():
                try:
                    halt = self.outside.registry.region_info(self.region).halt_requested
                    pending = self._pending() if halt is None else []
                except Exception:
                    yield from self._turn([])  # what is under way may well end, and is to be reported
                    raise
                if not pending and self._pipeline.under_way is None:
                    if halt is not None:
                        raise self._halted_on_request(halt)
                    self._housekeeping.maintain_if_due()  # all is visible, and nothing waits
                    return
                if pending and self._pace.left_seconds:
                    yield from self._turn([])  # nothing waits that is under way
                    self._pace.wait(lambda seconds: self.interrupted.wait(seconds))  # noqa: PLW0108 - may be another event
                    continue
                yield from self._turn(pending)
            yield from self._turn([])
        finally:
            self._pipeline.leave()
        raise Interrupted(f"{self.region!r} was interrupted", remedy="start it again: no attempt was counted")

    def hand_over(self, error: BaseException | None = None) -> None:
        """Note how the run ended and release the region. Call it once, whatever happened after `claim` began."""
        self._pipeline.close()
        self.outside.store.drop_copies()
        if isinstance(error, Fenced):
            self.owner.leave()
            return
        if not self.owner.epoch:
            self.outside.lease.release(clean=False)
            return
        outcome = Outcome.CLEAN
        blamed: Mapping[str, Any] | None = None
        if isinstance(error, Interrupted) or (isinstance(error, DrainmarkError) and error.retry is Retry.WAIT):
            outcome = Outcome.INTERRUPTED
        elif error is not None and not isinstance(error, Halted):
            outcome, blamed = Outcome.FAILED, described(error)
        try:
            if blamed:
                with suppress(StoreUnavailable):  # the checkpoint table gets it as well
                    self.outside.registry.record_error(self.region, self.owner.epoch, {**blamed, **self._split})
            self._housekeeping.remember()
            self.owner.release(outcome, blamed)
        except Fenced:
            self.owner.leave()

    # --- groups: at most one is staged while the checkpoint of another is under way ----------------------------------

    def _pending(self) -> Sequence[Trigger]:
        """Return the triggers of the next group; none where nothing may be begun now."""
        self.states.check()
        before = self._pipeline.in_hand
        if self._pipeline.is_held_up:
            return []
        count = self.size.current
        if self.max_triggers is not None:
            count = min(count, self.max_triggers - self.done_triggers - len(before))
        if count <= 0:
            return []
        after = max((trigger.order_index for trigger in before), default=0)
        return one_of_each(self.outside.registry.pending(self.region, count, self.limits.size_bytes, after=after))

    def _turn(self, pending: Sequence[Trigger]) -> Iterator[GroupReport]:
        """Stage the next group while the checkpoint of the last one ends, and begin that of the next.

        Where the last one fails, what is staged meanwhile is dropped with it (X12).
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
                self._housekeeping.maintain_if_due()
            if staged is not None:
                pipeline.begin(staged)
        except Fenced:
            raise
        except Exception as error:
            failure = error
        if failure is not None:
            self._after_failure(failure, pending)

    def _established(self) -> GroupReport | None:
        """Await the checkpoint under way; None where it failed, and states and order of work are as before it."""
        triggers = self._pipeline.in_hand
        try:
            done = self._pipeline.end()
        except Exception as error:
            self._after_failure(error, triggers)
            return None
        report = self._reported(done)
        self.size = self.size.after_success()
        self.done_triggers += report.triggers
        self._housekeeping.count()
        self._tell_sources(report)
        self._pace.passed(report.rows_in)
        return report

    def _tell_sources(self, report: GroupReport) -> None:
        """Tell the starts what is committed; one that cannot tidy up now does so after the next group."""
        try:
            self.states.region_checkpointed(self.owner.history, report.first_id, report.last_id)
        except Exception as error:
            self.report("retire", {"failed": str(error)})

    # --- failures ---------------------------------------------------------------------------------------------------

    def _after_failure(self, raised: Exception, pending: Sequence[Trigger]) -> None:
        """Decide what follows; returns where the loop goes on, raises where the run is over."""
        if isinstance(raised, InputChanged | InputMissing):
            self._input_gone(raised)
            return
        error = classified(raised)
        if isinstance(error, Fenced):
            raise error
        self.owner.refresh()
        if self.owner.behind:
            self._finish_committed(error)
            self.done_triggers += len(pending)
            return
        if isinstance(error, SplitBrain):  # whatever the group is made of
            raise self._halt(error.message, error=described(error), trigger=None) from error
        decision = after_failure(
            error.retry,
            group_size=len(pending),
            attempts=self.owner.history.attempts,
            max_attempts=self.blueprint.region.parameters.max_consecutive_reset_attempts,
        )
        if isinstance(decision, Leave | Stop):
            raise error
        self.owner.moved(_event_of(error))
        self.report("failed", {"error": str(error), "triggers": len(pending), "decision": type(decision).__name__})
        if isinstance(decision, Split):
            self._tell_split(error, len(pending))
            self.size = self.size.after_failure()
            with self._resetting():
                self._pipeline.reset()
            return
        trigger = error.facts["trigger"] = pending[0].uri if pending else None
        if isinstance(decision, Halt):
            raise self._halt(decision.reason, error=described(error), trigger=trigger) from error
        raise error  # EndRun: the next claim counts an attempt

    def _tell_split(self, error: DrainmarkError, triggers: int) -> None:
        """Say why a group is done again in groups of one: whoever looks on, and the registry, until all went well."""
        self.report(SPLIT, {"triggers": triggers, "error": str(error)})
        self._split = {SPLIT: {"triggers": triggers, **described(error)}}
        with suppress(StoreUnavailable):
            self.outside.registry.record_error(self.region, self.owner.epoch, {**described(error), **self._split})

    def _finish_committed(self, error: Exception) -> None:
        """The group was committed although something raised: roll forward instead of doing it again (H10)."""
        self.report("committed", {"although": str(error)})
        if self.owner.state in (State.DRAINING, State.CHECKPOINT_PENDING):
            self.owner.moved(Event.CHECKPOINTED, told=False)
        self.owner.moved(Event.FAILED)
        with self._resetting():
            self.owner.roll_forward()
            self._pipeline.reset()

    def _input_gone(self, error: InputChanged | InputMissing) -> None:
        """A file is not what was scanned: it is scanned anew, or passed, or the region halts; no attempt (I2, I5)."""
        source = next(op for op in self.blueprint.region.operators if isinstance(op, DirectorySource))
        triggers: Sequence[Trigger] = error.facts["triggers"]
        epoch = self.owner.epoch
        if self.owner.state in IN_HAND:
            self.owner.moved(Event.FAILED)
        self.report("input", {"error": error.message})
        for trigger in triggers:
            if isinstance(error, InputChanged):
                self.outside.registry.mark(self.region, epoch, [trigger.id], TriggerStatus.SUPERSEDED, error.message)
            elif source.scan.on_missing == "skip":
                self.owner.refuse(trigger.uri, full_identity(trigger), error.message)
                self.outside.registry.mark(self.region, epoch, [trigger.id], TriggerStatus.MISSING, error.message)
            else:
                raise self._halt(error.message, error=described(error), trigger=trigger.uri)
        self.owner.reset_done()

    def _halt(self, reason: str, *, error: Mapping[str, Any], trigger: str | None) -> Halted:
        return self.owner.halt(reason, trigger=trigger, operator=error.get("operator"), error=error or None)

    def _halted_on_request(self, reason: str) -> Halted:
        """Halt, and then take the request back: else a crash in between would lose it. `resume` takes it back, too."""
        halted = self.owner.halt(reason, trigger=None, operator=None, error=None, event=Event.HALT_ASKED)
        with suppress(StoreUnavailable):
            self.outside.registry.clear_halt_request(self.region, self.owner.epoch)
        return halted

    def _next_uri(self) -> str | None:
        pending = self.outside.registry.pending(self.region, 1)
        return pending[0].uri if pending else None

    # --- reporting --------------------------------------------------------------------------------------------------

    def _reported(self, done: Establishing) -> GroupReport:
        staged = done.staged
        report = GroupReport.of(
            staged,
            region=self.region,
            versions=self.owner.versions,
            checkpoint_seconds=done.commit_seconds,
            publish_seconds=done.publish_seconds,
            pending_seconds=0.0 if self._pipeline.is_blocking else done.pending_seconds,
        )
        for step, numbers in (*steps_outside(staged), ("group", report.step)):
            self.report(step, numbers)
        return report


def _event_of(error: DrainmarkError) -> Event:
    """Return what an error means for the controller."""
    if error.retry is Retry.RENEW:
        return Event.HEALTH_LOST
    return Event.DRAIN_TIMED_OUT if isinstance(error, DrainTimeout) else Event.FAILED


__all__ = ["GroupReport", "Limits", "RegionRun", "classified"]
