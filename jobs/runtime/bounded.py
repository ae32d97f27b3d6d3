"""Run something for a bounded time, and let a signal end it with grace (V36, V37, design.md §3.5)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from jobs.errors import DrainmarkError, Interrupted

INTERRUPT_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.05


def bounded(
    action: Callable[[], Any],
    seconds: float,
    interrupted: threading.Event,
    *,
    late: Callable[[float], DrainmarkError],
    cancel: Callable[[], None] = lambda: None,
) -> Any:
    """Run an action in a thread of its own and return its result, or abandon it.

    What is abandoned may go on for a while; it must be something that only stages, or that a fence refuses.

    Args:
        seconds: after which `cancel` is called and `late(seconds)` raised.
        interrupted: once set, the action has ten seconds to end by itself.
        cancel: stops what the action started elsewhere (Spark jobs).

    Raises:
        Interrupted: the grace after a signal is over; costs no attempt.
    """
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True, name="bounded").start()
    deadline = time.monotonic() + seconds
    grace: float | None = None
    while True:
        try:
            return future.result(timeout=_POLL_SECONDS)
        except FutureTimeout:
            if future.done():
                raise
        now = time.monotonic()
        if interrupted.is_set() and grace is None:
            grace = now + INTERRUPT_GRACE_SECONDS
        if grace is not None and now > grace:
            cancel()
            raise Interrupted("the group was abandoned", remedy="start it again: no attempt was counted")
        if now > deadline:
            cancel()
            raise late(seconds)
