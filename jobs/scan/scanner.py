"""Repeated scans of one source: of a small one all entries each time, of a large one those that can have changed.

A listing, of a folder or of a prefix of a bucket, finds the entries that can have changed. Rounds look at all others,
slice by slice: within an hour, they find each change that no listing shows.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from drainmark.jobs import world
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.scan.findings import Candidate, Passed, ScanFindings, ScanResult, ScanVerdict, judge
from drainmark.jobs.scan.index import ScanLimits, ScanMemory, ScanNote, Slices, recalled

E = TypeVar("E")

_MANY_NEW = 20_000  # a scan that found more leaves the round to the next scan
_NOTE_SECONDS = 30.0


class Listing(Protocol[E]):
    """A folder, or a prefix of a bucket: all its entries, and the entries that can have changed.

    Attributes:
        settles: whether files may still be written during a scan; an object is there whole or not at all.
        passed: the known files that every scan looks at again.
    """

    location: str
    settles: bool
    passed: Passed

    def require(self) -> None:
        """Raise `UsageError` if there is nothing to list."""

    def forget(self) -> None:
        """Forget all entries that earlier scans saw."""

    def key_of(self, entry: E) -> str:
        """Return the path or key of an entry."""

    def key_at(self, uri: str) -> str:
        """Return the path or key that a uri stands for."""

    def stamp_of(self, entry: E) -> int | None:
        """Return an entry's `Candidate.stamp` as cheaply as possible; None if the entry cannot be examined."""

    def candidate(self, entry: E, found: ScanFindings) -> Candidate | None:
        """Return an entry that the source selects, else None; an entry that cannot be read is noted as refused."""

    def everything(self, found: ScanFindings) -> Iterator[Sequence[E]]:
        """Yield all entries."""

    def first(self, note: ScanNote, found: ScanFindings) -> Iterator[tuple[Sequence[E], str | None]]:
        """Yield all entries of a large source; some batches with a place from which the first look may continue."""

    def news(self, note: ScanNote, found: ScanFindings) -> Iterator[Sequence[E]]:
        """Yield the entries that can have changed since the last scan."""

    def entries_of(self, keys: Iterable[str]) -> list[E]:
        """Return the entries that exist at some paths or keys."""

    def rest(self, after: str) -> Iterator[tuple[str, Sequence[E]]]:
        """Yield all entries from a place on, each batch with the place from which a later round continues."""

    def noted(self, note: ScanNote, *, is_round_over: bool = False) -> ScanNote:
        """Return a note with the facts that the listing must remember of the entries that it yielded."""

    def recorded(self, waiting: Collection[str]) -> tuple[set[str], dict[str, str | None]]:
        """Remember the entries of a scan as seen: its findings are in the registry.

        Args:
            waiting: keys of files that the next scan must look at, even if the listing shows no change.

        Returns:
            The part of `waiting` that the scanner must remember, and stamps of directories to keep.
        """


