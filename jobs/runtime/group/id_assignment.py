"""The ids of triggers, taken from the registry, which gives each id only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.input.inbox import Assigned
from drainmark.jobs.runtime.input.slice_inputs import ReadBefore


@dataclass(slots=True)
class IdAssignment:
    """The assignment of ids to triggers, for one run."""

    owner: RegionOwner
    _read_before: ReadBefore = field(init=False)

    def __post_init__(self) -> None:
        self._read_before = ReadBefore(lambda: self.owner.history)

    def take(self, count: int = 1) -> int:
        """Take `count` consecutive ids for the caller; return the first."""
        return self.owner.outside.registry.progress.take_ids(self.owner.region, self.owner.epoch, count)

    def assign(self, pending: Sequence[Trigger]) -> tuple[Assigned, ...]:
        """Return triggers with new ids; slices that were read before a rewind also get the digests of that read."""
        first = self.take(len(pending))
        reminded = self._read_before.remind(pending)
        return tuple(Assigned(sequence_id=first + i, trigger=trigger) for i, trigger in enumerate(reminded))
