"""Interruption of a run: a signal (Terminate, Ctrl-C), or the death of the process that started it.

In both cases the group is finished if it can commit soon, else abandoned. No attempt is counted.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from drainmark.jobs import world
from drainmark.jobs.errors import Interrupted
from drainmark.resources.processes import signal_handler

ORPHAN_SECONDS = 20.0
"""Seconds that a run may outlive its parent: enough for the grace of `RegionRun` and the hand-over."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ending_gracefully(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt` for SIGINT and SIGTERM inside the block, so that they raise nothing in the middle of a commit.

    Threads other than the main thread get no signals: there the block runs unchanged.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal_handler(interrupt)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch_parent(interrupt: Callable[[], None]) -> world.Thread | None:
    """End this process when its parent has died: `interrupt`, then SIGKILL after `ORPHAN_SECONDS`.

    The run worker of Dagster's default launcher lives on after its code server has ended, and then nothing watches it.
    The end of the parent is seen on multiprocessing's own pipe. `PR_SET_PDEATHSIG` would also fire when only the thread
    that started the child ends.

    Returns:
        the watching thread; None in a process that multiprocessing did not start.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return None

    def watch() -> None:
        parent.join()
        interrupt()
        world.sleep(ORPHAN_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    return world.start(watch, "parent watch")


class Interruption:
    """SIGINT and SIGTERM as an event that a run checks, so that a group that can commit soon is finished."""

    def __init__(self) -> None:
        self.event = world.event()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.arm()
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arm(self) -> None:
        """Handle the signals here. Call it again after a Spark session has started, because that takes SIGINT."""
        for number in _SIGNALS:
            signal.signal(number, signal_handler(self.event.set))

    def pause_armed(self, seconds: float) -> None:
        """Call `arm`, then `pause`."""
        self.arm()
        self.pause(seconds)

    def pause(self, seconds: float) -> None:
        """Sleep; raise `Interrupted` as soon as a signal comes, or if one came before."""
        if self.event.wait(max(0.0, seconds)):
            raise Interrupted("interrupted", remedy="start it again: no attempt was counted")
