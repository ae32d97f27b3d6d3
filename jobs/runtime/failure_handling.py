"""Reactions to a failed group: split and try again, end the run for a retry, halt, or leave quietly.

Errors are judged only here, for regions of one stage and of several.
"""

from __future__ import annotations

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
    ResetTimeout,
    Retry,
    SplitBrain,
    StoreUnavailable,
)
from drainmark.jobs.errors.environment import WorkerDied
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.protocol.failure_policy import SPLIT, Halt, Leave, SplitGroup, Stop, after_failure, may_be_of_input
from drainmark.jobs.protocol.records.triggers import Trigger, TriggerStatus
from drainmark.jobs.protocol.transitions import IN_HAND, Event, State
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.group.backlog import Backlog
from drainmark.jobs.runtime.messages import classified, described

_FILES_TOLD = 5
Reset = Callable[[], None]
"""Brings the states back to the last committed id."""


@contextmanager
def resetting(owner: RegionOwner) -> Iterator[None]:
    """Tell the controller how the reset in the body ends."""
    try:
        yield
    except ResetTimeout:
        if owner.state in (State.STARTED, State.RESETTING) and owner.epoch:
            owner.moved(Event.RESET_TIMED_OUT, told=False)
        raise
    owner.reset_done()


@dataclass(slots=True, kw_only=True)
class FailureHandling:
    """The execution of the decisions that `jobs.protocol.failure_policy` makes after a failure.

    Attributes:
        split: the registry's note about the group that was split last.
        in_python: returns the operators that call functions in Spark's Python workers.
    """

    region: RegionPlan
    owner: RegionOwner
    backlog: Backlog
    split: Mapping[str, Any] = field(default_factory=dict)
    in_python: Callable[[], Sequence[Operator]] = tuple

    def after(self, raised: Exception, pending: Sequence[Trigger], reset: Reset) -> None:
        """Decide what follows; return if the loop goes on, raise if the run is over.

        Args:
            pending: the triggers of the failed group.
        """
        if isinstance(raised, InputChanged | InputMissing):
            self._input_gone(raised)
            return
        error = classified(raised)
        if isinstance(error, Fenced):
            raise error
        self.owner.ledger.refresh()
        if self.owner.behind:
            self._finish_committed(error, reset)
            self.backlog.done += len(pending)
            return
        if isinstance(error, SplitBrain):  # no trigger is to blame
            raise self.halted(error.message, error=described(error), trigger=None) from error
        if isinstance(error, WorkerDied):
            self._tell_suspects(error, pending)
        decision = after_failure(
            error.retry,
            group_size=len(pending),
            attempts=self.owner.history.attempts,
            max_attempts=self.region.parameters.max_consecutive_reset_attempts,
        )
        if isinstance(decision, Leave | Stop):
            raise error
        self.owner.moved(_event_of(error))
        said = error.told if isinstance(decision, SplitGroup) else str(error)  # nothing is halted: nobody need fix it
        self.owner.report("failed", {"error": said, "triggers": len(pending), "decision": type(decision).__name__})
        if isinstance(decision, SplitGroup):
            self._tell_split(error, len(pending))
            self.backlog.split()
            with resetting(self.owner):
                reset()
            return
        trigger = error.facts["trigger"] = pending[0].uri if pending and may_be_of_input(error.id) else None
        if isinstance(decision, Halt):
            raise self.halted(decision.reason, error=described(error), trigger=trigger) from error
        raise error  # EndRun: the next claim counts an attempt

    def halted(self, reason: str, *, error: Mapping[str, Any], trigger: str | None) -> Halted:
        """Halt the region, and return the error to raise."""
        return self.owner.halts.halt(reason, trigger=trigger, error=error)

    def halted_on_request(self, reason: str) -> Halted:
        """Halt, then delete the request; in the other order a crash would lose it. `resume` deletes it, too."""
        halted = self.owner.halts.halt(reason, event=Event.HALT_ASKED)
        with suppress(StoreUnavailable):
            self.owner.outside.registry.progress.clear_halt_request(self.owner.region, self.owner.epoch)
        return halted

    def note(self, error: Mapping[str, Any]) -> None:
        """Record an error in the registry, with the note about the split group; the checkpoint table gets it, too."""
        with suppress(StoreUnavailable):
            noted = {**error, **self.split}
            self.owner.outside.registry.progress.record_error(self.owner.region, self.owner.epoch, noted)

    def _tell_split(self, error: DrainmarkError, triggers: int) -> None:
        """Report, and note in the registry, why a group is processed again in groups of one."""
        self.owner.report(SPLIT, {"triggers": triggers, "error": error.told})
        self.split = {SPLIT: {"triggers": triggers, **described(error)}}
        self.note(described(error))

    def _tell_suspects(self, error: WorkerDied, pending: Sequence[Trigger]) -> None:
        """Add to an error the functions that the dead worker ran, and the files: one of them may be the cause."""
        with suppress(Exception):  # Spark has to name the operators, and may be gone by now
            suspects = self.in_python()
            named = " and ".join(f"{each.name!r} ({each.location})" for each in suspects) or "no operator"
            files = ", ".join(trigger.uri for trigger in pending[:_FILES_TOLD])
            more = f" and {len(pending) - _FILES_TOLD} more" if len(pending) > _FILES_TOLD else ""
            error.message += f"; it ran functions of {named} on {files}{more}"
            if len(suspects) == 1:
                error.operator, error.location = suspects[0].name, suspects[0].location

    def _finish_committed(self, error: Exception, reset: Reset) -> None:
        """Roll forward a group that was committed although a later step raised, instead of processing it again."""
        self.owner.report("committed", {"although": str(error)})
        if self.owner.state in (State.DRAINING, State.CHECKPOINT_PENDING):
            self.owner.moved(Event.CHECKPOINTED, told=False)
        self.owner.moved(Event.FAILED)
        with resetting(self.owner):
            self.owner.roll_forward()
            reset()

    def _input_gone(self, error: InputChanged | InputMissing) -> None:
        """Let a changed file be scanned again; refuse a missing file, or halt. This counts no attempt."""
        source = next(op for op in self.region.operators if isinstance(op, DirectorySource))
        triggers: Sequence[Trigger] = error.facts["triggers"]
        registry, region, epoch = self.owner.outside.registry, self.owner.region, self.owner.epoch
        if self.owner.state in IN_HAND:
            self.owner.moved(Event.FAILED)
        halts = isinstance(error, InputMissing) and source.scan.on_missing != "skip"
        self.owner.report("input", {"error": error.message, "remedy": error.remedy, "halts": halts})
        if halts:
            raise self.halted(error.message, error=described(error), trigger=triggers[0].uri)
        for trigger in triggers:
            if isinstance(error, InputChanged):
                registry.triggers.mark(region, epoch, [trigger.id], TriggerStatus.SUPERSEDED, error.message)
            else:
                self.owner.halts.refuse([trigger], error.message)
                registry.triggers.mark(region, epoch, [trigger.id], TriggerStatus.MISSING, error.message)
        self.owner.reset_done()


def _event_of(error: DrainmarkError) -> Event:
    """Return the controller's event for an error."""
    if error.retry is Retry.RENEW:
        return Event.HEALTH_LOST
    return Event.DRAIN_TIMED_OUT if isinstance(error, DrainTimeout) else Event.FAILED
