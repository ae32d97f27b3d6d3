"""The one `RegionRun` that the ops of a Dagster run share: kept in the memory of the run's process, handed over once.

A resource, because with the in-process executor it lives exactly as long as the run: whatever ends the run between two
ops, the region is handed over when the resource is torn down.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from jobs.errors import Interrupted
from jobs.runtime.run import GroupReport, RegionRun

SLOT = "region_run"
"""Name of the resource."""


@dataclass(slots=True)
class RunSlot:
    """Holds the run from `open` to `finish`.

    Attributes:
        reports: of the groups published so far.
        interrupted: somebody asked the run to end, perhaps before there was one.
    """

    run: RegionRun | None = None
    reports: list[GroupReport] = field(default_factory=list)
    interrupted: threading.Event = field(default_factory=threading.Event)
    _last_step: float = field(default_factory=time.monotonic)

    def open(self, run: RegionRun) -> RegionRun:
        """Keep a run, about to be claimed."""
        self.run = run
        if self.interrupted.is_set():
            run.interrupted.set()
        return run

    def interrupt(self) -> None:
        """Ask the run to end; safe in a signal handler and from any thread."""
        self.interrupted.set()
        if self.run is not None:
            self.run.interrupted.set()

    def finish(self, error: BaseException | None = None) -> None:
        """Hand the region over, once: later calls do nothing."""
        run, self.run = self.run, None
        if run is not None:
            run.hand_over(error)

    def seconds_since_last_step(self) -> float:
        now = time.monotonic()
        seconds, self._last_step = now - self._last_step, now
        return seconds


def slot_of(context: dg.OpExecutionContext) -> RunSlot:
    slot: RunSlot = getattr(context.resources, SLOT)
    return slot


@dg.resource(description="the region's run, shared by the ops of one Dagster run")
def run_slot(_context: dg.InitResourceContext) -> Iterator[RunSlot]:
    slot = RunSlot()
    try:
        yield slot
    finally:
        slot.finish(Interrupted("the Dagster run ended before the hand-over"))


def described(error: BaseException) -> Mapping[str, Any]:
    """Return the error object of the command line for any exception."""
    to_json = getattr(error, "to_json", None)
    return to_json() if to_json else {"id": "ERROR", "message": f"{type(error).__name__}: {error}"}
