"""The controller's seven states, every legal move between them, as data, and the state that a region is in.

A region has one controller for all its owners: each owner goes on from the state that the last one left. An unlisted
move is a bug and raises. The product makes every listed move (see `tests/integration/test_controller.py`), so three
kinds of events of IBM Streams have no row:

- health that comes back: only the next claim, CLAIMED_UNCLEAN, brings it back. An owner that merely paused has lost
  nothing, because the fence is in the checkpoint table: it goes on from its state. Readers, which call the region
  UNHEALTHY while the heartbeat is missing, then read the owner's own state again.
- a tick or a trigger while a checkpoint is under way: it waits in the registry, and the controller does not need
  it; the ticks of a period that pass meanwhile are counted (`dropped_ticks`).
- late answers of operators: an attempt that was given up works on things that no later attempt sees
  (`jobs/runtime/commit/region_owner.py` lists the places that refuse late writes).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from drainmark.jobs.protocol.history import UNCLEAN, Outcome, RegionHistory


class State(StrEnum):
    """The activity of a region."""

    STARTED = "STARTED"  # nothing is in hand: it waits for triggers, or for a run
    PROCESSING = "PROCESSING"  # a group is read and computed
    DRAINING = "DRAINING"  # its rows are computed (if there are stages, by the starts); files are closed
    CHECKPOINT_PENDING = "CHECKPOINT_PENDING"  # it is written, committed and published, and the flow has resumed
    RESETTING = "RESETTING"  # going back to the last committed state, or to an earlier one
    UNHEALTHY = "UNHEALTHY"  # its owner failed or died, or Spark is gone: the next claim resets
    HALTED = "HALTED"  # Streams' MAXIMUM_RESET_ATTEMPTS_REACHED: it waits for an operator


class Event(StrEnum):
    """The events of a region, named with past participles."""

    CLAIMED_CLEAN = "claimed after a clean end, or for the first time"
    CLAIMED_UNCLEAN = "claimed after a failure, a crash, or a rewind that did not end"
    TRIGGERED = "triggers were taken in hand as a group"
    DRAIN_BEGUN = "the rows of the groups in hand are computed, by the starts where there are stages"
    DRAINED_BLOCKING = "drained, blocking checkpoints done, background ones under way"
    CHECKPOINTED = "the group is committed and published"
    FAILED = "an operator failed, or what is in hand is given up"
    DRAIN_TIMED_OUT = "group_timeout passed"
    RESET_TIMED_OUT = "reset_timeout passed"
    HEALTH_LOST = "Spark is gone; or the owner is: it left after a failure, or without a word"
    RESET_DONE = "rolled forward, state is that of the committed id"
    REWIND_ASKED = "an operator asked for an earlier state"
    ATTEMPTS_EXHAUSTED = "more resets in a row than allowed, or trying again cannot help"
    HALT_ASKED = "an operator asked to halt; or had, before the rewind that ends"
    RESUMED = "an operator resumed it: attempts count from 0"
    RELEASED = "the owner left in order: it was interrupted, or the store did not answer"


_S, _E = State, Event

TABLE: Mapping[tuple[State, Event], State] = MappingProxyType(
    {
        (_S.STARTED, _E.CLAIMED_CLEAN): _S.STARTED,
        (_S.STARTED, _E.TRIGGERED): _S.PROCESSING,
        (_S.STARTED, _E.FAILED): _S.RESETTING,
        (_S.STARTED, _E.RESET_TIMED_OUT): _S.RESETTING,
        (_S.STARTED, _E.HEALTH_LOST): _S.UNHEALTHY,
        (_S.STARTED, _E.REWIND_ASKED): _S.RESETTING,
        (_S.STARTED, _E.ATTEMPTS_EXHAUSTED): _S.HALTED,
        (_S.STARTED, _E.HALT_ASKED): _S.HALTED,
        (_S.STARTED, _E.RESUMED): _S.STARTED,
        (_S.PROCESSING, _E.DRAIN_BEGUN): _S.DRAINING,
        (_S.PROCESSING, _E.FAILED): _S.RESETTING,
        (_S.PROCESSING, _E.DRAIN_TIMED_OUT): _S.RESETTING,
        (_S.PROCESSING, _E.HEALTH_LOST): _S.UNHEALTHY,
        (_S.PROCESSING, _E.RELEASED): _S.STARTED,
        (_S.DRAINING, _E.TRIGGERED): _S.PROCESSING,  # with several stages: a group begins behind those that drain
        (_S.DRAINING, _E.DRAINED_BLOCKING): _S.CHECKPOINT_PENDING,
        (_S.DRAINING, _E.CHECKPOINTED): _S.STARTED,
        (_S.DRAINING, _E.FAILED): _S.RESETTING,
        (_S.DRAINING, _E.DRAIN_TIMED_OUT): _S.RESETTING,
        (_S.DRAINING, _E.HEALTH_LOST): _S.UNHEALTHY,
        (_S.DRAINING, _E.RELEASED): _S.STARTED,
        (_S.CHECKPOINT_PENDING, _E.CHECKPOINTED): _S.STARTED,
        (_S.CHECKPOINT_PENDING, _E.FAILED): _S.RESETTING,
        (_S.CHECKPOINT_PENDING, _E.DRAIN_TIMED_OUT): _S.RESETTING,
        (_S.CHECKPOINT_PENDING, _E.HEALTH_LOST): _S.UNHEALTHY,
        (_S.CHECKPOINT_PENDING, _E.RELEASED): _S.STARTED,
        (_S.RESETTING, _E.RESET_DONE): _S.STARTED,
        (_S.RESETTING, _E.RESET_TIMED_OUT): _S.RESETTING,
        (_S.RESETTING, _E.HEALTH_LOST): _S.UNHEALTHY,
        (_S.RESETTING, _E.ATTEMPTS_EXHAUSTED): _S.HALTED,
        (_S.RESETTING, _E.RELEASED): _S.STARTED,
        (_S.UNHEALTHY, _E.CLAIMED_UNCLEAN): _S.RESETTING,
        (_S.UNHEALTHY, _E.ATTEMPTS_EXHAUSTED): _S.HALTED,
        (_S.HALTED, _E.CLAIMED_CLEAN): _S.HALTED,
        (_S.HALTED, _E.CLAIMED_UNCLEAN): _S.HALTED,
        (_S.HALTED, _E.RESUMED): _S.STARTED,
        (_S.HALTED, _E.REWIND_ASKED): _S.RESETTING,
    }
)

IN_HAND = frozenset({State.PROCESSING, State.DRAINING, State.CHECKPOINT_PENDING})
"""The states in which a group is in hand."""


class IllegalTransition(RuntimeError):
    """A move that the table does not list: a bug in Drainmark."""

    def __init__(self, state: State, event: Event) -> None:
        self.state = state
        self.event = event
        super().__init__(f"{state.value} does not know the event {event.name} ({event.value})")


def move(state: State, event: Event) -> State:
    """Return the state after the event.

    Raises:
        IllegalTransition: the table does not list the move.
    """
    try:
        return TABLE[state, event]
    except KeyError:
        raise IllegalTransition(state, event) from None


def at_rest(history: RegionHistory) -> State:
    """Return the state in which the last owner left the region, according to its rows."""
    halt = history.halt
    if halt is not None and not any(row.epoch > halt.epoch for row in history.rewinding):
        return State.HALTED
    if history.last_outcome in UNCLEAN or history.rewinding:
        return State.UNHEALTHY
    return State.STARTED


def state_of(history: RegionHistory, told: str | None, *, is_owned: bool) -> State:
    """Return the current state of a region: the same for `status`, metrics, Dagster's pages, and the next owner.

    Without an owner, the rows of the checkpoint table give the state. An owner tells the registry every state that it
    enters.
    If the owner died without a record, this function applies HEALTH_LOST: no process is left to do it.

    Args:
        told: the state that the last owner told the registry; empty or None if it told none, or the registry is lost.
        is_owned: a living process holds the region's lease.
    """
    rest = at_rest(history)
    if rest is State.HALTED:
        return rest
    word = State(told) if told else State.STARTED
    if is_owned and told:
        return word
    if history.last_outcome is Outcome.CRASHED and (word, Event.HEALTH_LOST) in TABLE:
        return move(word, Event.HEALTH_LOST)
    return rest
