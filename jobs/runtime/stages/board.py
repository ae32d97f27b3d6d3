"""The board of a region of several stages, which its threads and its controller share from one reset to the next.

`Exchange` has the channels, the progress of each stage, and the parts that no row has committed yet. The board has the
groups in hand and the failure, and decides which work may be committed when. One lock covers both. A thread that still
works after the board is closed finds its ends cut off, and its work does not count.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import takewhile

from drainmark.jobs import world
from drainmark.jobs.errors import Interrupted
from drainmark.jobs.graph.annotations import Alignment
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.stage_flow import Channels
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.stages.channels.channel import Wait
from drainmark.jobs.runtime.stages.channels.channel_group import Exchange
from drainmark.jobs.runtime.stages.channels.rows import ChannelRows, Spool
from drainmark.jobs.runtime.stages.channels.stage_endpoints import StageEnds, Taken, connect
from drainmark.jobs.runtime.stages.group_parts import Moment, joinable, replaces
from drainmark.jobs.runtime.stages.stages import Failure

GroupOf = Callable[[int, int], Group]
"""Returns the group of committed ids, from the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTask:
    """A group for one stage; `taken` is the group's batches from channels, None for a stage of starts."""

    group: Group
    taken: Taken | None = None


class FinishedParts:
    """Finished work of stages that no row of the checkpoint table has yet; callers hold the board's condition.

    Args:
        intervals: by stage, the shortest time between two commits of its parts; None for no such time.
    """

    def __init__(self, intervals: Mapping[str, timedelta | None]) -> None:
        self._intervals = intervals
        self._counts: Counter[str] = Counter()
        self._noted = dict.fromkeys(intervals, world.monotonic())
        self._since: dict[int, float] = {}  # last id of a group -> when the starts had done the group

    @property
    def stages(self) -> set[str]:
        """Return the stages that have finished parts."""
        return {stage for stage, count in self._counts.items() if count > 0}

    @property
    def is_empty(self) -> bool:
        """Are all finished parts in a row of the checkpoint table?"""
        return not any(self._counts.values())

    def add(self, stage: str) -> None:
        self._counts[stage] += 1

    def begun(self, last_id: int) -> None:
        """Note that the starts have done a group."""
        self._since.setdefault(last_id, world.monotonic())

    def is_older(self, seconds: float) -> bool:
        """Have the starts done one of the groups more than so many seconds ago?"""
        return any(world.monotonic() - since > seconds for since in self._since.values())

    def due(self) -> set[str]:
        """Return the stages with an interval that is over, and those without an interval."""
        now = world.monotonic()
        return {
            name
            for name, interval in self._intervals.items()
            if interval is None or now - self._noted[name] >= interval.total_seconds()
        }

    def committed(self, stage: str, last_id: int, now: float) -> None:
        """Note that a row of the checkpoint table has a part."""
        self._counts[stage] -= 1
        self._since.pop(last_id, None)
        self._noted[stage] = now


