"""The status of a region while a run works on it: numbers for each group's event, and observations in between.

A group may take minutes, and a run that lingers may wait for an hour. So a thread looks every `SECONDS`. It logs an
observation of the checkpoint table if a group is at work and no event was shown meanwhile, or if the state or the
number of attempts, pending triggers or groups at work changed. Dagster plots the numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.region_run import GroupReport, RegionRun
from drainmark.orchestration.dagster_assets.assets import checkpoint_key_of
from drainmark.orchestration.dagster_assets.checks import evaluations
from drainmark.orchestration.dagster_assets.metadata import standing_metadata, work_metadata
from drainmark.orchestration.dagster_assets.translator import Keys, renamed
from drainmark.orchestration.inspection.metrics import present_of
from drainmark.orchestration.workplace.workplace import Workplace

SECONDS = 10.0

VERDICT_SECONDS = 60.0
"""Seconds between two evaluations of the checks, if groups were published since. Dagster relates a result to the state
that it shows only if it is of the same run, or younger: until then the result after the first group is valid."""

_PATIENCE_SECONDS = 2.0

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Pulse:
    """The status of one run of a region, from the first group to the end of the run.

    Attributes:
        log: stores an event; also called by the thread.
        keys: those of assets that a translator changed.
        seconds: time between two looks of the thread.
    """

    workplace: Workplace
    region: RegionPlan
    run: RegionRun
    log: Callable[[Any], object]
    keys: Keys = field(default_factory=dict)
    seconds: float = field(default_factory=lambda: SECONDS)
    clock: Callable[[], float] = time.monotonic
    _since: float = 0.0
    _shown_at: float = float("-inf")
    _judged_at: float = float("-inf")
    _is_judged: bool = True
    _shown: tuple[Any, ...] = ()
    _begun: dict[tuple[str, int], float] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> Pulse:
        self.work_begins()
        self._thread = threading.Thread(target=self._beat, name=f"pulse {self.region.name}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(_PATIENCE_SECONDS)

    def work_begins(self) -> None:
        """Start to count time now, so that rates do not include the wait before the work."""
        self._since = self.clock()

    def of(self, report: GroupReport) -> dict[str, Any]:
        """Return metadata for the groups that are shown now: the status of the region, and their rates."""
        now = self.clock()
        seconds, self._since, self._shown_at = max(now - self._since, 1e-3), now, now
        self._is_judged = False
        return {
            **self.standing(),
            "drainmark/files_per_second": round(report.triggers / seconds, 3),
            "drainmark/rows_per_second": round(report.rows_in / seconds, 3),
        }

    def standing(self) -> dict[str, Any]:
        """Return the status of the region, and the groups at work."""
        present = present_of(self.workplace, self.region.name, lambda: self.run.owner.history)
        return {**standing_metadata(present), **work_metadata(self._at_work(self.run.at_work()))}

    def _at_work(self, groups: Mapping[str, Group]) -> dict[str, tuple[Group, float]]:
        now, before = self.clock(), self._begun
        keys = {stage: (stage, group.first_id) for stage, group in groups.items()}
        begun = self._begun = {key: before.get(key, now) for key in keys.values()}
        return {stage: (group, now - begun[keys[stage]]) for stage, group in groups.items()}

    def judge_first(self) -> None:
        """Evaluate the checks if this run has not done it yet; later the thread does it again."""
        if self._judged_at == float("-inf"):
            self.judge()

    def judge(self, is_late: Callable[[], bool] = lambda: False) -> None:
        """Log the results of the checks; an error here must not fail the run.

        Args:
            is_late: says whether results come too late to be logged, because the run is over.
        """
        self._judged_at, self._is_judged = self.clock(), True
        try:
            for evaluation in list(evaluations(self.workplace, self.region)):
                if not is_late():
                    self.log(evaluation)
        except Exception as error:
            _log.warning("the checks of %s were not judged: %r", self.region.name, error)

    def _beat(self) -> None:
        while not self._over.wait(self.seconds):
            try:
                self._look()
                if not self._is_judged and self.clock() - self._judged_at >= VERDICT_SECONDS:
                    self.judge(self._over.is_set)
            except Exception as error:  # an error of the display must not fail the run
                _log.warning("no pulse of %s: %r", self.region.name, error)

    def _look(self) -> None:
        groups = self.run.at_work()
        standing = self.standing()
        told = tuple(standing[f"drainmark/{name}"] for name in ("state", "attempts", "pending_triggers", "at_work"))
        is_new = told != self._shown
        is_long = bool(groups) and self.clock() - self._shown_at >= self.seconds
        if (is_new or is_long) and not self._over.is_set():
            self._shown, self._shown_at = told, self.clock()
            seen = dg.AssetObservation(checkpoint_key_of(self.region.name), metadata=standing)
            self.log(renamed(seen, self.keys))
