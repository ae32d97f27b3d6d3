"""The controller's seven states and every legal move between them, as data (E9–E16, N21).

An unlisted move is a bug and raises. Late answers and period ticks outside PROCESSING are listed as ignored (E13, E15),
so that "nothing happens" is a decision, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """What a region is doing (E9); HALTED is Streams' MAXIMUM_RESET_ATTEMPTS_REACHED."""

    STARTED = "STARTED"
    PROCESSING = "PROCESSING"
    DRAINING = "DRAINING"
    CHECKPOINT_PENDING = "CHECKPOINT_PENDING"
    RESETTING = "RESETTING"
    UNHEALTHY = "UNHEALTHY"
    HALTED = "HALTED"


class Event(StrEnum):
    """What happened to a region; past participles."""

    CLAIMED_CLEAN = "claimed after a clean end, or for the first time"
    CLAIMED_UNCLEAN = "claimed after a failure or a crash"
    TRIGGERED = "a trigger or a period asked for a state"
    DRAINED_BLOCKING = "drained, blocking checkpoints done, background ones under way"
    CHECKPOINTED = "the region's checkpoint is committed"
    FAILED = "an operator failed"
    DRAIN_TIMED_OUT = "drain_timeout passed"
    RESET_TIMED_OUT = "reset_timeout passed"
    HEALTH_LOST = "the owner or the engine is gone"
    HEALTH_RESTORED = "an owner is there again"
    RESET_DONE = "rolled forward, state is that of the committed id"
    REWIND_ASKED = "an operator asked for an earlier state"
    ATTEMPTS_EXHAUSTED = "more resets in a row than allowed, or trying again cannot help"
    HALT_ASKED = "an operator asked to halt"
    RESUMED = "an operator granted a fresh budget"


_S, _E = State, Event

TABLE: Mapping[tuple[State, Event], State] = MappingProxyType(
    {
        (_S.STARTED, _E.CLAIMED_CLEAN): _S.PROCESSING,
        (_S.STARTED, _E.CLAIMED_UNCLEAN): _S.RESETTING,
        (_S.PROCESSING, _E.CLAIMED_CLEAN): _S.PROCESSING,
        (_S.PROCESSING, _E.TRIGGERED): _S.DRAINING,
        (_S.PROCESSING, _E.FAILED): _S.RESETTING,
        (_S.PROCESSING, _E.HEALTH_LOST): _S.UNHEALTHY,
        (_S.PROCESSING, _E.REWIND_ASKED): _S.RESETTING,
        (_S.PROCESSING, _E.HALT_ASKED): _S.HALTED,
        (_S.DRAINING, _E.DRAINED_BLOCKING): _S.CHECKPOINT_PENDING,
        (_S.DRAINING, _E.CHECKPOINTED): _S.PROCESSING,
        (_S.DRAINING, _E.FAILED): _S.RESETTING,
        (_S.DRAINING, _E.DRAIN_TIMED_OUT): _S.RESETTING,
        (_S.DRAINING, _E.HEALTH_LOST): _S.UNHEALTHY,
        (_S.DRAINING, _E.TRIGGERED): _S.DRAINING,
        (_S.CHECKPOINT_PENDING, _E.CHECKPOINTED): _S.PROCESSING,
        (_S.CHECKPOINT_PENDING, _E.FAILED): _S.RESETTING,
        (_S.CHECKPOINT_PENDING, _E.DRAIN_TIMED_OUT): _S.RESETTING,
        (_S.CHECKPOINT_PENDING, _E.HEALTH_LOST): _S.UNHEALTHY,
        (_S.CHECKPOINT_PENDING, _E.TRIGGERED): _S.CHECKPOINT_PENDING,
        (_S.RESETTING, _E.RESET_DONE): _S.PROCESSING,
        (_S.RESETTING, _E.RESET_TIMED_OUT): _S.RESETTING,
        (_S.RESETTING, _E.FAILED): _S.RESETTING,
        (_S.RESETTING, _E.HEALTH_LOST): _S.UNHEALTHY,
        (_S.RESETTING, _E.TRIGGERED): _S.RESETTING,
        (_S.RESETTING, _E.ATTEMPTS_EXHAUSTED): _S.HALTED,
        (_S.RESETTING, _E.HALT_ASKED): _S.HALTED,
        (_S.RESETTING, _E.REWIND_ASKED): _S.RESETTING,
        (_S.UNHEALTHY, _E.HEALTH_RESTORED): _S.RESETTING,
        (_S.UNHEALTHY, _E.CLAIMED_UNCLEAN): _S.RESETTING,
        (_S.UNHEALTHY, _E.TRIGGERED): _S.UNHEALTHY,
        (_S.HALTED, _E.RESUMED): _S.RESETTING,
        (_S.HALTED, _E.REWIND_ASKED): _S.RESETTING,
        (_S.HALTED, _E.TRIGGERED): _S.HALTED,
        (_S.HALTED, _E.HEALTH_LOST): _S.HALTED,
        (_S.HALTED, _E.HEALTH_RESTORED): _S.HALTED,
    }
)


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
