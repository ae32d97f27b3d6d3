"""The verdict of a scan on one file or object that a source selects."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.triggers import NewTrigger, TriggerStatus
from drainmark.jobs.scan.found import Found

Passed = tuple[tuple[TriggerStatus, ...], int]
"""Statuses of known files that every scan looks at again, and the number of the newest files for each status."""


class Candidate(NamedTuple):
    """A file or object that a source selects.

    Attributes:
        key: its path, or its key in the bucket.
        stamp: hash of facts that show, without asking the registry, whether the file has changed.
        modified: seconds since 1970; any time can be given to a file.
        written: seconds since 1970 of its last change, as the system notes it; some file systems do not keep it.
        place: in the order of new files: nanoseconds or seconds if the order is by time, else 0; and the name.
        trigger: the trigger that it may become.
    """

    key: str
    stamp: int
    modified: float
    written: float
    place: tuple[float, str]
    trigger: NewTrigger


class ScanVerdict(Enum):
    """The verdict of a scan on a file."""

    KNOWN = "known"
    OLD = "old"
    UNSETTLED = "unsettled"
    CHANGED = "changed"
    NEW = "new"


def judge(
    candidate: Candidate, before: str | None, found: Found, scan: DirectoryScan, *, settles: bool, oldest: float | None
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
    found.new.add(candidate.place, trigger)
    return ScanVerdict.NEW
