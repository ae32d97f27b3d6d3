"""The triggers that wait, and how many of them the next group takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drainmark.jobs.protocol.failure_policy import GroupSize
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.commit.replacement import one_of_each
from drainmark.jobs.runtime.group.limits import Limits
from drainmark.jobs.runtime.outside import RegionRegistry


@dataclass(slots=True, kw_only=True)
class Backlog:
    """What is pending of a region, as one run takes it.

    Attributes:
        size: of the next group.
        done: triggers that the run is done with.
    """

    registry: RegionRegistry
    region: str
    limits: Limits
    size: GroupSize = field(default_factory=lambda: GroupSize(1, 1))
    done: int = 0

    @property
    def halt_requested(self) -> str | None:
        """Return why the region is to halt once nothing is under way; None where nobody asked for it."""
        requested: str | None = self.registry.region_info(self.region).halt_requested
        return requested

    def next_group(self, in_hand: Sequence[Trigger], most: int | None) -> Sequence[Trigger]:
        """Return the triggers of the next group, none where the run may not take any.

        Args:
            in_hand: what was begun and is not committed, and so is pending, too.
            most: triggers that the run may do, None for all.
        """
        count = self.size.current
        if most is not None:
            count = min(count, most - self.done - len(in_hand))
        if count <= 0:
            return []
        after = max((trigger.order_index for trigger in in_hand), default=0)
        return one_of_each(self.registry.triggers.pending(self.region, count, self.limits.size_bytes, after=after))

    def next_uri(self) -> str | None:
        """Return the address of the trigger that is next, whatever the run may take."""
        pending = self.registry.triggers.pending(self.region, 1)
        return pending[0].uri if pending else None

    def published(self, triggers: int) -> None:
        """Note that a group went well: the next one may be larger."""
        self.size = self.size.after_success()
        self.done += triggers

    def split(self) -> None:
        """Note that a group failed: what it was made of comes in groups of one."""
        self.size = self.size.after_failure()
