"""Wait for what another thread or process does: as long as a busy machine may take, and no longer once it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

SOON = 240.0
"""Seconds: a test that waits so long waits in vain, whatever else the machine does."""

AHEAD: list[float] = []
"""Seconds by which the clock of time limits is ahead, with the fixture `ahead`."""

Found = TypeVar("Found")


def eventually(find: Callable[[], Found], what: str | Callable[[], str] = "", *, pause: float = 0.1) -> Found:
    """Return the first true result of a function, which is called again and again, at first after a millisecond.

    Args:
        what: what is waited for, or a function that says at the end what is there instead.
        pause: the longest time between two calls, in seconds.
    """
    until, seconds = time.monotonic() + SOON, 0.001
    while not (found := find()):
        assert time.monotonic() < until, f"waited in vain: {what() if callable(what) else what}"
        time.sleep(min(seconds, pause))
        seconds *= 1.5
    return found
