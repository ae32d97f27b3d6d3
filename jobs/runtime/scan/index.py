"""The memory of a scan of a large folder or prefix: durable in the registry, compact in the process.

Nothing here is a truth: whoever loses it looks at everything once more.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import uuid
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, TypeVar

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
    """One region's part of the registry, as its scan sees it."""

    def known(self, uris: Collection[str]) -> Mapping[str, str]:
        """Return uri -> file key of the newest input at each of the uris that there is one at.

        The key is "", which no file has, where all of them are superseded or missing: such a file may come again.
        """

    def hashes(self) -> array[int]:
        """Return this process's `hash` of every known uri, eight bytes each."""

    def passed(self, statuses: Iterable[TriggerStatus], limit: int) -> list[str]:
        """Return uris whose newest input has one of the statuses, of each the newest `limit`."""

    def load_note(self) -> str | None:
        """Return what was kept last; None also when the region was rebuilt."""

    def directories(self) -> dict[str, str]:
        """Return uri -> stamp of the directories that are kept."""

    def begin(self, note: str) -> None:
        """Keep a note, whatever was kept before, and no directory, all or nothing."""

    def keep(self, token: str, note: str | None, stamps: Mapping[str, str | None] | None = None) -> None:
        """Keep a note, and stamps by uri, those that are None no longer; all or nothing.

        Nothing is done unless the note that is kept has the token: what is known of a region before it was rebuilt, or
        of one folder, must hide nothing of what the scan that began anew has to find.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """How much of a folder or prefix one scan looks at.

    A round looks at everything once, in slices of `share` of the time. With half a minute of work for 10^6 files or
    keys whatever is there was compared after `rest_seconds` and twenty times that: within an hour.

    Attributes:
        whole: files up to which every scan looks at all of them.
        rest_seconds: from the beginning of a round to that of the next.
        share: of the time between two scans that a slice of a round may take.
        slice_seconds: that a slice takes at most.
    """

    whole: int = 10_000
    rest_seconds: float = 1800.0
    share: float = 0.05
    slice_seconds: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanNote:
    """How far the scans of a source have come, kept beside what they found.

    Attributes:
        source: of what the note is; another folder or pattern begins anew.
        token: new when a scan begins anew; what a process remembers under another one is worth nothing.
        is_large: everything was looked at once, and is more than `ScanLimits.whole`; or, `is_first`, is being so.
        is_first: the first look at everything is not done.
        at: where a round goes on: a directory's uri, or a key.
        began: of the last round, seconds since 1970.
        tails: of a prefix: folder directly below it -> greatest key listed there ("" for keys that are in none); empty
            when there are too many.
        greatest: of a prefix: the greatest key listed.
    """

    source: str
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    is_large: bool = False
    is_first: bool = False
    at: str | None = None
    began: float = 0.0
    tails: Mapping[str, str] = field(default_factory=dict)
    greatest: str = ""

    @classmethod
    def from_text(cls, text: str | None) -> ScanNote | None:
        """Return what was kept; None for what another version kept."""
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
    """Return the note of a source; a new one, kept, where there is none or it is of another source."""
    facts = (location, scan.pattern, scan.recursive, scan.outputs, scan.start_from)
    source = hashlib.sha256(repr(facts).encode(errors="surrogateescape")).hexdigest()[:16]
    note = ScanNote.from_text(memory.load_note())
    if note is None or note.source != source:
        note = ScanNote(source=source)
        memory.begin(note.to_text())
    return note


class SeenUris:
    """The uris that need no more looking at, as sorted hashes of eight bytes: 8 MB for a million.

    That two uris share a hash, so that a new one is taken for seen, happens to one of 10^13; the next round finds it.
    """

    def __init__(self, hashes: array[int]) -> None:
        import numpy as np

        self._hashes = np.sort(np.frombuffer(hashes, dtype=np.int64))

    def unseen(self, uris: list[str]) -> list[str]:
        """Return those that are not among the seen, in their order."""
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
        """Take more uris, by this process's `hash`."""
        import numpy as np

        if hashes:
            self._hashes = np.sort(np.concatenate([self._hashes, np.frombuffer(hashes, dtype=np.int64)]))


class Slices:
    """Says how long a slice of a round may take, by the time since the last one."""

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