class Scanner(Generic[E]):
    """All scans of one source in this process.

    A caller either uses up `batches` or drops it. When the caller asks for the next batch, the last one is remembered
    as seen; so the caller must record a batch before that. Scans of several threads run one after the other.
    """

    def __init__(
        self,
        listing: Listing[E],
        scan: DirectoryScan,
        memory: ScanMemory,
        *,
        limits: ScanLimits | None = None,
        monotonic: Callable[[], float] = world.monotonic,
    ) -> None:
        self.listing = listing
        self.scan = scan
        self.memory = memory
        self._oldest = scan.oldest()
        self.limits = limits or ScanLimits()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._token = ""
        self._forget()

    def _forget(self) -> None:
        self.listing.forget()
        self._note: ScanNote | None = None  # of a large source; the registry's note is up to half a minute old
        self._alike: dict[int, int] = {}  # hash of key -> stamp of the file that the registry knows
        self._waiting: set[str] = set()  # keys that every scan looks at: growing, or changed and not taken
        self._round: Iterator[tuple[str, Sequence[E]]] | None = None
        self._round_entries: int | None = None  # None if the round began in another process
        self._slices = Slices(self.limits)
        self._noted_at = -1e9

    def batches(self, now: float) -> Iterator[ScanResult]:
        """Scan once; yield the findings, with new files in the order of the scan's rule.

        Args:
            now: seconds since 1970, against which `settle` is judged.

        Raises:
            UsageError: the folder does not exist, or is no folder.
            StoreUnavailable, StoreRefused: a page of a bucket's listing failed. Nothing was yielded for a small prefix;
                the first look at a large one continues after the batches that were yielded.
        """
        with self._lock:
            self.listing.require()
            kept = recalled(self.memory, self.listing.location, self.scan)
            if kept.token != self._token:
                self._forget()
                self._token = kept.token
            note = self._note or kept
            passed = {self.listing.key_at(uri) for uri in self.memory.passed(*self.listing.passed)}
            for key in passed:
                self._alike.pop(hash(key), None)
            if not note.is_large:
                found = self._whole(now)
                if found is not None:
                    yield found.result()
                    return
                note = replace(note, is_large=True, is_first=True, began=now)
                self.memory.keep(note.token, note.to_text())
            try:
                yield from self._first(note, now) if note.is_first else self._again(note, kept, passed, now)
            except BaseException:
                self._round = None  # its last slice may not be recorded: it continues at the place in the note
                raise

    def _whole(self, now: float) -> ScanFindings | None:
        """Look at every entry; return None if there are too many for that."""
        found, entries = ScanFindings(now), 0
        for some in self.listing.everything(found):
            entries += len(some)
            if entries > self.limits.whole:
                self._alike.clear()
                return None
            self._judge(some, found)
        return found

    def _first(self, note: ScanNote, now: float) -> Iterator[ScanResult]:
        """Look at all entries of a large source for the first time."""
        found = ScanFindings(now)
        for some, at in self.listing.first(note, found):
            self._judge(some, found)
            if at is not None:
                yield found.result()
                found, note = ScanFindings(now, waiting=found.waiting), self.listing.noted(replace(note, at=at))
                self.memory.keep(note.token, note.to_text())
        yield from found.batches()
        self._note = self.listing.noted(note.with_round_ended())
        self._waiting, stamps = self.listing.recorded(found.waiting)
        self.memory.keep(note.token, self._note.to_text(), stamps)

    def _again(self, note: ScanNote, kept: ScanNote, passed: Set[str], now: float) -> Iterator[ScanResult]:
        """Look at the entries of a large source that can have changed, and at a slice of all others."""
        found = ScanFindings(now)
        for some in self.listing.news(note, found):
            self._judge(some, found)
        self._look_again({*self._waiting, *passed}, found)
        note = self.listing.noted(note)
        if len(found.new) <= _MANY_NEW:
            note = self._slice(note, found)
        yield from found.batches()
        self._waiting, stamps = self.listing.recorded(found.waiting)
        self._keep(note, kept, stamps)

    def _look_again(self, keys: set[str], found: ScanFindings) -> None:
        if keys:
            left = keys - self._found_keys(found, keys)
            self._judge(self.listing.entries_of(sorted(left)), found)

    def _found_keys(self, found: ScanFindings, among: set[str] | None = None) -> set[str]:
        """Return the keys of files that this scan has found already: no file is judged twice."""
        new = (self.listing.key_at(trigger.uri) for trigger in found.new)
        changed = (self.listing.key_at(uri) for uri, _, _ in found.changed)
        return {*found.waiting, *changed, *(key for key in new if among is None or key in among)}

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _slice(self, note: ScanNote, found: ScanFindings) -> ScanNote:
        """Look at the next slice of a round; return a note with its progress."""
        seconds = self._slices.next_seconds(self._monotonic())
        if not seconds:
            return note
        if self._round is None:
            if note.at is None:
                if 0 <= found.now - note.began < self.limits.rest_seconds:
                    return note
                note = replace(note, began=found.now, at="")
            self._round_entries = 0 if not note.at else None
            left = self.listing.rest(note.at or "")
            self._round = itertools.chain(list(itertools.islice(left, 1)), left)  # a slice begins at its place
        before, until = self._found_keys(found), self._monotonic() + seconds
        while self._monotonic() < until:
            at, some = next(self._round, (None, ()))
            if at is None:
                return self._with_round_ended(note)
            if self._round_entries is not None:
                self._round_entries += len(some)
            self._judge([entry for entry in some if self.listing.key_of(entry) not in before], found)
            note = replace(note, at=at)
        return note

    def _with_round_ended(self, note: ScanNote) -> ScanNote:
        """Return the note after a round; the source is small again if most of it is gone."""
        entries, self._round = self._round_entries, None
        ended = note.with_round_ended()
        if entries is None:
            return ended
        return self.listing.noted(replace(ended, is_large=entries > self.limits.whole // 2), is_round_over=True)

    def _keep(self, note: ScanNote, kept: ScanNote, stamps: Mapping[str, str | None]) -> None:
        if not note.is_large:  # begin anew, so that no other process keeps facts about the large source
            self.memory.begin(ScanNote(source=note.source).to_text())
            self._forget()
            return
        self._note = note
        is_over = note.at is None or self._monotonic() - self._noted_at > _NOTE_SECONDS
        is_due = note != kept and is_over
        self._noted_at = self._monotonic() if is_due else self._noted_at
        self.memory.keep(note.token, note.to_text() if is_due else None, stamps)

    # --- one by one --------------------------------------------------------------------------------------------------

    def _judge(self, entries: Iterable[E], found: ScanFindings) -> None:
        """Judge entries; remember the stamps of entries that the registry knows and that have not changed."""
        asked = []
        for entry in entries:
            alike = self._alike.get(hash(self.listing.key_of(entry)))
            if alike is not None and alike == self.listing.stamp_of(entry):
                found.seen += 1
            elif (candidate := self.listing.candidate(entry, found)) is not None:
                asked.append(candidate)
        known = self.memory.known([candidate.trigger.uri for candidate in asked]) if asked else {}
        for candidate in asked:
            before = known.get(candidate.trigger.uri)
            verdict = judge(candidate, before, found, self.scan, settles=self.listing.settles, oldest=self._oldest)
            if verdict is ScanVerdict.KNOWN:
                self._alike[hash(candidate.key)] = candidate.stamp
            elif verdict is ScanVerdict.UNSETTLED or (verdict is ScanVerdict.CHANGED and self.scan.on_change == "halt"):
                found.waiting.add(candidate.key)
        if len(self._alike) > 2 * self.limits.whole:  # mostly files that are gone, or files of a large source
            self._alike.clear()


def scan_once(listing: Listing[E], scan: DirectoryScan, known: Mapping[str, str], *, now: float) -> ScanResult:
    """Look at all entries once, even of a large source, and remember nothing.

    Args:
        known: uri -> file key of the newest input at each uri.
        now: seconds since 1970, against which `settle` is judged.

    Raises:
        UsageError: the folder does not exist, or is no folder.
        StoreUnavailable, StoreRefused: a page of a bucket's listing failed.
    """
    listing.require()
    found, oldest = ScanFindings(now), scan.oldest()
    for entries in listing.everything(found):
        for entry in entries:
            candidate = listing.candidate(entry, found)
            if candidate is not None:
                before = known.get(candidate.trigger.uri)
                judge(candidate, before, found, scan, settles=listing.settles, oldest=oldest)
    return found.result()
