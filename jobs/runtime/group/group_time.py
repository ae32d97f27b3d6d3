"""The time that a group of a region has, its checkpoint included."""

from __future__ import annotations

from dataclasses import dataclass

from drainmark.jobs.errors import DrainTimeout
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.input.inbox import Group


@dataclass(frozen=True, slots=True)
class GroupTime:
    """The limit `group_timeout`; its errors blame the region's first start."""

    region: RegionPlan

    @property
    def seconds(self) -> float:
        return self.region.parameters.group_timeout.total_seconds()

    def left_of(self, staged: StagedGroup) -> float:
        """Return the seconds that are left for the checkpoint of a drained group."""
        return max(0.0, self.seconds - staged.process_seconds - staged.drain_seconds)

    def too_late(self, group: Group) -> DrainTimeout:
        return self._error(
            f"establishing {group.first_id}..{group.last_id}",
            remedy="raise group_timeout in @consistent, or find the step that hangs",
        )

    def commit_too_late(self, number: int) -> DrainTimeout:
        """Return the error of a late commit, by the id of its row."""
        return self._error(f"committing {number}", remedy="look at the store; or raise group_timeout in @consistent")

    def _error(self, what: str, *, remedy: str) -> DrainTimeout:
        blame = self.region.starts[0]
        message = f"{what} took longer than {self.seconds:g} s"
        return DrainTimeout(message, operator=blame.name, location=blame.location, remedy=remedy)
