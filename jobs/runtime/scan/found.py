"""The findings of a scan, during the scan and after it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from drainmark.jobs.protocol.records.triggers import NewTrigger
from drainmark.jobs.runtime.scan.order import InOrder

KEPT = 50_000
"""New files that a `ScanResult` holds: about 50 MB. What more there is went into the registry batch by batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """What one scan of a folder or bucket found.

    Attributes:
        new: files never seen, in the order of the scan's rule; of a scan that found more, the first `KEPT`.
        changed: (uri, known identity key, new trigger) of files that are not what they were.
        unsettled: files left alone because they changed within `settle` seconds.
        refused: (uri, reason) of what is no readable file: directories, pipes, links, no permission.
        seen: files that were looked at; an incremental scan leaves out what cannot have changed.
        beyond: files never seen that are not in `new`.
    """

    new: tuple[NewTrigger, ...] = ()
    changed: tuple[tuple[str, str, NewTrigger], ...] = ()
    unsettled: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    seen: int = 0
    beyond: int = 0

    @property
    def new_count(self) -> int:
        """How many files were never seen."""
        return len(self.new) + self.beyond

    def with_batch(self, batch: ScanResult) -> ScanResult:
        """Return this result and the next batch of the same scan as one."""
        room = max(0, KEPT - len(self.new))
        return ScanResult(
            new=self.new + batch.new[:room],
            changed=self.changed + batch.changed,
            unsettled=self.unsettled + batch.unsettled,
            refused=self.refused + batch.refused,
            seen=self.seen + batch.seen,
            beyond=self.beyond + batch.beyond + len(batch.new[room:]),
        )


@dataclass(slots=True)
class Found:
    """A scan on its way; new files are put in order on a disk where they are many.

    Attributes:
        now: when it began, seconds since 1970.
        waiting: paths or keys that the next scan is to look at: files that grow, or changed and were not taken.
    """

    now: float
    new: InOrder = field(default_factory=InOrder)
    changed: list[tuple[str, str, NewTrigger]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    unsettled: int = 0
    seen: int = 0

    def result(self) -> ScanResult:
        """Return what was found, new files in their order."""
        return replace(self.rest(), new=tuple(self.new))

    def batches(self, size: int = 5000) -> Iterator[ScanResult]:
        """Yield the same, at most `size` new files at a time; the last result holds all else."""
        ordered = iter(self.new)
        for _ in range(len(self.new) // size):
            yield ScanResult(new=tuple(itertools.islice(ordered, size)))
        yield replace(self.rest(), new=tuple(ordered))

    def rest(self) -> ScanResult:
        """Return what was found besides new files."""
        return ScanResult(
            changed=tuple(self.changed), unsettled=self.unsettled, refused=tuple(self.refused), seen=self.seen
        )
