"""Looking at a folder many times a second for next to nothing: it is scanned only when it may hold something new.

A folder's own modification time tells of files that came; a file that was changed in place is found by the scans that
are made now and then anyway. Where the time cannot tell (folders below, buckets) every look is a scan, and looks are
as far apart as scans take long.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.orchestration.discovery.region_scan import Tick, scan_region
from drainmark.orchestration.workplace.region_sources import has_folder, source_folder, source_of
from drainmark.orchestration.workplace.workplace import Workplace

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan

LOOK_SECONDS = 0.2
"""Between two looks."""

RESCAN_SECONDS = 5.0
"""A local folder is scanned at least so often, and a bucket no more often: each of its listings costs money."""

_COARSE_SECONDS = 0.05
"""Two changes of a folder within so long may carry the same time."""

_SHARE = 5.0
"""Scans take at most one part in so many of the time."""


class SourceWatch(Protocol):
    """Looks for what is new, as often as it is asked and as cheaply as it can."""

    def look(self) -> int:
        """Scan if there may be something new; return how much was found.

        Raises:
            DrainmarkError: what `scan_region` raises.
        """


@dataclass(slots=True, kw_only=True)
class FolderWatch:
    """Watches the source of a region for one run or tick."""

    workplace: Workplace
    region: RegionPlan
    _folder: str = ""
    _is_telling: bool = False
    _scanned_at: float = field(default=float("-inf"))
    _next_at: float = field(default=float("-inf"))
    _seen: int | None = None
    _unsettled: int = 0

    def __post_init__(self) -> None:
        source = source_of(self.region)
        self._folder = source_folder(self.workplace, source)
        self._is_telling = not (is_object(self._folder) or source.scan.recursive or source.scan.outputs is not None)

    def look(self) -> int:
        """Scan if there may be something new; return how many files were found new or changed, pending or not.

        Raises:
            DrainmarkError: what `scan_region` raises.
        """
        now = time.monotonic()
        if now < self._next_at or self._is_as_it_was(now):
            return 0
        stamp, taken_at = self._stamp(), time.time()
        found = scan_region(self.workplace, self.region)
        took = time.monotonic() - now
        is_final = stamp is not None and taken_at - stamp / 1e9 > _COARSE_SECONDS
        self._seen = stamp if is_final else None
        self._unsettled = found.unsettled
        self._scanned_at = now
        self._next_at = now + (RESCAN_SECONDS if is_object(self._folder) else took * _SHARE)
        return len(found.new) + len(found.changed)

    def _is_as_it_was(self, now: float) -> bool:
        if not self._is_telling or self._unsettled or now - self._scanned_at > RESCAN_SECONDS:
            return False
        return self._seen is not None and self._seen == self._stamp()

    def _stamp(self) -> int | None:
        if not self._is_telling:
            return None
        try:
            return os.stat(self._folder).st_mtime_ns
        except OSError:
            return None


@dataclass(slots=True, kw_only=True)
class SliceWatch:
    """Watches starts that are cut into slices: at each end of a period, or, where there is none, as scans take long.

    Whether a period is over says `scan_region`, by the end of the last state or reset.
    """

    workplace: Workplace
    region: RegionPlan
    _next_at: float = field(default=float("-inf"))

    def look(self) -> int:
        now = time.monotonic()
        if now < self._next_at:
            return 0
        found = scan_region(self.workplace, self.region, tick=Tick.DUE)
        took = time.monotonic() - now
        self._next_at = now + max(LOOK_SECONDS, took * _SHARE)
        return len(found.new) + len(found.changed)


def watch_of(workplace: Workplace, region: RegionPlan) -> SourceWatch:
    """Return what watches a region's sources."""
    if has_folder(region):
        return FolderWatch(workplace=workplace, region=region)
    return SliceWatch(workplace=workplace, region=region)
