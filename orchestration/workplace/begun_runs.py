"""Runs of the command line that have begun and not claimed yet: they start Spark, and try the application's functions.

A note of the registry tells of them, so that `status` can say who is at work, and the next run can count one that was
killed. To lose it costs a count, never safety.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.errors import StoreUnavailable
from drainmark.resources.processes import process_started

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace
    from drainmark.resources.registry.queries import Looks

_CURSOR = "@begun"
"""Cursor that holds the id of the run, and host, pid and start of its process."""


@dataclass(frozen=True, slots=True)
class BegunRun:
    """A run that has begun.

    Attributes:
        is_alive: its process is there; only for runs of this host, None for others.
    """

    run_id: str
    host: str
    pid: int
    is_alive: bool | None


@contextmanager
def on_its_way(workplace: Workplace, region: str, run_id: str) -> Iterator[None]:
    """Record in the registry, while the block lasts, that a run of this process is about to claim."""
    pid = os.getpid()
    text = f"{run_id} {socket.gethostname()} {pid} {process_started(pid)}"
    workplace.registry.save_cursor(region, _CURSOR, text)
    try:
        yield
    finally:
        with suppress(StoreUnavailable):
            forget(workplace, region)


def forget(workplace: Workplace, region: str) -> None:
    """Take the record of a region's run away."""
    workplace.registry.save_cursor(region, _CURSOR, "")


def begun_run(registry: Looks, region: str) -> BegunRun | None:
    """Return the run of a region that has begun and not claimed, None if there is none."""
    parts = (registry.load_cursor(region, _CURSOR) or "").split(" ")
    if len(parts) != 4:
        return None
    run_id, host, pid, started = parts
    is_alive = process_started(int(pid)) == started if host == socket.gethostname() else None
    return BegunRun(run_id=run_id, host=host, pid=int(pid), is_alive=is_alive)
