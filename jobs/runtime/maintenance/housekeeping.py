"""Work of a run beside its groups, so that later groups cost no more: maintenance, garbage, input files.

It runs when all committed groups are visible. A failure here is retried later, and counts no attempt.

A drained file was fully processed, so only a rewind to before its id needs it again. Disposal is repeated until it is
noted as done, so a crash in between does no harm. A file that was replaced since the scan is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced, StoreRefused, StoreUnavailable
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.hosting.hosted_parts import Hosted
from drainmark.jobs.runtime.maintenance.compaction import EVERY_GROUPS, maintain_region
from drainmark.jobs.runtime.maintenance.garbage_collection import EVERY_SECONDS, collect

NOTE = "groups-since-maintenance"
"""Name of the note in the registry; without the note the count is 0."""

DISPOSED = "disposed-through"
"""Name of the note in the registry: files up to this id (inclusive) are done. Without it all are checked again."""

_AT_ONCE = 500


@dataclass(slots=True, kw_only=True)
class Disposal:
    """Disposes of a region's input files.

    Attributes:
        starts: of the region; the scan of a source has the action (`after`) and its time (`after_when`).
    """

    owner: RegionOwner
    starts: Sequence[Operator]
    _through: int | None = None

    @property
    def scan(self) -> DirectoryScan | None:
        """Return the scan with files to move or delete; None if all files are kept."""
        scans = [start.scan for start in self.starts if isinstance(start, DirectorySource)]
        return next((scan for scan in scans if scan.after != "keep"), None)

    @property
    def is_at_once(self) -> bool:
        """Say whether files are moved or deleted as soon as their state is established."""
        return self.scan is not None and self.scan.after_when == "checkpointed"

    def catch_up(self, history: RegionHistory, *, published: int, horizon: int) -> int:
        """Dispose of the files that are due and not done yet; only the region's owner may call it.

        Args:
            published: the newest id that is published to every sink.
            horizon: number of ids that a rewind may go back; with `after_when="retired"` files within it stay.

        Returns:
            the number of files that were moved or deleted.

        Raises:
            StoreUnavailable, StoreRefused: a file could not be moved or deleted; the next call tries again.
            Fenced: another owner has the region.
        """
        scan, owner, outside = self.scan, self.owner, self.owner.outside
        if scan is None:
            return 0
        due = published if self.is_at_once else history.committed_id - horizon
        if self._through is None:
            self._through = int(outside.registry.load_cursor(owner.region, DISPOSED) or 0)
        done = 0
        while self._through < due:
            last = min(due, self._through + _AT_ONCE)
            rows = [row for row in history.states.above(self._through).values() if row.sequence_id <= last]
            files = [
                (row.trigger_uri, row.trigger_identity or {}, row.sequence_id)
                for row in rows
                if row.kind is RowKind.STATE and row.trigger_kind == "file" and row.trigger_uri
            ]
            done += outside.inputs.dispose(files, scan)
            self._through = last
            outside.registry.save_cursor(owner.region, DISPOSED, str(last), epoch=owner.epoch)
        return done


@dataclass(slots=True, kw_only=True)
class Housekeeping:
    """The maintenance of a region's tables and folders, every `EVERY_GROUPS` groups, counted across runs.

    Attributes:
        region: its parameters have the horizon.
    """

    region: RegionPlan
    owner: RegionOwner
    hosted: Hosted
    disposal: Disposal
    _groups: int = 0
    _earlier: int | None = None
    _noted: int | None = None
    _collects_at: float = 0.0

    def count(self) -> None:
        """Note that a group is published."""
        self._groups += 1
        if self.disposal.is_at_once:
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
            self.owner.report("maintain", {"failed": str(error)})

    def remember(self) -> None:
        """Note the number of groups for the next run; without the note, its maintenance comes later."""
        with suppress(StoreUnavailable, StoreRefused):
            if (self._groups or self._earlier is not None) and self._since() != self._noted:
                self._note(self._since())

    def dispose(self) -> None:
        """Move or delete input files that are not needed any more."""
        history = self.owner.history
        try:
            files = self.disposal.catch_up(history, published=history.committed_id, horizon=self._horizon)
        except (StoreUnavailable, StoreRefused) as error:
            self.owner.report("dispose", {"failed": str(error)})
        else:
            if files:
                self.owner.report("dispose", {"files": files})

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
            self.owner.report("collect", collect(outside, history, horizon=self._horizon))
        self.dispose()
        self.hosted.retire(self.owner.history, self._horizon, self.owner.outside.state_store)
        self._note(0)
        self._earlier = self._groups = 0
        self.owner.report("maintain", {"rewritten": rewritten})

    def _note(self, groups: int) -> None:
        self.owner.outside.registry.save_cursor(self.region.name, NOTE, str(groups), epoch=self.owner.epoch)
        self._noted = groups

    @property
    def _horizon(self) -> int:
        return self.region.parameters.rewind_horizon
