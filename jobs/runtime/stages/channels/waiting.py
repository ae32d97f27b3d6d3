"""Waiting for a change that other threads make: for a bounded time, or until the wait is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from drainmark.jobs import world
from drainmark.jobs.errors import Interrupted

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Wait:
    """The bounds of a wait.

    Attributes:
        seconds: upper bound; None for no bound.
        is_cancelled: called at least every `POLL_SECONDS`; once it is true, the waiting thread gets `Interrupted`.
    """

    seconds: float | None = None
    is_cancelled: Callable[[], bool] | None = None


AT_ONCE = Wait(seconds=0.0)
FOREVER = Wait()


def wait_until(changed: threading.Condition, is_so: Callable[[], bool], wait: Wait) -> bool:
    """Wait, holding the condition, until a predicate is true. Code that makes it true must notify the condition.

    Returns:
        Whether the predicate is true; it is not if the time was over before.

    Raises:
        Interrupted: the wait was cancelled; this costs no attempt.
    """
    until = None if wait.seconds is None else world.monotonic() + wait.seconds
    while not is_so():
        if wait.is_cancelled is not None and wait.is_cancelled():
            raise Interrupted("the wait at a channel was given up", remedy="start it again: no attempt was counted")
        left = None if until is None else until - world.monotonic()
        if left is not None and left <= 0:
            return False
        polled = POLL_SECONDS if wait.is_cancelled is not None else None
        changed.wait(left if polled is None else polled if left is None else min(left, polled))
    return True
