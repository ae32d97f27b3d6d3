"""The processes of runs, as texts that others read: in the tag of a Dagster run, and in a note of the registry.

The note tells of a run of the command line that has begun and not claimed yet: it starts Spark, and tries the
application's functions. So `status` can say who is at work, and the next run can count one that was killed. To lose the
note costs a count, never safety.
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
"""Cursor that holds the process of the run."""


@dataclass(frozen=True, slots=True)
class RunProcess:
    """The process that executes a run.

    Attributes:
        started: see `process_started`.
    """

    run_id: str
    host: str
    pid: int
    started: str

    @classmethod
    def here(cls, run_id: str, pid: int | None = None) -> RunProcess:
        """Return a process of this host, by default this one."""
        pid = pid or os.getpid()
        return cls(run_id, socket.gethostname(), pid, str(process_started(pid)))

    @classmethod
    def of(cls, text: str | None) -> RunProcess | None:
        """Return the process whose text this is; None if it is none."""
        parts = (text or "").split(" ")
        return cls(parts[0], parts[1], int(parts[2]), parts[3]) if len(parts) == 4 else None

    def __str__(self) -> str:
        return f"{self.run_id} {self.host} {self.pid} {self.started}"

    @property
    def is_alive(self) -> bool | None:
        """Say whether the process is there; None for a process of another host."""
        return process_started(self.pid) == self.started if self.host == socket.gethostname() else None


@contextmanager
def on_its_way(workplace: Workplace, region: str, run_id: str) -> Iterator[None]:
    """Record in the registry, while the block lasts, that a run of this process is about to claim."""
    workplace.registry.save_cursor(region, _CURSOR, str(RunProcess.here(run_id)))
    try:
        yield
    finally:
        with suppress(StoreUnavailable):
            forget(workplace, region)


def forget(workplace: Workplace, region: str) -> None:
    """Take the record of a region's run away."""
    workplace.registry.save_cursor(region, _CURSOR, "")


def begun_run(registry: Looks, region: str) -> RunProcess | None:
    """Return the run of a region that has begun and not claimed, None if there is none."""
    return RunProcess.of(registry.load_cursor(region, _CURSOR))
