"""The stage of a region without channels: one group is staged, while the checkpoint of the one before it is under way.

States are taken over in between, when both groups are at rest. What a blocking checkpoint does not write at once is
written in the background.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from drainmark.jobs import world
from drainmark.jobs.runtime.autonomous.output import PATIENCE_SECONDS
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.commit.background_checkpoint import BackgroundCheckpoint
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.group.group_work import GroupWork
from drainmark.jobs.runtime.group.stream_passing import Border
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.stages.stages import Stages
from drainmark.jobs.runtime.timeout import POLL_SECONDS, Bounded


@dataclass(slots=True, kw_only=True)
class SoleStage(Stages):
    """The one stage of a region; groups are staged, committed and published one after the other."""

    is_sequential: ClassVar[bool] = True

    states: RegionStates
    groups: deque[Group] = field(default_factory=deque)
    _work: GroupWork | None = None
    _staging: Bounded[StagedGroup] | None = None
    _ended: StagedGroup | None = None
    _outlets: Outlets = field(default_factory=Outlets)

    @property
    def at_work(self) -> Mapping[str, Group]:
        work = self._work
        return {"": work.group} if work is not None else {}

    @property
    def is_draining(self) -> bool:
        return self._work is not None and self._work.is_draining

    @property
    def has_ended(self) -> bool:
        return self._staging is not None and self._staging.is_over

    @property
    def is_idle(self) -> bool:
        return self._staging is None

    def give(self, members: Sequence[Assigned]) -> None:
        self.states.begin_group()
        group = Group(members=tuple(members), epoch=self.owner.epoch, attempt=world.token())
        work = self._work = self._work_on(group)
        self._staging = self._bounded(group, self.time.seconds, work.stage)
        self.groups.append(group)

    def _work_on(self, group: Group) -> GroupWork:
        return GroupWork.of(self.states, group, size=group.bytes_to_read, outlets=self._outlets, border=Border())

    def await_change(self, seconds: float, under_way: BackgroundCheckpoint | None) -> None:
        """Wait for the end of the checkpoint under way; if there is none, for that of the group at work."""
        if under_way is not None:
            while not under_way.has_ended(POLL_SECONDS):
                pass
        elif self._staging is not None:
            self._staging.has_ended(min(seconds, POLL_SECONDS))

    def due(self, *, is_final: bool) -> StagedGroup | None:
        staging = self._staging
        if staging is not None and not staging.has_ended():
            return None
        ended, self._ended = self._ended, None
        if ended is not None:
            self.states.checkpointed(ended)
        return staging.result() if staging is not None else None

    def checkpoint(self, staged: StagedGroup) -> BackgroundCheckpoint:
        begun = world.monotonic()
        life, left = self.states.ports.life, self.time.left_of(staged)
        frozen = self._bounded(staged.group, left, lambda: self._frozen(staged, life)).result()
        self._work = self._staging = None
        return BackgroundCheckpoint(
            owner=self.owner,
            engine=self.states.outside.engine,
            staged=frozen,
            finish=self._written,
            grace=self.grace,
            deadline=begun + left,
            late=self.time.too_late(staged.group),
            tag=staged.group.tag,
        )

    def committed(self, done: BackgroundCheckpoint) -> None:
        if self.is_blocking:
            self.states.ports.resume()
        self.groups.popleft()
        self._ended = done.staged

    def drop(self) -> None:
        staging, self._staging, self._work = self._staging, None, None
        self.groups.clear()
        if staging is not None and not staging.is_over:
            staging.cancel()
        if self._ended is not None:
            self._ended = None
            self.states.hosted.completed()

    def reset(self) -> None:
        self.states.reset(self.owner.history)

    def close(self) -> None:
        self.states.close()
        self._outlets.close(PATIENCE_SECONDS)

    def _bounded(self, group: Group, seconds: float, action: Callable[[], StagedGroup]) -> Bounded[StagedGroup]:
        return Bounded(
            action,
            seconds,
            self.grace,
            late=lambda _: self.time.too_late(group),
            cancel=lambda: self.states.outside.engine.cancel(group.tag),
        )

    def _frozen(self, staged: StagedGroup, life: int) -> StagedGroup:
        """Freeze the states; with `life`, an attempt that was abandoned cannot stop or open the ports after a reset."""
        if not self.states.ports.stop(self.time.left_of(staged), life=life):
            raise self.time.too_late(staged.group)
        with self.states.outside.engine.tagged(staged.group.tag):
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
        with self.states.outside.engine.tagged(staged.group.tag):
            return self.states.write(staged, staged.frozen)
