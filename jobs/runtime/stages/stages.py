"""What a pipeline needs of the stages of a region, which do its groups between two commits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from drainmark.jobs.graph.annotations import Checkpoints
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.commit.background_checkpoint import BackgroundCheckpoint
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import GroupTime, StagedGroup
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.timeout import Grace


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure of a stage at a group, after all restarts that it may make; the region must be reset."""

    group: Group | None
    error: BaseException


@dataclass(slots=True, kw_only=True)
class Stages(ABC):
    """All stages of a region: `SoleStage` is one without channels, `ConnectedStages` are several with channels.

    Attributes:
        is_sequential: a group begins only when the one before it is in a checkpoint.
        failure: it ended the work of all stages; a sole stage has none, since its `due` raises the error.
        has_ended: all work is done, so its checkpoint begins at once; connected stages do not tell.
        is_due: the time is over that the region lets pass between two commits.
    """

    is_sequential: ClassVar[bool]

    blueprint: Blueprint
    owner: RegionOwner
    grace: Grace

    @property
    def time(self) -> GroupTime:
        return GroupTime(self.blueprint.region)

    @property
    def is_blocking(self) -> bool:
        """Does the flow wait until a group is committed and published?"""
        return self.blueprint.region.parameters.checkpoints == Checkpoints.BLOCKING

    # --- what is in hand ---------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def groups(self) -> Sequence[Group]:
        """Return the groups that are not committed, in order."""

    @property
    @abstractmethod
    def at_work(self) -> Mapping[str, Group]:
        """Return the groups that are processed now, by name of the stage ("" if there is one); from any thread."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Is all work done, and in a checkpoint?"""

    @property
    def has_room(self) -> bool:
        """May a further group begin?"""
        return self.is_idle

    @property
    @abstractmethod
    def is_draining(self) -> bool:
        """Are the rows of the groups in hand computed, by the starts where there are several stages?"""

    @property
    def failure(self) -> Failure | None:
        return None

    @property
    def has_ended(self) -> bool:
        return False

    @property
    def is_due(self) -> bool:
        return True

    # --- the way of a group ------------------------------------------------------------------------------------------

    @abstractmethod
    def give(self, members: Sequence[Assigned]) -> None:
        """Begin to work on a group."""

    @abstractmethod
    def await_change(self, seconds: float, under_way: BackgroundCheckpoint | None) -> None:
        """Wait until a stage has something new, or the checkpoint under way may have ended; about so many seconds."""

    @abstractmethod
    def due(self, *, is_final: bool) -> StagedGroup | None:
        """Return all work that can be committed now; None if there is none. No checkpoint is under way.

        Args:
            is_final: no group begins any more, so the commit does not wait for an interval.

        Raises:
            DrainTimeout, Interrupted, DrainmarkError: the group of a sole stage failed; only orphan files are left.
        """

    @abstractmethod
    def checkpoint(self, staged: StagedGroup) -> BackgroundCheckpoint:
        """Return the checkpoint of work that is due, not begun yet.

        Raises:
            DrainTimeout, Interrupted, DrainmarkError: a blocking state could not be written in time, or at all.
        """

    @abstractmethod
    def committed(self, done: BackgroundCheckpoint) -> None:
        """Note that a checkpoint is committed and published."""

    # --- resets and the end ------------------------------------------------------------------------------------------

    @abstractmethod
    def drop(self) -> None:
        """Give up all work that is not in a checkpoint; it will never be committed. A `reset` must follow."""

    @abstractmethod
    def reset(self) -> None:
        """Load all states as of the last committed id; all committed groups must be published, and no work is in hand.

        Raises:
            ResetTimeout: see `RegionStates.reset`.
        """

    @abstractmethod
    def close(self) -> None:
        """End a run, with all work dropped: release the states, and wait for rows that still go to tables outside."""
