"""One run of a region: claim, groups until nothing is pending, hand over. The CLI and Dagster use the same one.

Errors are judged here, once: split and try again, end the run for a retry, halt, or leave quietly (design.md §3.5).
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from jobs.errors import (
    DrainmarkError,
    DrainTimeout,
    Fenced,
    Halted,
    InputChanged,
    InputMissing,
    Interrupted,
    OperatorFailed,
    ResetTimeout,
    Retry,
    StoreUnavailable,
)
from jobs.failpoints import FailPoint, reach
from jobs.operators.aggregate import Aggregate
from jobs.operators.directory_scan import Source
from jobs.protocol.decisions import GroupSize, Halt, Leave, Proceed, Split, Stop, after_claim, after_failure
from jobs.protocol.history import Outcome
from jobs.protocol.transitions import Event, State
from jobs.protocol.triggers import Trigger, TriggerStatus
from jobs.runtime.blueprint import Blueprint
from jobs.runtime.bounded import bounded
from jobs.runtime.collecting import EVERY_SECONDS, collect
from jobs.runtime.descriptions import full_identity, halted_error
from jobs.runtime.group import GroupWork, StagedGroup
from jobs.runtime.maintaining import EVERY_GROUPS, maintain_region
from jobs.runtime.owner import Identity, RegionOwner, Report
from jobs.runtime.ports import Outside
from jobs.runtime.reading import Assigned, Group
from jobs.runtime.replacing import one_of_each
from jobs.runtime.reports import GroupReport
from jobs.runtime.spark_faults import lost_engine
from jobs.runtime.storage_faults import no_space
from jobs.state.keyed import KeyedState


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large a group may be.

    Attributes:
        triggers: at most, per group.
        size_bytes: at most, per group; one trigger is always taken.
        small_bytes: groups up to here come back by Arrow (H35).
    """

    triggers: int = 2000
    size_bytes: int = 256 * 1024 * 1024
    small_bytes: int = 8 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class RegionRun:
    """A run of one region, used once.

    Attributes:
        blueprint: the analysed region.
        max_triggers: stop after so many triggers (`runs="per_trigger"` gives one), None for all.
        interrupted: set from a signal handler; the group ends if it can commit soon, else it is abandoned.
    """

    blueprint: Blueprint
    outside: Outside
    identity: Identity
    limits: Limits = field(default_factory=Limits)
    report: Report = lambda step, numbers: None
    max_triggers: int | None = None
    interrupted: threading.Event = field(default_factory=threading.Event)
    owner: RegionOwner = field(init=False)
    states: dict[str, KeyedState] = field(default_factory=dict)
    size: GroupSize = field(default_factory=lambda: GroupSize(1, 1))
    done_triggers: int = 0
    done_groups: int = 0
    _collects_at: float = 0.0

    def __post_init__(self) -> None:
        self.owner = RegionOwner(identity=self.identity, outside=self.outside, report=self._note)

    @property
    def region(self) -> str:
        return self.identity.region

    def claim(self) -> None:
        """Take the region over and load its state.

        Raises:
            Owned, Fenced: somebody else has it: nothing to hand over.
            Halted: it waits for an operator, or this claim was one reset too many.
            ResetTimeout: rolling forward took longer than reset_timeout.
        """
        parameters = self.blueprint.region.parameters
        bounded(
            lambda: self.owner.claim(self.blueprint.tables),
            parameters.reset_timeout.total_seconds(),
            self.interrupted,
            late=lambda seconds: ResetTimeout(
                f"the reset of {self.region!r} took longer than {seconds:g} s",
                remedy="look at the store; a new attempt starts by itself",
            ),
        )
        if self.owner.history.halt is not None:
            raise halted_error(self.region, self.owner.history)
        limit = 1 if self.blueprint.forced_single else self.limits.triggers
        decision = after_claim(
            self.owner.history, max_attempts=parameters.max_consecutive_reset_attempts, max_group=limit
        )
        if isinstance(decision, Halt):
            error = self.owner.history.last_error or {}
            raise self._halt(decision.reason, error=error, trigger=error.get("trigger") or self._next_uri())
        self.size = GroupSize(decision.first_group, limit) if isinstance(decision, Proceed) else GroupSize(1, limit)
        self._load_states()

    def groups(self) -> Iterator[GroupReport]:
        """Process groups until nothing is pending; yields after each one is published.

        Raises:
            DrainmarkError: the run is over; `hand_over` says so to the next owner.
        """
        while not self.interrupted.is_set():
            self._obey_halt_request()
            pending = self._pending()
            if not pending:
                return
            try:
                report = self._group(pending)
            except (InputChanged, InputMissing) as error:
                self._input_gone(error)
            except Exception as error:
                self._after_failure(error, pending)
            else:
                self.size = self.size.after_success()
                self.done_triggers += report.triggers
                self.done_groups += 1
                yield report
                self._maintain()
        raise Interrupted(f"{self.region!r} was interrupted", remedy="start it again: no attempt was counted")

    def hand_over(self, error: BaseException | None = None) -> None:
        """Note how the run ended and release the region. Call it once, whatever happened after `claim` began."""
        self.outside.store.drop_copies()
        if isinstance(error, Fenced):
            self.owner.leave()
            return
        if not self.owner.epoch:
            self.outside.lease.release(clean=False)
            return
        outcome = Outcome.CLEAN
        described: Mapping[str, Any] | None = None
        if isinstance(error, Interrupted) or (isinstance(error, DrainmarkError) and error.retry is Retry.WAIT):
            outcome = Outcome.INTERRUPTED
        elif error is not None and not isinstance(error, Halted):
            outcome, described = Outcome.FAILED, self._described(error)
        try:
            if described:
                with suppress(StoreUnavailable):  # the checkpoint table gets it as well
                    self.outside.registry.record_error(self.region, self.owner.epoch, described)
            self.owner.release(outcome, described)
        except Fenced:
            self.owner.leave()

    # --- one group --------------------------------------------------------------------------------------------------

    def _pending(self) -> Sequence[Trigger]:
        count = self.size.current
        if self.max_triggers is not None:
            count = min(count, self.max_triggers - self.done_triggers)
        if count <= 0:
            return []
        return one_of_each(self.outside.registry.pending(self.region, count, self.limits.size_bytes))

    def _group(self, pending: Sequence[Trigger]) -> GroupReport:
        reach(FailPoint.ASSIGN_BEFORE)
        self.owner.moved(Event.TRIGGERED)
        first = self.outside.registry.take_ids(self.region, self.owner.epoch, len(pending))
        members = tuple(Assigned(sequence_id=first + i, trigger=trigger) for i, trigger in enumerate(pending))
        group = Group(members=members, epoch=self.owner.epoch, attempt=uuid.uuid4().hex)
        reach(FailPoint.ASSIGN_AFTER)
        staged = self._stage(group)
        started = time.monotonic()
        row = self.owner.commit(staged)
        committed = time.monotonic()
        self.owner.moved(Event.CHECKPOINTED)
        self.owner.publish(row)
        self._advance(staged)
        return self._reported(staged, committed - started, time.monotonic() - committed)

    def _stage(self, group: Group) -> StagedGroup:
        tag = f"drainmark-{group.attempt}"
        work = GroupWork(
            blueprint=self.blueprint,
            outside=self.outside,
            group=group,
            states=self.states,
            small=group.bytes_to_read <= self.limits.small_bytes,
            tag=tag,
        )
        blame = self.blueprint.region.starts[0]
        staged: StagedGroup = bounded(
            work.stage,
            self.blueprint.region.parameters.drain_timeout.total_seconds(),
            self.interrupted,
            late=lambda seconds: DrainTimeout(
                f"establishing {group.first_id}..{group.last_id} took longer than {seconds:g} s",
                operator=blame.name,
                location=blame.location,
                remedy="raise drain_timeout in @consistent, or look for what hangs",
            ),
            cancel=lambda: self.outside.engine.cancel(tag),
        )
        return staged

    def _maintain(self) -> None:
        """Keep the tables fast; what fails here is tried again later and costs nobody an attempt."""
        if self.done_groups % EVERY_GROUPS:
            return
        try:
            rewritten = maintain_region(self.owner, horizon=self.blueprint.region.parameters.rewind_horizon)
            self._collect()
        except Fenced:
            raise
        except Exception as error:
            self.report("maintain", {"failed": str(error)})
        else:
            self.report("maintain", {"rewritten": rewritten})

    def _collect(self) -> None:
        if time.monotonic() >= self._collects_at:
            self._collects_at = time.monotonic() + EVERY_SECONDS
            horizon = self.blueprint.region.parameters.rewind_horizon
            self.report("collect", collect(self.outside, self.owner.history, horizon=horizon))

    def _advance(self, staged: StagedGroup) -> None:
        for name, table in staged.tables.items():
            if name in self.states:
                self.states[name].advance(table.files, table.rows, table.image)
        self.outside.store.keep_copies({name: state.files_for_spark for name, state in self.states.items()})

    def _load_states(self) -> None:
        """Load every keyed state as of the last committed id."""
        from pyspark.sql.types import StructType

        self.states.clear()
        for operator in self.blueprint.region.stateful:
            if not isinstance(operator, Aggregate):
                continue
            name = self.blueprint.written_by[operator.name]
            table = self.outside.store.table(name)
            self.states[name] = KeyedState.load(
                table=name,
                stored=table,
                keys=operator.all_keys,
                schema=StructType.fromJson(json.loads(self.blueprint.table(name).schema_json)),
                image=self.owner.history.image_of(name),
                dropped=self.owner.history.dropped.get(name, 0),
                live=table.live_files(),
            )

    # --- failures ---------------------------------------------------------------------------------------------------

    def _after_failure(self, raised: Exception, pending: Sequence[Trigger]) -> None:
        """Decide what follows; returns where the loop goes on, raises where the run is over."""
        error = classified(raised)
        if isinstance(error, Fenced):
            raise error
        self.owner.refresh()
        if self.owner.behind:
            self._finish_committed(error)
            self.done_triggers += len(pending)
            return
        decision = after_failure(
            error.retry,
            group_size=len(pending),
            attempts=self.owner.history.attempts,
            max_attempts=self.blueprint.region.parameters.max_consecutive_reset_attempts,
        )
        if isinstance(decision, Leave | Stop):
            raise error
        late = isinstance(error, DrainTimeout)
        if self.owner.state in (State.DRAINING, State.PROCESSING):
            self.owner.moved(Event.DRAIN_TIMED_OUT if late and self.owner.state is State.DRAINING else Event.FAILED)
        self.report("failed", {"error": str(error), "triggers": len(pending), "decision": type(decision).__name__})
        if isinstance(decision, Split):
            self.size = self.size.after_failure()
            self._load_states()
            self.owner.moved(Event.RESET_DONE)
            return
        error.facts["trigger"] = pending[0].uri
        if isinstance(decision, Halt):
            raise self._halt(decision.reason, error=self._described(error), trigger=pending[0].uri) from error
        raise error  # EndRun: the next claim counts an attempt

    def _finish_committed(self, error: Exception) -> None:
        """The group was committed although something raised: roll forward instead of doing it again (H10)."""
        self.report("committed", {"although": str(error)})
        if self.owner.state is State.DRAINING:
            self.owner.moved(Event.CHECKPOINTED)
        self.owner.moved(Event.FAILED)
        self.owner.roll_forward()
        self._load_states()

    def _input_gone(self, error: InputChanged | InputMissing) -> None:
        """A file is not what was scanned: it is scanned anew, or passed, or the region halts; no attempt (I2, I5)."""
        source = next(op for op in self.blueprint.region.run_order if isinstance(op, Source))
        triggers: Sequence[Trigger] = error.facts["triggers"]
        epoch = self.owner.epoch
        if self.owner.state is State.DRAINING:
            self.owner.moved(Event.FAILED)
            self.owner.moved(Event.RESET_DONE)
        self.report("input", {"error": error.message})
        for trigger in triggers:
            if isinstance(error, InputChanged):
                self.outside.registry.mark(self.region, epoch, [trigger.id], TriggerStatus.SUPERSEDED, error.message)
            elif source.scan.on_missing == "skip":
                self.owner.refuse(trigger.uri, full_identity(trigger), error.message)
                self.outside.registry.mark(self.region, epoch, [trigger.id], TriggerStatus.MISSING, error.message)
            else:
                raise self._halt(error.message, error=self._described(error), trigger=trigger.uri)

    def _halt(self, reason: str, *, error: Mapping[str, Any], trigger: str | None) -> Halted:
        halted = self.owner.halt(reason, trigger=trigger, operator=error.get("operator"), error=error or None)
        self.outside.registry.set_state(self.region, self.owner.epoch, self.owner.state.value)
        return halted

    def _obey_halt_request(self) -> None:
        reason = self.outside.registry.region_info(self.region).halt_requested
        if reason is not None:
            self.outside.registry.clear_halt_request(self.region, self.owner.epoch)
            raise self.owner.halt(reason, trigger=None, operator=None, error=None)

    def _next_uri(self) -> str | None:
        pending = self.outside.registry.pending(self.region, 1)
        return pending[0].uri if pending else None

    # --- reporting --------------------------------------------------------------------------------------------------

    def _note(self, step: str, numbers: Mapping[str, Any]) -> None:
        if step == "state" and self.owner.epoch:
            try:
                with suppress(StoreUnavailable):
                    self.outside.registry.set_state(self.region, self.owner.epoch, numbers["state"])
            except Fenced:
                return  # the next commit finds out; a display is not worth a failure
        self.report(step, numbers)

    def _reported(self, staged: StagedGroup, checkpoint_seconds: float, publish_seconds: float) -> GroupReport:
        report = GroupReport.of(
            staged,
            region=self.region,
            versions=self.owner.versions,
            checkpoint_seconds=checkpoint_seconds,
            publish_seconds=publish_seconds,
        )
        self.report("group", {"first_id": report.first_id, "last_id": report.last_id, "rows_in": report.rows_in,
                              "seconds": round(staged.process_seconds + staged.drain_seconds, 3)})  # fmt: skip
        return report

    @staticmethod
    def _described(error: BaseException) -> dict[str, Any]:
        if isinstance(error, DrainmarkError):
            return {**error.to_json(), "trigger": error.facts.get("trigger")}
        return {"id": "ERROR", "message": f"{type(error).__name__}: {error}", "operator": None, "location": None,
                "remedy": None, "trigger": None}  # fmt: skip


def classified(error: Exception) -> DrainmarkError:
    """Return the error as one of the tree: what user code, the store or the registry raised is told apart here."""
    if (lost := lost_engine(error)) is not None:
        return lost
    if isinstance(error, DrainmarkError):
        return error
    name = f"{type(error).__module__}.{type(error).__name__}"
    if name.endswith("OperationalError"):
        wrapped: DrainmarkError = StoreUnavailable(f"the registry does not answer: {error}", remedy="try again")
    else:
        wrapped = no_space(error) or OperatorFailed(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


__all__ = ["GroupReport", "Limits", "RegionRun", "classified"]
