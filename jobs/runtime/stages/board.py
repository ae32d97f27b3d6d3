"""The board of a region of several stages, from a reset to the next: what its threads and its controller share, under
one lock.

`Exchange` knows the channels, how far each stage has come, and what it made that no row has committed yet. Here are the
groups in hand, what failed, and what may be committed when. Whoever works on after it is closed finds its ends cut
off, and nothing of it counts.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from drainmark.jobs.errors import Interrupted
from drainmark.jobs.graph.annotations import Alignment
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.stage_flow import Channels
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.stages.channels.channel_group import Exchange
from drainmark.jobs.runtime.stages.channels.rows import ChannelRows, Spool
from drainmark.jobs.runtime.stages.channels.stage_endpoints import StageEnds, Taken, connect
from drainmark.jobs.runtime.stages.channels.waiting import Wait
from drainmark.jobs.runtime.stages.finished_parts import FinishedParts
from drainmark.jobs.runtime.stages.group_parts import Moment, joinable, replaces

GroupOf = Callable[[int, int], Group]
"""Returns the group of ids that are committed, from the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A group for one stage; `taken` is what channels bring of it, None for a stage of starts."""

    group: Group
    taken: Taken | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a stage could not do, however often it tried."""

    stage: str
    group: Group | None
    error: BaseException


class Board:
    """See the module.

    Args:
        region: the whole region.
        epoch: the incarnation of its channels.
        spool: stages what is in them; of this board alone.
        history: of the region, all of whose groups are published: the channels are refilled from it.
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
        self.busy: dict[str, Group | None] = {}  # by stage that is at work, its group once that is known
        self._finished = FinishedParts({stage.name: stage.checkpoint_interval for stage in region.stages})
        self._files: dict[str, int] = {}  # what is staged of batches, with the last id of each
        self.is_closed = False
        self._entering = threading.Lock()

    # --- for the threads of the stages ------------------------------------------------------------------------------

    def next(self, stage: str) -> Task | None:
        """Wait for the next group of a stage, and for room in front of it (back-pressure); None once all is closed.

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
        return Task(group=group, taken=taken)

    def _given(self, stage: str, wait: Wait) -> Task:
        inbox = self._inboxes[stage]
        with self._changed:
            self.exchange.wait_for(lambda: bool(inbox), wait)
            group = self.busy[stage] = inbox.popleft()
            return Task(group=group)  # for room was looked before the group got its ids

    def _known(self, first: int, last: int) -> Group:
        with self._changed:
            found = next((group for group in self.groups if (group.first_id, group.last_id) == (first, last)), None)
        return found if found is not None else self._group_of(first, last)

    def done(self, stage: str, task: Task, staged: StagedGroup, leaving: Mapping[str, ChannelRows]) -> None:
        """Note that a stage has done a group: its part, its batches and its progress, all at once.

        Args:
            leaving: by stream.

        Raises:
            Interrupted, Fenced: the board is closed, and nothing of it counts.
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
        """Count that a stage begins a batch again by itself.

        Raises:
            Interrupted: the board is closed.
        """
        with self._changed:
            if self.is_closed:
                raise Interrupted("the group was abandoned", remedy="start it again: no attempt was counted")
            self.restarts[stage] += 1

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let an attempt take hold of the states of its stage; the board is not closed meanwhile.

        Raises:
            Interrupted: it is, and the states may be those of the next by now.
        """
        with self._entering:
            if self.is_closed:
                raise Interrupted("the group was abandoned", remedy="start it again: no attempt was counted")
            yield

    def failed(self, stage: str, group: Group | None, error: BaseException) -> None:
        """Note what the region has to be reset for; the first one counts."""
        with self._changed:
            self.failure = self.failure or Failure(stage=stage, group=group, error=error)
            self.busy.pop(stage, None)
            self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Wait so many seconds, or until the board is closed; say whether it is."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed, seconds)
            return self.is_closed

    # --- for the controller -----------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """May a further group begin: are the starts at rest, and is there room in front of them?"""
        exchange = self.exchange
        with self._changed:
            fed = [exchange.channels[plan.name] for stage in self._inboxes for plan in exchange.stages[stage].outputs]
            return self.is_draining and exchange.fits and all(channel.has_room() for channel in fed)

    @property
    def is_draining(self) -> bool:
        """Are the starts at rest, so that what is in hand is with later stages, or with none?"""
        with self._changed:
            return not any(inbox or stage in self.busy for stage, inbox in self._inboxes.items())

    @property
    def is_idle(self) -> bool:
        """Is everything done, and all of it committed?"""
        with self._changed:
            return self.has_caught_up and not self.groups and self._finished.is_empty

    @property
    def has_caught_up(self) -> bool:
        """Have all stages done all that was begun? Their ids do not tell: that of a skip is passed by those alone that
        had nothing in flight when it was committed."""
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
        """Wait until something happens, at most so many seconds."""
        with self._changed:
            if self.failure is None:
                self._changed.wait(seconds)

    def moment(self, alignment: Alignment, timeout: float | None) -> Moment | None:
        """Return what can be committed now, None where that is nothing; it is gone from here then.

        Aligned, a group can be committed that all stages have done; unaligned, one that the starts have, unless it
        `replaces` others. What other stages have finished of ids that are committed goes with it. While no group is in
        hand it goes alone: unaligned as soon as there is something, aligned when all stages have caught up.

        Args:
            timeout: an aligned drain that lasts longer is ended unaligned.
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
            if not groups and not snapshot.parts:  # whoever is due waits for a stage ahead of it that is not
                snapshot.release()
                return None
            return Moment(groups=groups, snapshot=snapshot, restarts=dict(self.restarts))

    def _may_catch_up(self, *, is_unaligned: bool) -> bool:
        """May stages commit what they have finished, there being no group to go with?"""
        finished = self._finished.stages
        if finished and self.has_caught_up:
            return True
        return is_unaligned and bool(finished & self._due_stages)

    @property
    def _due_stages(self) -> set[str]:
        """Return the stages whose own interval is over, so that what they have finished may enter a commit.

        All, where their intervals would keep more than channels may hold: a commit lets go of it.
        """
        return self._finished.due() if self.exchange.fits else {stage.name for stage in self.region.stages}

    def committed(self, moment: Moment, in_flight: Channels, through: int) -> list[str]:
        """Note that a moment is committed and published.

        Args:
            in_flight: what its row names.
            through: what all stages have done and committed.

        Returns:
            paths of staged batches that no stage, no row and no rewind needs any more.
        """
        with self._changed:
            now = time.monotonic()
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
        """Close the board: all ends are cut off, and who waits wakes up."""
        with self._entering, self._changed:
            self.is_closed = True
            self.exchange.close()
            self._changed.notify_all()


def _is_reached(exchange: Exchange, group: Group, *, is_unaligned: bool) -> bool:
    is_unaligned = is_unaligned and not replaces(member.trigger for member in group.members)
    return group.last_id <= (exchange.begun if is_unaligned else exchange.complete)
