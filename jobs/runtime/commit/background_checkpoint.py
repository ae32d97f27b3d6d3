"""The checkpoint of a drained group (remaining writes, commit, publishing) in a thread of its own.

The flow may resume meanwhile (CHECKPOINT_PENDING), but it commits nothing before this checkpoint has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field

from drainmark.jobs.errors import DrainTimeout, Interrupted
from drainmark.jobs.failpoints import FailPoint, reach
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.outside import Engine
from drainmark.jobs.runtime.timeout import POLL_SECONDS, Grace


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
    _done: Future[None] = field(default_factory=Future)
    _gate: threading.Lock = field(default_factory=threading.Lock)
    _is_committing: bool = False
    _is_abandoned: bool = False

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        return tuple(member.trigger for member in self.staged.group.members)

    @property
    def is_over(self) -> bool:
        """Say whether the checkpoint has ended or its deadline has passed."""
        return self._done.done() or time.monotonic() > self.deadline

    def begin(self) -> None:
        """Start in the background."""
        threading.Thread(target=self._work, daemon=True, name="checkpoint").start()

    def wait(self) -> None:
        """Wait until the group is established.

        Raises:
            DrainTimeout, Interrupted: the group was abandoned; it is not committed and never will be.
            Exception: the error of the checkpoint; the group may be committed all the same.
        """
        while True:
            try:
                return self._done.result(timeout=POLL_SECONDS)
            except FutureTimeout:
                if self._done.done():  # it ended just now, or raised a time-out of its own
                    return self._done.result()
            over = self.grace.is_over()
            if (over or time.monotonic() > self.deadline) and self._abandon():
                raise Interrupted("the group was abandoned", remedy="start it again") if over else self.late

    def _abandon(self) -> bool:
        """Prevent the commit of the group; return False if the commit has begun, so that the caller waits for it."""
        with self._gate:
            self._is_abandoned = not self._is_committing
        if self._is_abandoned:
            self.engine.cancel(self.tag)
        return self._is_abandoned

    def _work(self) -> None:
        try:
            self._establish()
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)

    def _establish(self) -> None:
        begun = time.monotonic()
        reach(FailPoint.CHECKPOINT_PENDING)
        self.staged = self.finish(self.staged)
        reach(FailPoint.CHECKPOINT_PENDING_WRITTEN)
        with self._gate:
            if self._is_abandoned:
                raise _Abandoned
            self._is_committing = True
        started = time.monotonic()
        row = self.owner.groups.commit(self.staged)
        committed = time.monotonic()
        self.owner.groups.publish(row)
        ended = time.monotonic()
        self.commit_seconds, self.publish_seconds = committed - started, ended - committed
        self.pending_seconds = ended - begun
