"""The checkpoint of a drained group (remaining writes, commit, publishing) in a thread of its own.

The flow may resume meanwhile (CHECKPOINT_PENDING), but it commits nothing before this checkpoint has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import DrainTimeout
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.timeout import Bounded, Grace

if TYPE_CHECKING:
    from drainmark.resources.spark.session import Engine


class _Abandoned(Exception):
    """No caller waits for the group any more, so it must not be committed."""


@dataclass(slots=True, kw_only=True)
class BackgroundCheckpoint:
    """The work that makes one drained group a consistent state; used once.

    Attributes:
        staged: the group with its frozen states; once it is established, also with all files that were written.
        finish: does the remaining writes, and returns the group with the new files.
        deadline: by the monotonic clock; after it, `wait` abandons the group unless its commit has begun.
        late: raised by `wait` if it abandons the group at the deadline.
        tag: marks its Spark jobs.
        commit_seconds, publish_seconds: set once it is established.
        pending_seconds: from the start of the thread until it is established.
    """

    owner: RegionOwner
    engine: Engine
    staged: StagedGroup
    finish: Callable[[StagedGroup], StagedGroup]
    grace: Grace
    deadline: float
    late: DrainTimeout
    tag: str
    commit_seconds: float = 0.0
    publish_seconds: float = 0.0
    pending_seconds: float = 0.0
    _end: Bounded[None] = field(init=False)
    _gate: threading.Lock = field(default_factory=threading.Lock)
    _is_committing: bool = False
    _is_abandoned: bool = False

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        return self.staged.group.triggers

    def begin(self) -> None:
        """Start in the background."""
        self._end = Bounded(
            self._establish,
            self.deadline - world.monotonic(),
            self.grace,
            late=lambda _: self.late,
            cancel=lambda: self.engine.cancel(self.tag),
            may_abandon=self._abandon,
            name="checkpoint",
        )

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Wait at most so many seconds; say whether the checkpoint has ended, or is abandoned: `wait` tells which."""
        return self._end.has_ended(seconds)

    def wait(self) -> None:
        """Wait until the group is established.

        Raises:
            DrainTimeout, Interrupted: the group was abandoned; it is not committed and never will be.
            Exception: the error of the checkpoint; the group may be committed all the same.
        """
        self._end.result()

    def _abandon(self) -> bool:
        """Prevent the commit of the group; return False if the commit has begun, so that the caller waits for it."""
        with self._gate:
            self._is_abandoned = not self._is_committing
        return self._is_abandoned

    def _establish(self) -> None:
        begun = world.monotonic()
        world.pass_point(FailPoint.CHECKPOINT_PENDING)
        self.staged = self.finish(self.staged)
        world.pass_point(FailPoint.CHECKPOINT_PENDING_WRITTEN)
        with self._gate:
            if self._is_abandoned:
                raise _Abandoned
            self._is_committing = True
        started = world.monotonic()
        row = self.owner.groups.commit(self.staged)
        committed = world.monotonic()
        self.owner.groups.publish(row)
        ended = world.monotonic()
        self.commit_seconds, self.publish_seconds = committed - started, ended - committed
        self.pending_seconds = ended - begun
