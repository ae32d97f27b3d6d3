"""Work of a run beside its groups, so that later groups cost no more: maintenance, garbage, input files.

It runs when all committed groups are visible. A failure here is retried later, and counts no attempt.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced, StoreRefused, StoreUnavailable
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.hosting.hosted_parts import Hosted
from drainmark.jobs.runtime.maintenance.compaction import EVERY_GROUPS, maintain_region
from drainmark.jobs.runtime.maintenance.garbage_collection import EVERY_SECONDS, collect
from drainmark.jobs.runtime.maintenance.input_disposal import Disposal
from drainmark.jobs.runtime.outside import Report

NOTE = "groups-since-maintenance"
"""Name of the note in the registry; without the note the count is 0."""


@dataclass(slots=True, kw_only=True)
class Housekeeping:
    """The maintenance of a region's tables and folders, every `EVERY_GROUPS` groups, counted across runs.

    Attributes:
        region: its starts decide whether input files are kept, moved or deleted; its parameters have the horizon.
    """

    region: RegionPlan
    owner: RegionOwner
    hosted: Hosted
    report: Report
    _groups: int = 0
    _earlier: int | None = None
    _noted: int | None = None
    _collects_at: float = 0.0
    _disposal: Disposal = field(init=False)

    def __post_init__(self) -> None:
        self._disposal = Disposal(owner=self.owner, starts=self.region.starts)

    def count(self) -> None:
        """Note that a group is published."""
        self._groups += 1
        if self._disposal.is_at_once:
            self.dispose()

    def maintain_if_due(self) -> None:
        """Maintain the region if that is due; call it while no group is being staged and no checkpoint is under way.

        Raises:
            Fenced: another owner has the region.
        """
        try:
            if self._since() >= EVERY_GROUPS:
                self._maintain()
        except Fenced:
            raise
        except Exception as error:
            self._earlier, self._groups = EVERY_GROUPS // 2, 0
            self.report("maintain", {"failed": str(error)})

    def remember(self) -> None:
        """Note the number of groups for the next run; without the note, its maintenance comes later."""
        with suppress(StoreUnavailable, StoreRefused):
            if (self._groups or self._earlier is not None) and self._since() != self._noted:
                self._note(self._since())

    def dispose(self) -> None:
        """Move or delete input files that are not needed any more."""
        history = self.owner.history
        try:
            files = self._disposal.catch_up(history, published=history.committed_id, horizon=self._horizon)
        except (StoreUnavailable, StoreRefused) as error:
            self.report("dispose", {"failed": str(error)})
        else:
            if files:
                self.report("dispose", {"files": files})

    def _since(self) -> int:
        """Return the number of groups since the last maintenance, in this run and before it."""
        if self._earlier is None:
            found = self.owner.outside.registry.load_cursor(self.region.name, NOTE)
            self._earlier = self._noted = int(found or 0)
        return self._earlier + self._groups

    def _maintain(self) -> None:
        rewritten = maintain_region(self.owner, horizon=self._horizon)
        if world.monotonic() >= self._collects_at:
            self._collects_at = world.monotonic() + EVERY_SECONDS
            outside, history = self.owner.outside, self.owner.history
            self.report("collect", collect(outside, history, horizon=self._horizon))
        self.dispose()
        self.hosted.retire(self.owner.history, self._horizon, self.owner.outside.state_store)
        self._note(0)
        self._earlier = self._groups = 0
        self.report("maintain", {"rewritten": rewritten})

    def _note(self, groups: int) -> None:
        self.owner.outside.registry.save_cursor(self.region.name, NOTE, str(groups), epoch=self.owner.epoch)
        self._noted = groups

    @property
    def _horizon(self) -> int:
        return self.region.parameters.rewind_horizon
