"""The memory of a scan of a large folder or prefix: durable in the registry, compact in the process.

It is only an index: a scan that loses it looks at everything once more.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, TypeVar

from drainmark.jobs import world
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.triggers import TriggerStatus

_T = TypeVar("_T")
_SHORTEST_SECONDS = 0.05


def in_batches(items: Iterable[_T], size: int) -> Iterator[tuple[_T, ...]]:
    """Yield the items, `size` at a time."""
    left = iter(items)
    while batch := tuple(itertools.islice(left, size)):
        yield batch


class ScanMemory(Protocol):
    """The part of the registry that the scan of one region sees."""

    def known(self, uris: Collection[str]) -> Mapping[str, str]:
        """Return uri -> file key of the newest input at the uri, for each uri that has an input.

        If all inputs of a uri are superseded or missing, the key is "", which no file has: such a file may come again.
        """

    def hashes(self) -> array[int]:
        """Return this process's `hash` of every known uri, eight bytes each."""

    def passed(self, statuses: Iterable[TriggerStatus], limit: int) -> list[str]:
        """Return uris with a newest input that has one of the statuses: for each status, the newest `limit` uris."""

    def load_note(self) -> str | None:
        """Return the note that was kept last; None if there is none, or if the region was rebuilt since."""

    def directories(self) -> dict[str, str]:
        """Return uri -> stamp of all kept directories."""

    def begin(self, note: str) -> None:
        """Replace the kept note, and drop all kept directories, all or nothing."""

    def keep(self, token: str, note: str | None, stamps: Mapping[str, str | None] | None = None) -> None:
        """Keep a note, unless it is None, and stamps by uri; drop stamps that are None. All or nothing.

        Do nothing unless the kept note has the token. Facts about a region before it was rebuilt, or about another
        folder, must not hide files from the scan that began anew.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """Limits for the part of a folder or prefix that one scan looks at.

    A round looks at everything once, in slices of `share` of the time. 10^6 files or keys take half a minute of work,
    so a round takes 20 times that, and the next one begins after `rest_seconds`: every file is compared within an hour.

    Attributes:
        whole: number of files (inclusive) up to which every scan looks at all files.
        rest_seconds: from the beginning of a round to the beginning of the next.
        share: part of the time since the last slice that a slice of a round may take.
        slice_seconds: upper bound of the time that a slice takes.
    """

    whole: int = 10_000
    rest_seconds: float = 1800.0
    share: float = 0.05
    slice_seconds: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanNote:
    """The progress of a source's scans, kept beside their findings.

    Attributes:
        source: digest of the source that the note belongs to; for another folder or pattern, scans begin anew.
        token: new when scans begin anew; a process must forget facts that it remembers under another token.
        is_large: the source had more than `ScanLimits.whole` files; all were looked at once, unless `is_first`.
        is_first: the first look at everything is not finished.
        at: the place at which a round continues: a key, or a directory's uri and, after a NUL, how many of its entries
            were looked at.
        began: when the last round began, seconds since 1970.
        tails: for a prefix: folder directly below it -> greatest key listed there ("" for keys in no folder); empty if
            there are too many folders.
        greatest: for a prefix: the greatest key listed.
    """

    source: str
    token: str = field(default_factory=world.token)
    is_large: bool = False
    is_first: bool = False
    at: str | None = None
    began: float = 0.0
    tails: Mapping[str, str] = field(default_factory=dict)
    greatest: str = ""

    @classmethod
    def from_text(cls, text: str | None) -> ScanNote | None:
        """Return the note from a kept text; None for no text, or for the text of another version."""
        try:
            found: dict[str, Any] = json.loads(text or "null")
            return None if found is None else cls(**found)
        except (ValueError, TypeError):
            return None

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    def with_round_ended(self) -> ScanNote:
        """Return the note after everything was looked at."""
        return replace(self, is_first=False, at=None)


def recalled(memory: ScanMemory, location: str, scan: DirectoryScan) -> ScanNote:
    """Return the kept note of a source. If there is none, or one of another source, keep and return a new one."""
    facts = (location, scan.pattern, scan.recursive, scan.outputs, scan.start_from)
    source = hashlib.sha256(repr(facts).encode(errors="surrogateescape")).hexdigest()[:16]
    note = ScanNote.from_text(memory.load_note())
    if note is None or note.source != source:
        note = ScanNote(source=source)
        memory.begin(note.to_text())
    return note


class SeenUris:
    """The uris that a scan need not look at, as sorted hashes of eight bytes: 8 MB for a million.

    One new uri in 10^13 has the hash of a seen uri and is skipped; the next round finds it.
    """

    def __init__(self, hashes: array[int]) -> None:
        import numpy as np

        self._hashes = np.sort(np.frombuffer(hashes, dtype=np.int64))

    def unseen(self, uris: list[str]) -> list[str]:
        """Return the uris that are not among the seen ones, in their order."""
        import numpy as np

        if not uris:
            return []
        asked = np.fromiter(map(hash, uris), np.int64, len(uris))
        places = np.searchsorted(self._hashes, asked)
        inside = places < len(self._hashes)
        seen = np.zeros(len(uris), bool)
        seen[inside] = self._hashes[places[inside]] == asked[inside]
        return [uris[index] for index in np.flatnonzero(~seen)]

    def add(self, hashes: array[int]) -> None:
        """Add more uris, each as this process's `hash` of it."""
        import numpy as np

        if hashes:
            self._hashes = np.sort(np.concatenate([self._hashes, np.frombuffer(hashes, dtype=np.int64)]))


class Slices:
    """The time that a slice of a round may take, which depends on the time since the last slice."""

    def __init__(self, limits: ScanLimits) -> None:
        self._limits = limits
        self._last: float | None = None

    def next_seconds(self, monotonic: float) -> float:
        """Return how many seconds the slice that begins at a monotonic time may take; 0 for none now."""
        passed = monotonic - self._last if self._last is not None else float("inf")
        seconds = min(self._limits.slice_seconds, self._limits.share * passed)
        if seconds < _SHORTEST_SECONDS:
            return 0.0
        self._last = monotonic
        return seconds
