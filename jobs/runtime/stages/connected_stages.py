"""The stages of a region with channels, which work on groups at the same time.

The states of a stage move on when it has done a group, before that group is committed: a reset of the region loads all
states from the committed history. The channels' bounds limit the number of groups in hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from drainmark.jobs import world
from drainmark.jobs.errors import StoreUnavailable
from drainmark.jobs.graph.annotations import Alignment
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.triggers import Trigger, TriggerStatus
from drainmark.jobs.protocol.stage_flow import channels_folder, channels_to_json, part_attempt
from drainmark.jobs.runtime.commit.background_checkpoint import BackgroundCheckpoint
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.messages import scanned_identity
from drainmark.jobs.runtime.stages.board import Board
from drainmark.jobs.runtime.stages.channels.rows import Spool
from drainmark.jobs.runtime.stages.crew import Crew
from drainmark.jobs.runtime.stages.group_parts import Moment, joined
from drainmark.jobs.runtime.stages.stages import Failure, Stages
from drainmark.jobs.runtime.timeout import POLL_SECONDS

if TYPE_CHECKING:
    from drainmark.resources.spark.session import Engine


@dataclass(slots=True)
class CommitIntervals:
    """The intervals of one run.

    Attributes:
        given: None if every group may be committed at once, 0 if there is only one commit, at the end.
        dropped: number of intervals that ended during a commit, and that no row counts yet.
        committed_at, begun_at: by the monotonic clock, when the last commit ended and when it began.
    """

    given: timedelta | None
    dropped: int = 0
    committed_at: float = field(default_factory=world.monotonic)
    begun_at: float = 0.0

    @property
    def _seconds(self) -> float | None:
        return self.given.total_seconds() if self.given is not None else None

    @property
    def is_due(self) -> bool:
        """Is the interval over? An interval of 0 never is."""
        seconds = self._seconds
        return seconds is None or 0 < seconds <= world.monotonic() - self.committed_at

    def may_commit(self, *, is_final: bool, has_caught_up: Callable[[], bool]) -> bool:
        """May the region commit again? With an interval of 0 it does so once, at the end."""
        seconds = self._seconds
        if seconds is None:
            return True
        if seconds == 0:
            return is_final and has_caught_up()
        return is_final or self.is_due

    def begin(self) -> None:
        """Note that a commit begins."""
        self.begun_at = world.monotonic()

    def end(self, now: float, told: int) -> None:
        """Begin the next interval; those that ended while the commit was under way are dropped, and counted.

        Args:
            told: number of dropped intervals that the row of the commit counts.
        """
        self.dropped -= told
        if self._seconds:
            self.dropped += int((now - self.begun_at) / self._seconds)
        self.committed_at = now


@dataclass(slots=True, kw_only=True)
class ConnectedStages(Stages):
    """The stages, and the moments at which their work is committed.

    Attributes:
        crew: the workers of the stages, with their states.
        board: exists since the last reset; None before the first reset, and after work was dropped.
        intervals: between commits.
    """

    is_sequential: ClassVar[bool] = False

    crew: Crew
    intervals: CommitIntervals
    board: Board | None = None
    _moment: Moment | None = None

    @property
    def groups(self) -> Sequence[Group]:
        return tuple(self.board.groups) if self.board is not None else ()

    @property
    def at_work(self) -> Mapping[str, Group]:
        board = self.board
        busy = dict(board.busy) if board is not None else {}
        return {stage: group for stage, group in busy.items() if group is not None}

    @property
    def failure(self) -> Failure | None:
        return self.board.failure if self.board is not None else None

    @property
    def has_room(self) -> bool:
        return self.board is not None and self.board.failure is None and self.board.has_room

    @property
    def is_draining(self) -> bool:
        return self.board is not None and self.board.is_draining

    @property
    def is_idle(self) -> bool:
        return self.board is None or (self.board.failure is None and self.board.is_idle)

    @property
    def is_due(self) -> bool:
        return self.intervals.is_due

    def give(self, members: Sequence[Assigned]) -> None:
        attempt = part_attempt(world.token())
        self._open_board().give(Group(members=tuple(members), epoch=self.owner.epoch, attempt=attempt))

    def await_change(self, seconds: float, under_way: BackgroundCheckpoint | None) -> None:
        self._open_board().await_change(min(seconds, POLL_SECONDS) if under_way is not None else seconds)

    def due(self, *, is_final: bool) -> StagedGroup | None:
        """Return the parts of a moment as one group; without members if stages only catch up."""
        board, parameters = self._open_board(), self.blueprint.region.parameters
        if not self.intervals.may_commit(is_final=is_final, has_caught_up=lambda: board.has_caught_up):
            return None
        timeout = parameters.alignment_timeout
        moment = self._moment = board.moment(
            Alignment(parameters.alignment), timeout.total_seconds() if timeout is not None else None
        )
        if moment is None:
            return None
        members = tuple(member for group in moment.groups for member in group.members)
        attempt = moment.groups[0].attempt if moment.groups else world.token()
        group = Group(members=members, epoch=self.owner.epoch, attempt=attempt)
        return replace(joined(group, moment, self.crew.every_id()), dropped_intervals=self.intervals.dropped)

    def checkpoint(self, staged: StagedGroup) -> BackgroundCheckpoint:
        moment = self._moment
        assert moment is not None  # noqa: S101 - the staged group is of this moment
        engine, tag = self.owner.outside.engine, f"{staged.group.tag}-commit"
        self.intervals.begin()
        return BackgroundCheckpoint(
            owner=self.owner,
            engine=engine,
            staged=staged,
            finish=lambda staged: _written(moment, staged, engine, tag),
            grace=self.grace,
            deadline=world.monotonic() + self.time.seconds,
            late=self.time.commit_too_late(staged.row_id),
            tag=tag,
        )

    def committed(self, done: BackgroundCheckpoint) -> None:
        moment, self._moment = self._moment, None
        assert moment is not None  # noqa: S101 - the checkpoint is of this moment
        self.intervals.end(world.monotonic(), told=done.staged.dropped_intervals)
        _settle(self._open_board(), moment, self.owner)
        self.crew.hosted.completed()

    def drop(self) -> None:
        """Close the board: no work of its stages counts any more."""
        board, self.board = self.board, None
        if board is not None:
            board.close()
            self.crew.dismiss()

    def reset(self) -> None:
        """Load all states, and refill the channels with the batches in flight at the last committed id."""
        region, store, owner = self.blueprint.region, self.owner.outside.store, self.owner
        self.crew.reset(owner.history)
        folder = channels_folder(region.name)
        self.board = Board(
            region,
            epoch=owner.epoch,
            spool=Spool(store.staging(folder, owner.epoch, world.token()), store.table(folder).files),
            history=owner.history,
            group_of=lambda first, last: group_of(owner.history, owner.epoch, first, last),
        )
        self.crew.begin(self.board)

    def close(self) -> None:
        self.crew.close()

    def _open_board(self) -> Board:
        if self.board is None:
            raise RuntimeError("the region is not claimed")
        return self.board


def _written(moment: Moment, staged: StagedGroup, engine: Engine, tag: str) -> StagedGroup:
    """Write the batches in flight at a moment that are not written yet; return the group with their files."""
    try:
        with engine.tagged(tag):
            found = moment.snapshot.in_flight()
        files = tuple(file for batches in found.values() for batch in batches for file in batch.files)
        return replace(staged, channels=channels_to_json(found), in_flight=files)
    finally:
        moment.snapshot.release()


def _settle(board: Board, moment: Moment, owner: RegionOwner) -> None:
    """Note that a moment is committed, and delete the staged files of batches that all stages have done."""
    history = owner.history
    flow = history.flow
    through = min(flow.through.values()) if flow.channels else history.committed_id
    dead = board.committed(moment, flow.channels, through)
    with suppress(StoreUnavailable):  # `gc` finds them, too
        owner.outside.store.table(channels_folder(owner.region)).folder.remove(dead)


def group_of(history: RegionHistory, epoch: int, first: int, last: int) -> Group:
    """Return the group of committed ids, without an attempt yet; its files are not read again.

    Args:
        epoch: of the owner that works on the group now.
    """
    members = tuple(
        Assigned(sequence_id=number, trigger=trigger_of(history.states[number])) for number in range(first, last + 1)
    )
    return Group(members=members, epoch=epoch, attempt="")


def trigger_of(row: CheckpointRow) -> Trigger:
    """Return the trigger that a state's row names."""
    kept = row.trigger_identity or {}
    return Trigger(
        id=0,
        region=row.region,
        uri=row.trigger_uri or "",
        identity=scanned_identity(kept),
        identity_key="",
        size_bytes=row.bytes_in or 0,
        output=str(kept.get("output", "")),
        origin=str(kept.get("origin", "scan")),
        order_index=row.trigger_order or 0,
        status=TriggerStatus.COMMITTED,
        sequence_id=row.sequence_id,
        discovered_at=row.recorded_at,
    )
