"""The findings of a scan, during the scan and after it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from drainmark.jobs.protocol.records.triggers import NewTrigger
from drainmark.jobs.scan.order import SortedFiles

KEPT = 50_000
"""Upper bound of the new files in a joined `ScanResult`: about 50 MB. Others went into the registry batch by batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """The findings of one scan of a folder or bucket.

    Attributes:
        new: files never seen before, in the order of the scan's rule; only the first `KEPT` of joined batches.
        changed: (uri, known identity key, new trigger) of files that have changed.
        unsettled: number of files left alone because they changed within `settle` seconds.
        refused: (uri, reason) of entries that are no readable files: directories, pipes, links, no permission.
        seen: number of files that were looked at; an incremental scan leaves out files that cannot have changed.
        beyond: number of files never seen before that are not in `new`.
    """

    new: tuple[NewTrigger, ...] = ()
    changed: tuple[tuple[str, str, NewTrigger], ...] = ()
    unsettled: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    seen: int = 0
    beyond: int = 0

    @property
    def new_count(self) -> int:
        """Return the number of files never seen before."""
        return len(self.new) + self.beyond

    def with_batch(self, batch: ScanResult) -> ScanResult:
        """Return this result and the next batch of the same scan as one result."""
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
    """The findings of a scan that still runs; if there are many new files, they are sorted on a disk.

    Attributes:
        now: when the scan began, seconds since 1970.
        waiting: paths or keys that the next scan must look at: files that grow, or that changed and were not taken.
    """

    now: float
    new: SortedFiles = field(default_factory=SortedFiles)
    changed: list[tuple[str, str, NewTrigger]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    unsettled: int = 0
    seen: int = 0

    def result(self) -> ScanResult:
        """Return all findings, with the new files in their order."""
        return replace(self.rest(), new=tuple(self.new))

    def batches(self, size: int = 5000) -> Iterator[ScanResult]:
        """Yield all findings, at most `size` new files at a time; the last result has everything else."""
        ordered = iter(self.new)
        for _ in range(len(self.new) // size):
            yield ScanResult(new=tuple(itertools.islice(ordered, size)))
        yield replace(self.rest(), new=tuple(ordered))

    def rest(self) -> ScanResult:
        """Return the findings without the new files."""
        return ScanResult(
            changed=tuple(self.changed), unsettled=self.unsettled, refused=tuple(self.refused), seen=self.seen
        )
