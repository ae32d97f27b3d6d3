"""The findings of a scan, during the scan and after it, and the errors for files that are no longer as found."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from drainmark.jobs.errors import InputChanged, InputMissing
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.triggers import NewTrigger, Trigger, TriggerStatus
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
class ScanFindings:
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


def missing_files(triggers: Sequence[Trigger], why: str) -> InputMissing:
    """Return the error for files that are gone."""
    first = triggers[0]
    msg = f"{first.uri} was scanned and cannot be read any more: {why}"
    return InputMissing(msg, remedy="put it back", triggers=tuple(triggers))


def changed_files(triggers: Sequence[Trigger]) -> InputChanged:
    """Return the error for files that changed after the scan."""
    msg = f"{triggers[0].uri} is not the file that was scanned: it changed since"
    remedy = "Drainmark scans it again; write files elsewhere and rename them into place"
    return InputChanged(msg, remedy=remedy, triggers=tuple(triggers))


Passed = tuple[tuple[TriggerStatus, ...], int]
"""Statuses of known files that every scan looks at again, and the number of the newest files for each status."""


class Candidate(NamedTuple):
    """A file or object that a source selects.

    Attributes:
        key: its path, or its key in the bucket.
        stamp: hash of facts that show, without asking the registry, whether the file has changed.
        modified: seconds since 1970; any time can be given to a file.
        written: seconds since 1970 of its last change, as the system notes it; some file systems do not keep it.
        sort_key: in the order of new files: nanoseconds or seconds if the order is by time, else 0; and the name.
        trigger: the trigger that it may become.
    """

    key: str
    stamp: int
    modified: float
    written: float
    sort_key: tuple[float, str]
    trigger: NewTrigger


class ScanVerdict(Enum):
    """The verdict of a scan on a file."""

    KNOWN = "known"
    OLD = "old"
    UNSETTLED = "unsettled"
    CHANGED = "changed"
    NEW = "new"


def judge(
    candidate: Candidate,
    before: str | None,
    found: ScanFindings,
    scan: DirectoryScan,
    *,
    settles: bool,
    oldest: float | None,
) -> ScanVerdict:
    """Judge a file, and note a new, changed or unsettled file in `found`.

    Args:
        before: file key of the newest input at its uri; "" if all are superseded or missing, None if there is none.
        settles: whether a file that changed a moment ago may still be written to.
        oldest: `scan.oldest()`, read once for all files.
    """
    found.seen += 1
    trigger = candidate.trigger
    if before == trigger.identity_key:
        return ScanVerdict.KNOWN
    if before is None and oldest is not None and candidate.modified < oldest:
        return ScanVerdict.OLD
    changed = candidate.modified if candidate.modified <= found.now else candidate.written
    if settles and found.now - changed < scan.settle:
        found.unsettled += 1
        return ScanVerdict.UNSETTLED
    if before is not None:
        found.changed.append((trigger.uri, before, trigger))
        return ScanVerdict.CHANGED
    found.new.add(candidate.sort_key, trigger)
    return ScanVerdict.NEW
