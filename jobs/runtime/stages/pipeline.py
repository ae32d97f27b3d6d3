"""The groups of a region of several stages: from the starts, through every stage, to the commit by one controller.

The states of a stage move on when it has done a group, before that group is committed: a reset of the region loads all
states from the committed history. The channels' bounds limit the number of groups in hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import StoreUnavailable
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.graph.annotations import Alignment, Checkpoints
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.protocol.stage_flow import channels_folder, channels_to_json, part_attempt
from drainmark.jobs.protocol.transitions import Event, State
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.commit.background_checkpoint import BackgroundCheckpoint
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import GroupTime, StagedGroup
from drainmark.jobs.runtime.group.backlog import IdAssignment
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.runtime.stages.board import Board, Failure
from drainmark.jobs.runtime.stages.channels.rows import Spool
from drainmark.jobs.runtime.stages.commit_intervals import CommitIntervals
from drainmark.jobs.runtime.stages.committed_group import group_of
from drainmark.jobs.runtime.stages.crew import Crew
from drainmark.jobs.runtime.stages.group_parts import Moment, joined
from drainmark.jobs.runtime.stages.states import MultiStageStates
from drainmark.jobs.runtime.timeout import POLL_SECONDS, Grace

if TYPE_CHECKING:
    from drainmark.resources.spark.session import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentCommit:
    """A commit under way, of a moment of the region."""

    moment: Moment
    establishing: BackgroundCheckpoint

    @property
    def staged(self) -> StagedGroup:
        return self.establishing.staged

    @property
    def is_progress(self) -> bool:
        """Does the commit have only progress of stages, and no new group?"""
        return not self.moment.groups


def written(moment: Moment, staged: StagedGroup, engine: Engine, tag: str) -> StagedGroup:
    """Write the batches in flight at a moment that are not written yet; return the group with their files."""
    try:
        with engine.tagged(tag):
            found = moment.snapshot.in_flight()
        files = tuple(file for batches in found.values() for batch in batches for file in batch.files)
        return replace(staged, channels=channels_to_json(found), in_flight=files)
    finally:
        moment.snapshot.release()


def settle(board: Board, moment: Moment, owner: RegionOwner) -> None:
    """Note that a moment is committed, and delete the staged files of batches that all stages have done."""
    history = owner.history
    flow = history.flow
    through = min(flow.through.values()) if flow.channels else history.committed_id
    dead = board.committed(moment, flow.channels, through)
    with suppress(StoreUnavailable):  # `gc` finds them, too
        owner.outside.store.table(channels_folder(owner.region)).folder.remove(dead)


@dataclass(slots=True, kw_only=True)
class StagePipeline:
    """The pipeline through all stages: it begins groups and commits moments; the stages work in between.

    Attributes:
        crew: the workers of the stages.
        under_way: the commit under way; None between two commits.
        board: exists since the last reset; None before the first reset, and after the run.
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
        """Does the flow wait until a group is committed and published?"""
        return self.blueprint.region.parameters.checkpoints == Checkpoints.BLOCKING

    @property
    def in_hand(self) -> tuple[Trigger, ...]:
        """Return the triggers of all groups that are not committed, in order."""
        groups = tuple(self.board.groups) if self.board is not None else ()
        return tuple(member.trigger for group in groups for member in group.members)

    @property
    def is_held_up(self) -> bool:
        """May no group begin now, because a checkpoint blocks the flow? It blocks the flow from the time when it is due
        and has groups, until it is published. Groups that began before belong to it, so a region with an interval still
        commits once per interval."""
        return self.is_blocking and bool(self.in_hand) and (self.under_way is not None or self.intervals.is_due)

    @property
    def has_room(self) -> bool:
        return self.board is not None and self.board.failure is None and self.board.has_room

    @property
    def is_idle(self) -> bool:
        return self.under_way is None and (self.board is None or (self.board.failure is None and self.board.is_idle))

    @property
    def has_ended(self) -> bool:
        """Has the commit under way ended, or its grace time after a signal?"""
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
        world.pass_point(FailPoint.ASSIGN_BEFORE)
        self.follow(told=False)
        if self.owner.state in (State.STARTED, State.DRAINING):
            self.owner.moved(Event.TRIGGERED)
        members = self._ids.assign(pending)
        world.pass_point(FailPoint.ASSIGN_AFTER)
        board.give(Group(members=members, epoch=self.owner.epoch, attempt=part_attempt(world.token())))

    def commit_if_due(self, *, is_final: bool) -> bool:
        """Begin to commit all work that can be committed; return whether there is any.

        Args:
            is_final: no group begins any more, so the commit does not wait for an interval.
        """
        moment = self._moment(is_final=is_final)
        if moment is None:
            return False
        members = tuple(member for group in moment.groups for member in group.members)
        attempt = moment.groups[0].attempt if moment.groups else world.token()
        group = Group(members=members, epoch=self.owner.epoch, attempt=attempt)
        staged = replace(joined(group, moment, self.states.every_id()), dropped_intervals=self.intervals.dropped)
        if not moment.groups:
            staged = replace(staged, progress_id=self._ids.take())
        self.follow(told=False)
        if self.owner.state is State.PROCESSING:  # parts of later stages are committed while the starts work
            self.owner.moved(Event.DRAIN_BEGUN, told=False)
        self.owner.moved(Event.DRAINED_BLOCKING)
        engine, tag = self.outside.engine, f"drainmark-{attempt}-commit"
        establishing = BackgroundCheckpoint(
            owner=self.owner,
            engine=engine,
            staged=staged,
            finish=lambda staged: written(moment, staged, engine, tag),
            grace=self.grace,
            deadline=world.monotonic() + self._time.seconds,
            late=self._time.commit_too_late(staged.row_id),
            tag=tag,
        )
        self.under_way = MomentCommit(moment=moment, establishing=establishing)
        self.intervals.begin()
        establishing.begin()
        return True

    def end(self) -> MomentCommit:
        """Wait for the end of the commit under way, and clear `under_way`; if it fails, drop all groups in hand.

        Raises:
            DrainTimeout, Interrupted: the commit was abandoned; it is not committed and never will be.
            Exception: the commit failed with this error; it may be committed nevertheless.
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
        self.intervals.end(world.monotonic(), told=done.staged.dropped_intervals)
        settle(self.board, done.moment, self.owner)
        self.states.hosted.completed()
        self.owner.moved(Event.CHECKPOINTED, told=self.board.is_idle)
        self.follow()
        return done

    def follow(self, *, told: bool = True) -> None:
        """Bring the controller's state in line with the stages: PROCESSING while starts work, else DRAINING."""
        if self.board is None or self.board.is_idle:
            return
        if self.owner.state is State.STARTED:
            self.owner.moved(Event.TRIGGERED, told=told and not self.board.is_draining)
        if self.owner.state is State.PROCESSING and self.board.is_draining:
            self.owner.moved(Event.DRAIN_BEGUN, told=told)

    def reset(self) -> None:
        """Reset all states to the last committed id, and refill the channels with the batches in flight at that id."""
        self._drop()
        region, store = self.blueprint.region, self.outside.store
        self.states.reset(self.owner.history)
        folder = channels_folder(region.name)
        spool = Spool(store.staging(folder, self.owner.epoch, world.token()), store.table(folder).files)
        self.board = Board(
            region,
            epoch=self.owner.epoch,
            spool=spool,
            history=self.owner.history,
            group_of=lambda first, last: group_of(self.owner.history, self.owner.epoch, first, last),
        )
        self.crew.begin(self.board, self.states.of_stage)

    def leave(self) -> None:
        """Stop the stages, and wait for the end of a commit under way; its outcome is in the checkpoint table.

        Stages without any work left are not stopped: more groups may come.
        """
        if self.board is None or not self.is_idle:
            self._end()

    def close(self) -> None:
        """End a run: close the board, the states, and the writing to autonomous tables."""
        self._end()
        self.states.close()
        self.crew.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _moment(self, *, is_final: bool) -> Moment | None:
        """Return the moment that can be committed now; None if there is none, or if it must wait."""
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
        """Close the board: work that is not committed now, nor in the commit under way, will never be committed."""
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
