"""The pipeline of a run: it gives groups to the stages, and commits what they have done.

A group gets its ids and is worked on while an earlier one is written, committed and published.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from drainmark.jobs import world
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.protocol.transitions import Event, State
from drainmark.jobs.runtime.commit.background_checkpoint import BackgroundCheckpoint
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.group.backlog import IdAssignment
from drainmark.jobs.runtime.stages.group_parts import replaces
from drainmark.jobs.runtime.stages.stages import Stages


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """The pipeline through all stages: it begins groups and commits; the stages work in between.

    Attributes:
        under_way: the checkpoint under way; None between two checkpoints.
        must_reset: work was dropped, or nothing is loaded yet; no group may begin before a reset.
    """

    owner: RegionOwner
    stages: Stages
    ids: IdAssignment
    under_way: BackgroundCheckpoint | None = None
    must_reset: bool = True

    # --- what is in hand ---------------------------------------------------------------------------------------------

    @property
    def in_hand(self) -> tuple[Trigger, ...]:
        """Return the triggers of all groups that are not committed, in order."""
        return tuple(trigger for group in self.stages.groups for trigger in group.triggers)

    @property
    def is_held_up(self) -> bool:
        """May no group begin now, because a checkpoint blocks the flow? It blocks the flow from the time when it is due
        and has groups, until it is published. Groups that began before belong to it, so a region with an interval still
        commits once per interval."""
        stages = self.stages
        return stages.is_blocking and bool(stages.groups) and (self.under_way is not None or stages.is_due)

    @property
    def is_idle(self) -> bool:
        return self.under_way is None and self.stages.is_idle

    @property
    def has_ended(self) -> bool:
        """Has the checkpoint under way ended, or was it abandoned?"""
        return self.under_way is not None and self.under_way.has_ended()

    @property
    def is_at_rest(self) -> bool:
        """May tables be maintained now? Stages with channels only stage files meanwhile."""
        return self.under_way is None and (not self.stages.is_sequential or self.stages.is_idle)

    @property
    def may_begin(self) -> bool:
        """May a group begin, for all that is known before its triggers are?"""
        if self.has_ended or self.stages.failure is not None:
            return False
        return self.stages.has_room or not self.stages.is_sequential

    def must_wait(self, pending: Sequence[Trigger]) -> bool:
        """Must all groups in hand be committed before a group begins, since it replaces an earlier one?"""
        return not self.stages.is_sequential and replaces(pending) and not self.is_idle

    def follow(self, *, told: bool = True) -> None:
        """Bring the controller's state in line with the stages: PROCESSING while starts work, else DRAINING."""
        stages, owner = self.stages, self.owner
        if stages.is_idle:
            return
        told = told and not stages.has_ended
        if owner.state is State.STARTED:
            owner.moved(Event.TRIGGERED, told=told and not stages.is_draining)
        if owner.state is State.PROCESSING and stages.is_draining:
            owner.moved(Event.DRAIN_BEGUN, told=told)

    # --- the way of a group ------------------------------------------------------------------------------------------

    def give(self, pending: Sequence[Trigger]) -> None:
        """Assign ids to triggers, and give them to the stages as a group."""
        world.pass_point(FailPoint.ASSIGN_BEFORE)
        self.follow(told=False)
        if self.owner.state in (State.STARTED, State.DRAINING):
            self.owner.moved(Event.TRIGGERED)
        members = self.ids.assign(pending)
        world.pass_point(FailPoint.ASSIGN_AFTER)
        numbers = {"first_id": members[0].sequence_id, "last_id": members[-1].sequence_id}
        self.owner.report("begin", numbers)
        self.stages.give(members)

    def due(self, *, is_final: bool) -> StagedGroup | None:
        """See `Stages.due`; None if a checkpoint is under way. If it fails, drop all groups in hand."""
        if self.under_way is not None:
            return None
        try:
            staged = self.stages.due(is_final=is_final)
        except Exception:
            self.follow(told=False)
            self.stages.drop()
            self.must_reset |= not self.stages.is_sequential  # a sole stage takes nothing over before its checkpoint
            raise
        is_progress = staged is not None and not staged.group.members  # stages only catch up with committed groups
        return replace(staged, progress_id=self.ids.take()) if staged is not None and is_progress else staged

    def commit(self, staged: StagedGroup) -> None:
        """Begin to commit work that is due; if that fails, drop all groups in hand.

        Raises:
            DrainTimeout, Interrupted, DrainmarkError: see `Stages.checkpoint`.
        """
        self.follow(told=False)
        if self.owner.state is State.PROCESSING:  # parts of later stages are committed while the starts work
            self.owner.moved(Event.DRAIN_BEGUN, told=False)
        try:
            self.under_way = self.stages.checkpoint(staged)
        except Exception:
            self._drop()
            raise
        if not self.is_held_up:
            self.owner.moved(Event.DRAINED_BLOCKING)
        self.under_way.begin()

    def end(self) -> BackgroundCheckpoint:
        """Wait for the end of the checkpoint under way, and clear `under_way`; if it fails, drop all groups in hand.

        Raises:
            DrainTimeout, Interrupted: it was abandoned; it is not committed and never will be.
            Exception: it failed with this error; it may be committed nevertheless.
        """
        done = self.under_way
        if done is None:
            raise RuntimeError("no checkpoint is under way")
        try:
            done.wait()
        except Exception:
            self.under_way = None
            self._drop()
            raise
        self.under_way = None
        self.stages.committed(done)
        self.owner.moved(Event.CHECKPOINTED, told=self.stages.is_idle)
        self.follow()
        return done

    # --- resets and the end ------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Bring the states, and what is in flight, back to the last committed id."""
        self._drop()
        self.stages.reset()
        self.must_reset = False

    def leave(self) -> None:
        """Drop all work, and wait for a checkpoint under way; its outcome is in the checkpoint table.

        Stages without any work left are not stopped: more groups may come.
        """
        if not self.is_idle:
            self._end()

    def close(self) -> None:
        """End a run: drop all work, and release everything."""
        self._end()
        self.stages.close()

    def _drop(self) -> None:
        self.must_reset = True
        self.stages.drop()

    def _end(self) -> None:
        self._drop()
        done, self.under_way = self.under_way, None
        if done is not None:
            with suppress(Exception):
                done.wait()
