"""The groups of a region of several stages: begun at the starts, worked at by every stage, committed by one controller.

The states of a stage move on when it has done a group, before that is committed: a reset of the region loads all of
them from the committed history. So many groups are in hand as the channels' bounds allow.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from drainmark.jobs.errors import StoreUnavailable
from drainmark.jobs.failpoints import FailPoint, reach
from drainmark.jobs.graph.annotations import Alignment, Checkpoints
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.protocol.stage_flow import channels_folder, channels_to_json, part_attempt
from drainmark.jobs.protocol.transitions import Event, State
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.commit.background_checkpoint import BackgroundCheckpoint
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.group.group_time import GroupTime
from drainmark.jobs.runtime.group.id_assignment import IdAssignment
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.outside import Engine, Outside
from drainmark.jobs.runtime.stages.board import Board, Failure
from drainmark.jobs.runtime.stages.channels.rows import Spool
from drainmark.jobs.runtime.stages.commit_intervals import CommitIntervals
from drainmark.jobs.runtime.stages.committed_group import group_of
from drainmark.jobs.runtime.stages.crew import Crew
from drainmark.jobs.runtime.stages.group_parts import Moment, joined
from drainmark.jobs.runtime.stages.states import MultiStageStates
from drainmark.jobs.runtime.timeout import POLL_SECONDS, Grace


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentCommit:
    """The commit of a moment of the region, under way."""

    moment: Moment
    establishing: BackgroundCheckpoint

    @property
    def staged(self) -> StagedGroup:
        return self.establishing.staged

    @property
    def is_progress(self) -> bool:
        """Have only stages caught up, and is no group new?"""
        return not self.moment.groups


def written(moment: Moment, staged: StagedGroup, engine: Engine, tag: str) -> StagedGroup:
    """Write what is in flight at a moment, where nobody has written it yet; return its group with that."""
    try:
        with engine.tagged(tag):
            found = moment.snapshot.in_flight()
        files = tuple(file for batches in found.values() for batch in batches for file in batch.files)
        return replace(staged, channels=channels_to_json(found), in_flight=files)
    finally:
        moment.snapshot.release()


def settle(board: Board, moment: Moment, owner: RegionOwner) -> None:
    """Note that a moment is committed, and delete what was staged of batches that all stages are done with."""
    history = owner.history
    flow = history.flow
    through = min(flow.through.values()) if flow.channels else history.committed_id
    dead = board.committed(moment, flow.channels, through)
    with suppress(StoreUnavailable):  # `gc` finds them, too
        owner.outside.store.discard_staged(channels_folder(owner.region), dead)


@dataclass(slots=True, kw_only=True)
class StagePipeline:
    """Begins groups and establishes moments; the stages work in between.

    Attributes:
        crew: works at the stages.
        under_way: the commit under way, None between two.
        board: from the last reset on; None before the first, and when the run is over.
        intervals: between commits.
    """

    blueprint: Blueprint
    outside: Outside
    owner: RegionOwner
    states: MultiStageStates
    grace: Grace
    crew: Crew
    under_way: MomentCommit | None = None
    board: Board | None = None
    intervals: CommitIntervals = field(init=False)
    _ids: IdAssignment = field(init=False)
    _time: GroupTime = field(init=False)

    def __post_init__(self) -> None:
        region = self.blueprint.region
        self.intervals = CommitIntervals(region.parameters.checkpoint_interval)
        self._ids, self._time = IdAssignment(self.owner), GroupTime(region)

    # --- for the run -------------------------------------------------------------------------------------------------

    @property
    def is_blocking(self) -> bool:
        """Does the flow wait until a group is established?"""
        return self.blueprint.region.parameters.checkpoints == Checkpoints.BLOCKING

    @property
    def in_hand(self) -> tuple[Trigger, ...]:
        """Return the triggers of all groups that are not committed, in order."""
        groups = tuple(self.board.groups) if self.board is not None else ()
        return tuple(member.trigger for group in groups for member in group.members)

    @property
    def is_held_up(self) -> bool:
        """Does nothing begin now, since a checkpoint blocks the flow: from when one is due, and there is something for
        it, until it is established? What is begun before belongs to it, so that a region with an interval still
        commits once in that time."""
        return self.is_blocking and bool(self.in_hand) and (self.under_way is not None or self.intervals.is_due)

    @property
    def has_room(self) -> bool:
        return self.board is not None and self.board.failure is None and self.board.has_room

    @property
    def is_idle(self) -> bool:
        return self.under_way is None and (self.board is None or (self.board.failure is None and self.board.is_idle))

    @property
    def has_ended(self) -> bool:
        """Has the commit under way come to its end, or to the end of its time?"""
        return self.under_way is not None and (self.under_way.establishing.is_over or self.grace.is_over())

    def await_change(self, seconds: float) -> None:
        """Wait until a stage has something new, or the commit under way may have ended; at most so many seconds."""
        self._open_board().await_change(min(seconds, POLL_SECONDS) if self.under_way is not None else seconds)

    @property
    def failure(self) -> Failure | None:
        return self.board.failure if self.board is not None else None

    def give(self, pending: Sequence[Trigger]) -> None:
        """Assign ids to triggers, and give them to the stages of the starts as a group."""
        board = self._open_board()
        reach(FailPoint.ASSIGN_BEFORE)
        self.follow(told=False)
        if self.owner.state in (State.STARTED, State.DRAINING):
            self.owner.moved(Event.TRIGGERED)
        members = self._ids.assign(pending)
        reach(FailPoint.ASSIGN_AFTER)
        board.give(Group(members=members, epoch=self.owner.epoch, attempt=part_attempt(uuid.uuid4().hex)))

    def commit_if_due(self, *, is_final: bool) -> bool:
        """Begin to commit what can be committed; returns whether there is anything.

        Args:
            is_final: nothing is begun any more, so that no interval is waited for.
        """
        moment = self._moment(is_final=is_final)
        if moment is None:
            return False
        members = tuple(member for group in moment.groups for member in group.members)
        attempt = moment.groups[0].attempt if moment.groups else uuid.uuid4().hex
        group = Group(members=members, epoch=self.owner.epoch, attempt=attempt)
        staged = replace(joined(group, moment, self.states.every_id()), dropped_intervals=self.intervals.dropped)
        if not moment.groups:
            staged = replace(staged, progress_id=self._ids.take())
        self.follow(told=False)
        if self.owner.state is State.PROCESSING:  # what stages finish later is committed beside the work of the starts
            self.owner.moved(Event.DRAIN_BEGUN, told=False)
        self.owner.moved(Event.DRAINED_BLOCKING)
        engine, tag = self.outside.engine, f"drainmark-{attempt}-commit"
        establishing = BackgroundCheckpoint(
            owner=self.owner,
            engine=engine,
            staged=staged,
            finish=lambda staged: written(moment, staged, engine, tag),
            grace=self.grace,
            deadline=time.monotonic() + self._time.seconds,
            late=self._time.commit_too_late(staged.row_id),
            tag=tag,
        )
        self.under_way = MomentCommit(moment=moment, establishing=establishing)
        self.intervals.begin()
        establishing.begin()
        return True

    def end(self) -> MomentCommit:
        """Await the commit under way, after which none is; where it fails, so does all that is in hand.

        Raises:
            DrainTimeout, Interrupted: it was abandoned; it is not committed and never will be.
            Exception: what it failed with; it may be committed all the same.
        """
        done = self.under_way
        if done is None or self.board is None:
            raise RuntimeError("no checkpoint is under way")
        try:
            done.establishing.wait()
        except Exception:
            self.under_way = None
            self._drop()
            raise
        self.under_way = None
        self.intervals.end(time.monotonic(), told=done.staged.dropped_intervals)
        settle(self.board, done.moment, self.owner)
        self.states.hosted.completed()
        self.owner.moved(Event.CHECKPOINTED, told=self.board.is_idle)
        self.follow()
        return done

    def follow(self, *, told: bool = True) -> None:
        """Bring the controller to where the stages are: at work, or draining, as their starts are."""
        if self.board is None or self.board.is_idle:
            return
        if self.owner.state is State.STARTED:
            self.owner.moved(Event.TRIGGERED, told=told and not self.board.is_draining)
        if self.owner.state is State.PROCESSING and self.board.is_draining:
            self.owner.moved(Event.DRAIN_BEGUN, told=told)

    def reset(self) -> None:
        """Bring all states back to the last committed id, and into the channels what was in flight then."""
        self._drop()
        region, store = self.blueprint.region, self.outside.store
        self.states.reset(self.owner.history)
        folder = channels_folder(region.name)
        spool = Spool(store.staging(folder, self.owner.epoch, uuid.uuid4().hex), store.table(folder).files)
        self.board = Board(
            region,
            epoch=self.owner.epoch,
            spool=spool,
            history=self.owner.history,
            group_of=lambda first, last: group_of(self.owner.history, self.owner.epoch, first, last),
        )
        self.crew.begin(self.board, self.states.of_stage)

    def leave(self) -> None:
        """Let a commit under way come to its end where nobody goes on; what became of it is in the table.

        Stages in which nothing is left to do go on, should more come.
        """
        if self.board is None or not self.is_idle:
            self._end()

    def close(self) -> None:
        """End a run: let go of the states too, and of what is still to be written outside."""
        self._end()
        self.states.close()
        self.crew.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _moment(self, *, is_final: bool) -> Moment | None:
        """Return what can be committed now, None where that is nothing, or may not be yet."""
        board, parameters = self._open_board(), self.blueprint.region.parameters
        if self.under_way is not None:
            return None
        if not self.intervals.may_commit(is_final=is_final, has_caught_up=lambda: board.has_caught_up):
            return None
        timeout = parameters.alignment_timeout
        return board.moment(Alignment(parameters.alignment), timeout.total_seconds() if timeout is not None else None)

    def _open_board(self) -> Board:
        if self.board is None:
            raise RuntimeError("the region is not claimed")
        return self.board

    def _drop(self) -> None:
        """Close the board: what is not committed by now, or under way, never will be."""
        board, self.board = self.board, None
        if board is not None:
            board.close()
            self.crew.dismiss()

    def _end(self) -> None:
        self._drop()
        done, self.under_way = self.under_way, None
        if done is not None:
            with suppress(Exception):
                done.establishing.wait()
