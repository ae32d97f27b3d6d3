"""The state of a region: the one answer for `status`, metrics, Dagster's pages, and the next owner.

Rows of the checkpoint table say it of a region that nobody owns; an owner tells the registry every state it enters.
"""

from __future__ import annotations

from drainmark.jobs.protocol.history import UNCLEAN, Outcome, RegionHistory
from drainmark.jobs.protocol.transitions import TABLE, Event, State, move


def at_rest(history: RegionHistory) -> State:
    """Return the state in which the last owner left the region, by its rows."""
    halt = history.halt
    if halt is not None and not any(row.epoch > halt.epoch for row in history.rewinding):
        return State.HALTED
    if history.last_outcome in UNCLEAN or history.is_rewinding:
        return State.UNHEALTHY
    return State.STARTED


def state_of(history: RegionHistory, told: str | None, *, is_owned: bool) -> State:
    """Return the state that a region is in.

    Of an owner that died without a word, whoever looks raises HEALTH_LOST: nobody else is there to do it.

    Args:
        told: what the last owner told the registry; empty or None where it told nothing, or the registry is lost.
        is_owned: somebody holds the region's lease and is alive.
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
