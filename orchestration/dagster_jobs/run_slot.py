"""The `RegionRun` of a Dagster run, what it has done so far, and how it is asked to end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from drainmark.jobs.errors import Interrupted
from drainmark.jobs.runtime.group.group_report import trouble_of
from drainmark.jobs.runtime.region_run import GroupReport, RegionRun
from drainmark.orchestration.dagster_assets.event_pacing import LinePace
from drainmark.orchestration.dagster_assets.metadata import step_line
from drainmark.orchestration.dagster_jobs.pulse import Pulse
from drainmark.orchestration.runs.idle_wait import Lingering

_OF_STAGES = frozenset({"in_flight", "progress"})


@dataclass(slots=True)
class RunSlot:
    """The run of a region, from `open` to `finish`.

    Attributes:
        reports: of the groups published so far.
        made: the last event of each asset that a group made.
        lineages: of the columns of each table; None before the first group.
        interrupted: set when the run was asked to end, which may be before `open`.
        lingering: decides whether the run stays when nothing is pending; None: it never stays.
        log: for the lines of the protocol's steps.
        lines: decides which of these lines are stored.
        pulse: the status of the region; None before the first group.
        observe: called with the numbers of a step `in_flight` or `progress` whose line is stored.
    """

    run: RegionRun | None = None
    reports: list[GroupReport] = field(default_factory=list)
    made: dict[dg.AssetKey, dg.AssetMaterialization] = field(default_factory=dict)
    lineages: Mapping[str, dg.TableColumnLineage] | None = None
    interrupted: threading.Event = field(default_factory=threading.Event)
    lingering: Lingering | None = None
    log: logging.Logger = field(default_factory=lambda: logging.getLogger(__name__))
    lines: LinePace = field(default_factory=LinePace)
    observe: Callable[[Mapping[str, Any]], None] = lambda numbers: None
    pulse: Pulse | None = None
    _last_step: float = field(default_factory=time.monotonic)

    def open(self, run: RegionRun) -> RegionRun:
        """Store a run that is about to be claimed."""
        self.run = run
        if self.interrupted.is_set():
            run.interrupted.set()
        return run

    def interrupt(self) -> None:
        """Ask the run to end; safe from any thread."""
        self.interrupted.set()
        if self.run is not None:
            self.run.interrupted.set()

    def finish(self, error: BaseException | None = None) -> None:
        """Hand the region over, once: later calls do nothing."""
        run, self.run = self.run, None
        if run is not None:
            run.hand_over(error)

    def report(self, step: str, numbers: Mapping[str, Any]) -> None:
        """Log a step of the protocol, one line, with the seconds since the step before.

        The begin of a group has no line: each line is an event of Dagster, and that of the group follows.
        """
        if step == "begin":
            return
        now = time.monotonic()
        seconds, self._last_step = now - self._last_step, now
        if (trouble := trouble_of(step, numbers)) is not None:
            self.log.warning(trouble)
        elif self.lines.may():
            self.log.info(step_line(step, numbers, seconds))
            if step in _OF_STAGES:
                self.observe(numbers)


@contextmanager
def run_slot(log: logging.Logger) -> Iterator[RunSlot]:
    """Give a run its slot; if the op ends before the hand-over, hand the region over."""
    slot = RunSlot(log=log)
    try:
        yield slot
    finally:
        slot.finish(Interrupted("the Dagster run ended before the hand-over"))
