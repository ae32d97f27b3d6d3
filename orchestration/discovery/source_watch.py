"""A watch, which looks at sources several times a second at low cost: it scans only when there may be new input.

The modification time of a folder shows that files were added; the regular rescans find files that changed in place.
For folders with subfolders, for buckets, and for other sources, there is no such time. There every look is a scan, and
the pause between scans depends on their duration.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.orchestration.discovery.region_scan import Tick, scan_region
from drainmark.orchestration.workplace.region_sources import has_folder, source_folder, source_of
from drainmark.orchestration.workplace.workplace import Workplace

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan

LOOK_SECONDS = 0.2
"""Seconds between two looks."""

RESCAN_SECONDS = 5.0
"""Longest time between two scans of a local folder, and shortest for a bucket: each of its listings costs money."""

_COARSE_SECONDS = 0.05
"""Two changes of a folder within this time may have the same modification time."""

_SHARE = 5.0
"""Scans take at most 1/_SHARE of the time."""


@dataclass(slots=True, kw_only=True)
class SourceWatch:
    """The watch of a region's sources, for one run or tick.

    In a periodic region, `scan_region` cuts a slice only if a period has passed since the last state or reset ended.
    """

    workplace: Workplace
    region: RegionPlan
    _folder: str = ""
    _is_telling: bool = False
    _scanned_at: float = field(default=float("-inf"))
    _next_at: float = field(default=float("-inf"))
    _seen: int | None = None
    _unsettled: int = 0

    def __post_init__(self) -> None:
        if has_folder(self.region):
            scan = source_of(self.region).scan
            self._folder = source_folder(self.workplace, source_of(self.region))
            self._is_telling = not (is_object(self._folder) or scan.recursive or scan.outputs is not None)

    def look(self) -> int:
        """Scan if there may be new input; return the number of inputs found new or changed, pending or not.

        Raises:
            DrainmarkError: as `scan_region`.
        """
        now = world.monotonic()
        if now < self._next_at or self._is_as_it_was(now):
            return 0
        stamp, taken_at = self._stamp(), world.now()
        found = scan_region(self.workplace, self.region, tick=Tick.DUE)
        took = world.monotonic() - now
        is_final = stamp is not None and taken_at - stamp / 1e9 > _COARSE_SECONDS
        self._seen = stamp if is_final else None
        self._unsettled = found.unsettled
        self._scanned_at = now
        self._next_at = now + (RESCAN_SECONDS if is_object(self._folder) else max(LOOK_SECONDS, took * _SHARE))
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