class Board:
    """The facts that the stages and the controller share; see the module.

    Args:
        region: the whole region.
        epoch: the incarnation of its channels.
        spool: stages the batches in the channels; belongs to this board alone.
        history: of the region, with all groups published; the channels are refilled from it.
        group_of: see `GroupOf`.
    """

    def __init__(
        self, region: RegionPlan, *, epoch: int, spool: Spool, history: RegionHistory, group_of: GroupOf
    ) -> None:
        self.region = region
        self.spool = spool
        self.exchange = Exchange(region.stages, region.channels, region.parameters)
        through = history.flow.through
        self.exchange.open(
            epoch,
            spool,
            through={stage.name: through.get(stage.name, history.committed_id) for stage in region.stages},
            in_flight=history.flow.channels,
        )
        self.ends: dict[str, StageEnds] = {
            stage.name: connect(self.exchange, stage.name, epoch) for stage in region.stages
        }
        self.groups: deque[Group] = deque()
        self.failure: Failure | None = None
        self.committed_id = history.committed_id
        self.restarts: Counter[str] = Counter()
        self._changed = self.exchange.changed
        self._group_of = group_of
        self._inboxes: dict[str, deque[Group]] = {stage.name: deque() for stage in region.stages if not stage.inputs}
        self.busy: dict[str, Group | None] = {}  # by stage that is at work, its group once it is known
        self._finished = FinishedParts({stage.name: stage.checkpoint_interval for stage in region.stages})
        self._files: dict[str, int] = {}  # path of a staged file of a batch -> last id of the batch
        self.is_closed = False
        self._entering = threading.Lock()

    # --- for the threads of the stages ------------------------------------------------------------------------------

    def next(self, stage: str) -> StageTask | None:
        """Wait for a stage's next group, and for room in the channels that it writes; None if the board is closed.

        Raises:
            Fenced, OutOfOrder: see `StageEnds.take`.
        """
        wait = Wait(is_cancelled=lambda: self.is_closed)
        try:
            if stage in self._inboxes:
                return self._given(stage, wait)
            self.ends[stage].room(wait)
            taken = self.ends[stage].take(wait)
        except Interrupted:
            return None
        assert taken is not None  # noqa: S101 - the wait has no bound
        with self._changed:
            self.busy[stage] = None
        group = self.busy[stage] = self._known(taken.first_id, taken.last_id)
        return StageTask(group=group, taken=taken)

    def _given(self, stage: str, wait: Wait) -> StageTask:
        inbox = self._inboxes[stage]
        with self._changed:
            self.exchange.wait_for(lambda: bool(inbox), wait)
            group = self.busy[stage] = inbox.popleft()
            return StageTask(group=group)  # the controller checked for room before the group got its ids

    def _known(self, first: int, last: int) -> Group:
        with self._changed:
            found = next((group for group in self.groups if (group.first_id, group.last_id) == (first, last)), None)
        return found if found is not None else self._group_of(first, last)

    def done(self, stage: str, task: StageTask, staged: StagedGroup, leaving: Mapping[str, ChannelRows]) -> None:
        """Note that a stage has done a group: its part, its batches and its progress, all at once.

        Args:
            leaving: by stream, the rows that leave the stage.

        Raises:
            Interrupted, Fenced: the board is closed; the work does not count.
        """
        ids = (task.group.first_id, task.group.last_id)
        wait = Wait(is_cancelled=lambda: self.is_closed)
        own = ids if task.taken is None else None
        self.ends[stage].hand_over(staged, leaving, ids=own, taken=task.taken, wait=wait)
        with self._changed:
            self.busy.pop(stage, None)
            self._finished.add(stage)
            self._files.update((file.path, ids[1]) for rows in leaving.values() for file in rows.files or ())
            if ids[1] > self.committed_id and self.exchange.begun >= ids[1]:
                self._finished.begun(ids[1])
            self._changed.notify_all()

    def restarted(self, stage: str) -> None:
        """Count a restart of a batch that a stage makes by itself.

        Raises:
            Interrupted: the board is closed.
        """
        with self._changed:
            if self.is_closed:
                raise Interrupted("the group was abandoned", remedy="start it again: no attempt was counted")
            self.restarts[stage] += 1

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let an attempt take hold of the states of its stage; the board cannot be closed inside the block.

        Raises:
            Interrupted: the board is closed, and the states may belong to the next board by now.
        """
        with self._entering:
            if self.is_closed:
                raise Interrupted("the group was abandoned", remedy="start it again: no attempt was counted")
            yield

    def failed(self, stage: str, group: Group | None, error: BaseException) -> None:
        """Note a failure that requires a reset of the region; only the first failure counts."""
        with self._changed:
            self.failure = self.failure or Failure(group=group, error=error)
            self.busy.pop(stage, None)
            self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Wait so many seconds, or until the board is closed; return whether it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed, seconds)
            return self.is_closed

    # --- for the controller -----------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """May a further group begin: are the starts idle, and is there room in the channels that they write?"""
        exchange = self.exchange
        with self._changed:
            fed = [exchange.channels[plan.name] for stage in self._inboxes for plan in exchange.stages[stage].outputs]
            return self.is_draining and exchange.fits and all(channel.has_room() for channel in fed)

    @property
    def is_draining(self) -> bool:
        """Are the starts idle, so that only later stages, or none, have groups in hand?"""
        with self._changed:
            return not any(inbox or stage in self.busy for stage, inbox in self._inboxes.items())

    @property
    def is_idle(self) -> bool:
        """Is all work done and committed?"""
        with self._changed:
            return self.has_caught_up and not self.groups and self._finished.is_empty

    @property
    def has_caught_up(self) -> bool:
        """Have all stages done all work that was begun? Their ids do not show it: only the stages that had nothing in
        flight when a skip was committed go past the id of the skip."""
        with self._changed:
            is_at_rest = not (self.busy or any(self._inboxes.values()))
            return is_at_rest and all(channel.is_empty for channel in self.exchange.channels.values())

    def give(self, group: Group) -> None:
        """Give a group to the stages of the starts."""
        with self._changed:
            self.groups.append(group)
            for inbox in self._inboxes.values():
                inbox.append(group)
            self._changed.notify_all()

    def await_change(self, seconds: float) -> None:
        """Wait until something changes, at most so many seconds; if a stage has failed, do not wait."""
        with self._changed:
            if self.failure is None:
                self._changed.wait(seconds)

    def moment(self, alignment: Alignment, timeout: float | None) -> Moment | None:
        """Return the moment that can be committed now, and give away its parts; None if nothing can be committed.

        Aligned, a group can be committed when all stages have done it; unaligned, when the starts have done it, unless
        it `replaces` others. Parts that other stages have finished for committed ids are committed with it. If no group
        is in hand, these are committed alone: when all stages have caught up, or, unaligned, when one of them is due.

        Args:
            timeout: seconds; an aligned drain that lasts longer ends unaligned.
        """
        with self._changed:
            late = timeout is not None and self._finished.is_older(timeout)
            is_unaligned = alignment == Alignment.UNALIGNED or late
            groups = tuple(
                joinable(takewhile(partial(_is_reached, self.exchange, is_unaligned=is_unaligned), self.groups))
            )
            if not groups and (self.groups or not self._may_catch_up(is_unaligned=is_unaligned)):
                return None
            limit = groups[-1].last_id if groups else self.committed_id
            is_whole = not is_unaligned or self.exchange.complete >= limit or self.has_caught_up
            snapshot = self.exchange.snapshot(limit, due=None if is_whole else self._due_stages)
            if not groups and not snapshot.parts:  # the stages that are due wait for an earlier one that is not
                snapshot.release()
                return None
            return Moment(groups=groups, snapshot=snapshot, restarts=dict(self.restarts))

    def _may_catch_up(self, *, is_unaligned: bool) -> bool:
        """May stages commit their finished parts although no group is committed with them?"""
        finished = self._finished.stages
        if finished and self.has_caught_up:
            return True
        return is_unaligned and bool(finished & self._due_stages)

    @property
    def _due_stages(self) -> set[str]:
        """Return the stages with an interval that is over, so that their finished parts may enter a commit.

        Return all stages if their intervals keep more bytes than the channels may hold: a commit releases the bytes.
        """
        return self._finished.due() if self.exchange.fits else {stage.name for stage in self.region.stages}

    def committed(self, moment: Moment, in_flight: Channels, through: int) -> list[str]:
        """Note that a moment is committed and published.

        Args:
            in_flight: the batches in flight that its row names.
            through: the id up to which (inclusive) all stages have done and committed everything.

        Returns:
            paths of staged batches that no stage, no row and no rewind needs any more.
        """
        with self._changed:
            now = world.monotonic()
            for batch in (batch for batches in in_flight.values() for batch in batches):
                self._files.update((file.path, batch.last_id) for file in batch.files)
            for group in moment.groups:
                self.groups.remove(group)
                self.committed_id = group.last_id
            for part in moment.snapshot.parts:
                self._finished.committed(part.stage, part.last_id, now)
            self.restarts.subtract(moment.restarts)
            dead = [path for path, last_id in self._files.items() if last_id <= through]
            for path in dead:
                del self._files[path]
            self._changed.notify_all()
            return dead

    def close(self) -> None:
        """Close the board: cut off all ends, and wake up all waiting threads."""
        with self._entering, self._changed:
            self.is_closed = True
            self.exchange.close()
            self._changed.notify_all()


def _is_reached(exchange: Exchange, group: Group, *, is_unaligned: bool) -> bool:
    is_unaligned = is_unaligned and not replaces(group.triggers)
    return group.last_id <= (exchange.begun if is_unaligned else exchange.complete)
