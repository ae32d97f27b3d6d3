"""The groups of a region of several stages: begun at the starts, worked at by every stage, committed by one controller.

The states of a stage move on when it has done a group, before that is committed: a reset of the region loads all of
them from the committed history. So many groups are in hand as the channels' bounds allow.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from drainmark.jobs.errors import DrainTimeout, StoreUnavailable
from drainmark.jobs.failpoints import FailPoint, reach
from drainmark.jobs.graph.annotations import Alignment
from drainmark.jobs.protocol.in_flight import channels_folder, channels_to_json, part_attempt
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.protocol.transitions import Event, State
from drainmark.jobs.runtime.autonomous.output import PATIENCE_SECONDS
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.checkpoint_pipeline import Pipeline
from drainmark.jobs.runtime.commit.background_checkpoint import Establishing
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.stages.board import Failure, Life
from drainmark.jobs.runtime.stages.channels.rows import Spool
from drainmark.jobs.runtime.stages.committed_group import group_of
from drainmark.jobs.runtime.stages.group_parts import Moment, joined, replaces
from drainmark.jobs.runtime.stages.states import StagedStates
from drainmark.jobs.runtime.stages.worker import StageWorker
from drainmark.jobs.runtime.timeout import POLL_SECONDS

Note = Callable[[str, dict[str, Any]], None]


@dataclass(slots=True, kw_only=True)
class StagedEstablishing(Establishing):
    """Commits a moment of the region; what is in flight is written first, where nobody has written it (F27)."""

    moment: Moment
    is_progress: bool = False

    def _write(self) -> None:
        try:
            with self.states.outside.engine.tagged(self.tag):
                found = self.moment.snapshot.in_flight()
            files = tuple(file for batches in found.values() for batch in batches for file in batch.files)
            self.staged = replace(self.staged, channels=channels_to_json(found), in_flight=files)
        finally:
            self.moment.snapshot.release()


@dataclass(slots=True, kw_only=True)
class StagedPipeline(Pipeline):
    """As `Pipeline`, of several stages.

    Attributes:
        note: called with a step and its numbers.
        life: from the last reset on; None before the first, and when the run is over.
        dropped_intervals: intervals of the controller that ended while a commit was under way, and that no row tells of
            yet (K7).
    """

    states: StagedStates
    note: Note
    life: Life | None = None
    dropped_intervals: int = 0
    _workers: list[StageWorker] = field(default_factory=list)
    _outlets_of: dict[str, Outlets] = field(default_factory=dict)
    _committed_at: float = field(default_factory=time.monotonic)
    _begun_at: float = 0.0

    # --- for the run -------------------------------------------------------------------------------------------------

    @property
    def in_hand(self) -> tuple[Trigger, ...]:
        """Return the triggers of all groups that are not committed, in order."""
        groups = tuple(self.life.groups) if self.life is not None else ()
        return tuple(member.trigger for group in groups for member in group.members)

    @property
    def is_held_up(self) -> bool:
        """As of `Pipeline`: from when a checkpoint is due, and there is something for it, until it is established. What
        is begun before belongs to it, so that a region with an interval still commits once in that time (K5, K8)."""
        return self.is_blocking and bool(self.in_hand) and (self.under_way is not None or self._is_due)

    @property
    def has_room(self) -> bool:
        return self.life is not None and self.life.failure is None and self.life.has_room

    def must_rest(self, pending: Sequence[Trigger]) -> bool:
        """Is all that was begun to be done and committed before these triggers begin?"""
        return replaces(pending) and not self.is_idle

    @property
    def is_idle(self) -> bool:
        return self.under_way is None and (self.life is None or (self.life.failure is None and self.life.is_idle))

    @property
    def has_ended(self) -> bool:
        """Has the commit under way come to its end, or to the end of its time?"""
        return isinstance(self.under_way, StagedEstablishing) and (self.under_way.is_over or self.grace.is_over())

    def await_change(self, seconds: float) -> None:
        """Wait until a stage has something new, or the commit under way may have ended; at most so many seconds."""
        self._alive().await_change(min(seconds, POLL_SECONDS) if self.under_way is not None else seconds)

    @property
    def failure(self) -> Failure | None:
        return self.life.failure if self.life is not None else None

    def give(self, pending: Sequence[Trigger]) -> None:
        """Assign ids to triggers, and give them to the stages of the starts as a group."""
        life = self._alive()
        reach(FailPoint.ASSIGN_BEFORE)
        self.follow(told=False)
        if self.owner.state in (State.STARTED, State.DRAINING):
            self.owner.moved(Event.TRIGGERED)
        first = self.outside.registry.take_ids(self.owner.region, self.owner.epoch, len(pending))
        reminded = self._read_before.remind(pending)
        members = tuple(Assigned(sequence_id=first + i, trigger=trigger) for i, trigger in enumerate(reminded))
        reach(FailPoint.ASSIGN_AFTER)
        life.give(Group(members=members, epoch=self.owner.epoch, attempt=part_attempt(uuid.uuid4().hex)))

    def commit_if_due(self, *, is_final: bool) -> bool:
        """Begin to commit what can be committed; returns whether there is anything.

        Args:
            is_final: nothing is begun any more, so that no interval is waited for.
        """
        life, parameters = self._alive(), self.blueprint.region.parameters
        if self.under_way is not None or not self._may_commit(life, is_final=is_final):
            return False
        timeout = parameters.alignment_timeout
        seconds = timeout.total_seconds() if timeout is not None else None
        moment = life.moment(Alignment(parameters.alignment), seconds)
        if moment is None:
            return False
        members = tuple(member for group in moment.groups for member in group.members)
        attempt = moment.groups[0].attempt if moment.groups else uuid.uuid4().hex
        group = Group(members=members, epoch=self.owner.epoch, attempt=attempt)
        staged = replace(joined(group, moment, self._every_id()), dropped_intervals=self.dropped_intervals)
        if not moment.groups:
            number = self.outside.registry.take_ids(self.owner.region, self.owner.epoch, 1)
            staged = replace(staged, progress_id=number)
        self.follow(told=False)
        if self.owner.state is State.PROCESSING:  # what stages finish later is committed beside the work of the starts
            self.owner.moved(Event.DRAIN_BEGUN, told=False)
        self.owner.moved(Event.DRAINED_BLOCKING)
        self.under_way = StagedEstablishing(
            owner=self.owner, states=self.states, staged=staged, grace=self.grace,
            deadline=time.monotonic() + self._group_timeout, late=self._late_commit(staged.row_id),
            tag=f"drainmark-{attempt}-commit", moment=moment, is_progress=not moment.groups,
        )  # fmt: skip
        self._begun_at = time.monotonic()
        self.under_way.begin()
        return True

    def end(self) -> StagedEstablishing:
        done = self.under_way
        if not isinstance(done, StagedEstablishing) or self.life is None:
            raise RuntimeError("no checkpoint is under way")
        try:
            done.wait()
        except Exception:
            self.under_way = None
            self._drop()
            raise
        self.under_way = None
        self.dropped_intervals -= done.staged.dropped_intervals
        self._tick(time.monotonic())
        self._forget(self.life, done)
        self.states.completed()
        if self.life.is_idle:  # no stage reads anything
            self.states.keep_copies(done.staged)
        self.owner.moved(Event.CHECKPOINTED, told=self.life.is_idle)
        self.follow()
        return done

    def follow(self, *, told: bool = True) -> None:
        """Bring the controller to where the stages are: at work, or draining, as their starts are."""
        if self.life is None or self.life.is_idle:
            return
        if self.owner.state is State.STARTED:
            self.owner.moved(Event.TRIGGERED, told=told and not self.life.is_draining)
        if self.owner.state is State.PROCESSING and self.life.is_draining:
            self.owner.moved(Event.DRAIN_BEGUN, told=told)

    def reset(self) -> None:
        """Bring all states back to the last committed id, and into the channels what was in flight then (F5, F28)."""
        self._drop()
        region, store = self.blueprint.region, self.outside.store
        self.states.reset(self.owner.history)
        folder = channels_folder(region.name)
        spool = Spool(store.staging(folder, self.owner.epoch, uuid.uuid4().hex), store.table(folder).files)
        self.life = Life(
            region, epoch=self.owner.epoch, spool=spool, history=self.owner.history,
            group_of=lambda first, last: group_of(self.owner.history, self.owner.epoch, first, last),
        )  # fmt: skip
        self._workers = [self._worker(self.life, name) for name in self.life.ends]
        for worker in self._workers:
            worker.begin()

    def leave(self) -> None:
        """See `Pipeline.leave`; a life in which nothing is left to do goes on, should more come."""
        if self.life is None or not self.is_idle:
            Pipeline.leave(self)

    def close(self) -> None:
        Pipeline.leave(self)
        self.states.close()
        for outlets in self._outlets_of.values():
            outlets.close(PATIENCE_SECONDS)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _worker(self, life: Life, name: str) -> StageWorker:
        parameters = self.blueprint.region.parameters
        return StageWorker(
            life=life,
            plan=self.blueprint.region.stage(name),
            states=self.states.of_stage[name],
            outside=self.states.of_stage[name].outside,
            outlets=self._outlets_of.setdefault(name, Outlets()),
            grace=self.grace,
            small_bytes=self.small_bytes,
            group_timeout=self._group_timeout,
            late=self._too_late,
            restarts_allowed=parameters.max_consecutive_reset_attempts,
            note=self._restarted,
        )

    def _restarted(self, stage: str, group: Group, error: BaseException) -> None:
        ids = {"first_id": group.first_id, "last_id": group.last_id}
        self.note("restart", {"stage": stage, **ids, "error": str(error)})

    def _forget(self, life: Life, done: StagedEstablishing) -> None:
        """Note that a moment is committed, and delete what was staged of batches that all stages are done with."""
        history = self.owner.history
        flow = history.flow
        through = min(flow.through.values()) if flow.channels else history.committed_id
        dead = life.committed(done.moment, flow.channels, through)
        with suppress(StoreUnavailable):  # `gc` finds them, too
            self.outside.store.discard_staged(channels_folder(self.blueprint.region.name), dead)

    def _alive(self) -> Life:
        if self.life is None:
            raise RuntimeError("the region is not claimed")
        return self.life

    def _drop(self) -> None:
        """End the life: what is not committed by now, or under way, never will be."""
        life, self.life = self.life, None
        if life is not None:
            life.close()
            for worker in self._workers:
                worker.cancel()
        self._workers = []

    def _every_id(self) -> dict[str, str]:
        return {
            table.name: name
            for name, part in self.states.of_stage.items()
            for table in part.blueprint.tables
            if table.options.get("every_id")
        }

    @property
    def _interval(self) -> float | None:
        given = self.blueprint.region.parameters.checkpoint_interval
        return given.total_seconds() if given is not None else None

    def _may_commit(self, life: Life, *, is_final: bool) -> bool:
        """May the region commit again (K5)? With an interval of 0 it does so once, at the end (K8)."""
        interval = self._interval
        if interval is None:
            return True
        if interval == 0:
            return is_final and life.has_caught_up
        return is_final or self._is_due

    @property
    def _is_due(self) -> bool:
        """Is the interval of the region over? One of 0 never is."""
        interval = self._interval
        return interval is None or 0 < interval <= time.monotonic() - self._committed_at

    def _tick(self, now: float) -> None:
        """Begin the next interval; those that ended while the commit was under way are dropped, and counted (K7)."""
        if self._interval:
            self.dropped_intervals += int((now - self._begun_at) / self._interval)
        self._committed_at = now

    def _late_commit(self, number: int) -> DrainTimeout:
        blame = self.blueprint.region.starts[0]
        return DrainTimeout(
            f"committing {number} took longer than {self._group_timeout:g} s", operator=blame.name,
            location=blame.location, remedy="look at the store; or raise group_timeout in @consistent",
        )  # fmt: skip
