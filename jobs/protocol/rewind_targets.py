"""Why one cannot rewind to an id, and which one would do (H4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs.errors import RewindRefused
from drainmark.jobs.protocol.records.ids import INITIAL_ID

if TYPE_CHECKING:
    from drainmark.jobs.protocol.history import RegionHistory


def refusal_of(history: RegionHistory, to: int, oldest: int) -> RewindRefused:
    """Return the error that says why an id is no target, and names the nearest that is.

    Args:
        oldest: see `RegionHistory.oldest_target`.
    """
    candidates = [
        INITIAL_ID if oldest <= INITIAL_ID else None,
        history.state_at_most(to),
        history.state_at_least(max(to, oldest)),
    ]
    near = [number for number in candidates if number is not None and number >= oldest]
    nearest = min(near, key=lambda number: abs(number - to), default=INITIAL_ID)
    if to > history.committed_id:
        why = f"the last committed id is {history.committed_id}"
    elif to < oldest:
        why = f"the rewind horizon reaches back to {oldest}"
    elif to in history.states:
        why = "it belongs to a skipped trigger"
    else:
        why = "no state of that number is in force: its attempt failed or a rewind withdrew it"
    msg = f"cannot rewind to {to}: {why}"
    return RewindRefused(msg, remedy=f"the nearest id is {nearest}: reset --to {nearest}", nearest=nearest)
