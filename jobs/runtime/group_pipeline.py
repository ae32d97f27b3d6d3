"""The two groups that a run has in hand: one is processed, while the checkpoint of the one before it is under way.

The depth is one: a group gets its ids and is staged while the last one is written, committed and published. Its own
checkpoint begins when that has ended. States are taken over in between, when both groups are at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from drainmark.jobs import world
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.graph.annotations import Checkpoints
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.protocol.transitions import Event, State
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.autonomous.output import PATIENCE_SECONDS
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.commit.background_checkpoint import BackgroundCheckpoint
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import GroupTime, StagedGroup
from drainmark.jobs.runtime.group.backlog import IdAssignment
from drainmark.jobs.runtime.group.group_work import GroupWork
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.runtime.timeout import Bounded, Grace


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """The pipeline of a region with one stage: groups are staged, committed and published one after the other.

    Attributes:
        small_bytes: groups up to this size (inclusive) are collected to this process by Arrow.
        under_way: the checkpoint under way; None if there is none.
    """

    blueprint: Blueprint
    outside: Outside
    owner: RegionOwner
    states: RegionStates
    grace: Grace
    small_bytes: int
    under_way: BackgroundCheckpoint | None = None
    _staging: Bounded[StagedGroup] | None = None
    _work: GroupWork | None = None
    _ended: StagedGroup | None = None
    _outlets: Outlets = field(default_factory=Outlets)
    _ids: IdAssignment = field(init=False)
    _time: GroupTime = field(init=False)

    def __post_init__(self) -> None:
        self._ids, self._time = IdAssignment(self.owner), GroupTime(self.blueprint.region)

    @property
    def is_blocking(self) -> bool:
        """Say whether the flow waits until a group is committed and published."""
        return self.blueprint.region.parameters.checkpoints == Checkpoints.BLOCKING

    @property
    def is_held_up(self) -> bool:
        """Say whether no group may begin now, because a checkpoint blocks the flow."""
        return self.is_blocking and self.under_way is not None

    @property
    def in_hand(self) -> tuple[Trigger, ...]:
        """Return the triggers of the checkpoint under way: they are pending until it has ended."""
        return self.under_way.triggers if self.under_way else ()

    @property
    def at_work(self) -> Group | None:
        """Return the group that is read and computed now; None if there is none."""
        work = self._work
        return work.group if work is not None else None

    def stage(self, pending: Sequence[Trigger]) -> None:
        """Assign ids to triggers and begin to stage them as a group; `staged` waits for it."""
        world.pass_point(FailPoint.ASSIGN_BEFORE)
        self.states.begin_group()
        if self.under_way is None:
            self.owner.moved(Event.TRIGGERED)
        group = Group(members=self._ids.assign(pending), epoch=self.owner.epoch, attempt=world.token())
        world.pass_point(FailPoint.ASSIGN_AFTER)
        work = self._work = GroupWork(
            blueprint=self.blueprint,
            outside=self.outside,
            group=group,
            states=self.states.handlers,
            hosts=self.states.hosted.attempts(),
            size=group.bytes_to_read,
            small_bytes=self.small_bytes,
            tag=_tag(group),
            ports=self.states.ports,
            outlets=self._outlets,
        )
        self._staging = self._bounded(group, self._time.seconds, work.stage)

    def staged(self) -> StagedGroup | None:
        """Wait for the group that is being staged, and return it; None if there is none. The last checkpoint has ended.

        Raises:
            DrainTimeout, Interrupted, DrainmarkError: it failed; only orphan files are left.
        """
        staging, self._staging = self._staging, None
        try:
            return staging.result(self._look) if staging is not None else None
        finally:
            self._look(told=False)
            self._work = None
            ended, self._ended = self._ended, None
            if ended is not None:
                self.states.checkpointed(ended)

    def _look(self, *, told: bool = True) -> None:
        """Note once that the group drains; `told=False` does not report it, for a drain that is over already."""
        if self._work is not None and self._work.is_draining and self.owner.state is State.PROCESSING:
            self.owner.moved(Event.DRAIN_BEGUN, told=told)

    def begin(self, staged: StagedGroup) -> None:
        """Freeze the states of a staged group and begin its checkpoint; the checkpoint before it has ended.

        Raises:
            DrainTimeout, Interrupted, DrainmarkError: a blocking state could not be written in time, or at all.
        """
        begun = world.monotonic()
        life = self.states.ports.life
        freezing = self._bounded(staged.group, self._time.left_of(staged), lambda: self._frozen(staged, life))
        frozen = freezing.result()
        if not self.is_blocking:
            self.owner.moved(Event.DRAINED_BLOCKING)
        self.under_way = BackgroundCheckpoint(
            owner=self.owner,
            engine=self.outside.engine,
            staged=frozen,
            finish=self._written,
            grace=self.grace,
            deadline=begun + self._time.left_of(staged),
            late=self._time.too_late(staged.group),
            tag=_tag(staged.group),
        )
        self.under_way.begin()

    def end(self) -> BackgroundCheckpoint:
        """Wait for the checkpoint under way, and clear `under_way`; if it fails, drop the group that is being staged.

        Raises:
            DrainTimeout, Interrupted: it was abandoned; it is not committed and never will be.
            Exception: the error of the checkpoint; it may be committed all the same.
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
        if self.is_blocking:
            self.states.ports.resume()
        self.under_way, self._ended = None, done.staged
        self.owner.moved(Event.CHECKPOINTED, told=self._staging is None)
        if self._staging is not None:
            self.owner.moved(Event.TRIGGERED, told=not self._staging.is_over)
        return done

    def reset(self) -> None:
        """Bring the states back to the last committed id; all committed groups must be published."""
        self._ended = None
        self.states.reset(self.owner.history)

    def leave(self) -> None:
        """Drop the group being staged; wait for a checkpoint under way, ignoring errors: the table has the outcome."""
        self._drop()
        done, self.under_way = self.under_way, None
        if done is not None:
            with suppress(Exception):
                done.wait()

    def close(self) -> None:
        """End a run: see `leave`; then release the states, and wait for rows that still go to tables outside."""
        self.leave()
        self.states.close()
        self._outlets.close(PATIENCE_SECONDS)

    def _drop(self) -> None:
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.cancel()

    def _bounded(self, group: Group, seconds: float, action: Callable[[], StagedGroup]) -> Bounded[StagedGroup]:
        tag = _tag(group)
        return Bounded(
            action,
            seconds,
            self.grace,
            late=lambda _: self._time.too_late(group),
            cancel=lambda: self.outside.engine.cancel(tag),
        )

    def _frozen(self, staged: StagedGroup, life: int) -> StagedGroup:
        """Freeze the states; with `life`, an attempt that was abandoned cannot stop or open the ports after a reset."""
        if not self.states.ports.stop(self._time.left_of(staged), life=life):
            raise self._time.too_late(staged.group)
        with self.outside.engine.tagged(_tag(staged.group)):
            frozen = self.states.freeze(staged)
            if self.is_blocking:
                return frozen  # autonomous ports wait for the end of the checkpoint, like the flow
            written = self.states.write(frozen, self.states.blocking())
        self.states.ports.resume(life=life)
        return written

    def _written(self, staged: StagedGroup) -> StagedGroup:
        """Write the frozen states that are not written yet; runs in the background."""
        if not staged.frozen:
            return staged
        with self.outside.engine.tagged(_tag(staged.group)):
            return self.states.write(staged, staged.frozen)


def _tag(group: Group) -> str:
    """Return the tag of the Spark jobs of an attempt."""
    return f"drainmark-{group.attempt}"
