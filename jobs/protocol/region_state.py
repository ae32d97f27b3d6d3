"""The state of a region: the same answer for `status`, metrics, Dagster's pages, and the next owner.

Without an owner, the rows of the checkpoint table give the state. An owner tells the registry every state it enters.
"""

from __future__ import annotations

from drainmark.jobs.protocol.history import UNCLEAN, Outcome, RegionHistory
from drainmark.jobs.protocol.transitions import TABLE, Event, State, move


def at_rest(history: RegionHistory) -> State:
    """Return the state in which the last owner left the region, according to its rows."""
    halt = history.halt
    if halt is not None and not any(row.epoch > halt.epoch for row in history.rewinding):
        return State.HALTED
    if history.last_outcome in UNCLEAN or history.is_rewinding:
        return State.UNHEALTHY
    return State.STARTED


def state_of(history: RegionHistory, told: str | None, *, is_owned: bool) -> State:
    """Return the current state of a region.

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
