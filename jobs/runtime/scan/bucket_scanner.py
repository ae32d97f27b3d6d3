"""Scan the same prefix of a bucket again and again: all of a small one each time, of a large one where keys are added.

Keys are listed in their order, a thousand a request. Of a large prefix each scan lists what comes after the greatest
known key, and after that of every folder directly below the prefix: names that rise with time are found at once, and
new folders. Rounds list everything else, slice by slice: keys that sort before known ones, and objects put over others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from drainmark.jobs.operators.sources.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.addresses import address_of, object_uri, prefix_of
from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.runtime.scan.bucket_objects import ObjectFacts, judge_object, trigger_of_object
from drainmark.jobs.runtime.scan.folder import Found, ScanResult
from drainmark.jobs.runtime.scan.index import ScanLimits, ScanMemory, ScanNote, Slices, recalled

_TAILS = 64  # more folders than that are not asked for one by one
_AT_ONCE = 16
_FIRST_PAGE = 100  # of a tail, which mostly holds nothing new
_TAIL_KEYS = 20_000  # that one scan takes of one tail
_PAGES_A_BATCH = 5
_HEADS = 20
_NOTE_SECONDS = 30.0


class Listing(Protocol):
    """What of a bucket a scan may take."""

    def pages(self, start_after: str = "", first_page: int = ...) -> Iterator[Sequence[ObjectFacts]]:
        """Yield all that sorts after a key, in the order of the keys."""

    def head(self, key: str) -> ObjectFacts | None:
        """Return the facts of an object, None where there is none."""


class PrefixWatch:
    """All scans of one source's prefix in this process.

    `batches` is used up or dropped: what a batch found is remembered when the next one is asked for, so the consumer
    records it before. Scans of several threads follow each other.

    Args:
        listing: what it raises ends the scan (D15).
    """

    def __init__(
        self, location: str, scan: DirectoryScan, memory: ScanMemory, listing: Listing,
        *, limits: ScanLimits | None = None, monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.location = location
        self.bucket, self.prefix = prefix_of(location)
        self.scan = scan
        self.memory = memory
        self.listing = listing
        self.limits = limits or ScanLimits()
        self._monotonic = monotonic
        self._oldest = scan.oldest()
        self._lock = threading.Lock()
        self._token = ""
        self._forget()

    def _forget(self) -> None:
        self._alike: dict[int, int] = {}  # hash of key -> hash of size and etag when the registry knew it so
        self._note: ScanNote | None = None  # of a large prefix: that of the registry is up to half a minute old
        self._waiting: set[str] = set()  # keys that changed and were not taken: each scan is to say so
        self._round: _Tails | None = None  # of a round that began here
        self._slices = Slices(self.limits)
        self._noted_at = -1e9

    def batches(self, now: float) -> Iterator[ScanResult]:
        """Scan once; yield what was found, new objects in the order of the scan's rule.

        Args:
            now: seconds since 1970.

        Raises:
            StoreUnavailable, StoreRefused: a page of the listing failed; nothing of a small prefix was yielded (D15),
                and the first look at a large one goes on behind what was.
        """
        with self._lock:
            kept = recalled(self.memory, self.location, self.scan)
            if kept.token != self._token:
                self._forget()
                self._token = kept.token
            note = self._note or kept
            if not note.is_large:
                found = self._whole()
                if found is not None:
                    yield found.result()
                    return
                note = replace(note, is_large=True, is_first=True, began=now)
                self.memory.keep(note.token, note.to_text())
            if note.is_first:
                yield from self._first(note)
            else:
                self._keep((yield from self._again(note, now)), kept)

    # --- a small prefix ----------------------------------------------------------------------------------------------

    def _whole(self) -> Found | None:
        """Look at every object; None when there are too many for that."""
        found, keys = Found(), 0
        for page in self.listing.pages():
            keys += len(page)
            if keys > self.limits.whole:
                self._alike.clear()
                return None
            self._judge(page, found)
        return found

    def _judge(self, page: Iterable[ObjectFacts], found: Found) -> None:
        asked = []
        for facts in page:
            if self._alike.get(hash(facts.key)) == hash((facts.size, facts.etag)):
                found.seen += 1
                continue
            output = None if facts.key.endswith("/") else self.scan.output_of(facts.key[len(self.prefix) :])
            if output is not None:
                asked.append((facts, trigger_of_object(self.bucket, facts, output=output)))
        known = self.memory.known([trigger.uri for _, trigger in asked]) if asked else {}
        for facts, trigger in asked:
            before = known.get(trigger.uri)
            judge_object(facts, trigger, before, found, self.scan, oldest=self._oldest)
            if before == trigger.identity_key:
                self._alike[hash(facts.key)] = hash((facts.size, facts.etag))
        if len(self._alike) > 2 * self.limits.whole:  # most of them objects that are gone, or of a large prefix
            self._alike.clear()

    # --- a large one -------------------------------------------------------------------------------------------------

    def _first(self, note: ScanNote) -> Iterator[ScanResult]:
        """Look at everything; by name it is recorded as it is listed, and goes on there after a failure."""
        found, tails = Found(), _Tails(self.prefix, note)
        by_name = self.scan.order != "mtime"
        for number, page in enumerate(self.listing.pages(note.at or ""), start=1):
            self._judge(page, found)
            tails.extend(page)
            if by_name and page and number % _PAGES_A_BATCH == 0:
                yield found.result()
                found = Found()
                note = tails.noted(replace(note, at=page[-1].key))
                self.memory.keep(note.token, note.to_text())
        yield from found.batches()
        self._note = tails.noted(note.with_round_ended())
        self.memory.keep(note.token, self._note.to_text())

    def _again(self, note: ScanNote, now: float) -> Generator[ScanResult, None, ScanNote]:
        found, tails = Found(), _Tails(self.prefix, note)
        for taken in self._behind(tails):
            self._judge(taken, found)
            tails.extend(taken)
        superseded = self.memory.passed([TriggerStatus.SUPERSEDED], _HEADS)
        self._look({*self._waiting, *(address_of(uri)[1] for uri in superseded)}, found)
        note = tails.noted(note)
        if len(found.new) <= _TAIL_KEYS:
            note = self._slice(note, found, now)
        yield from found.batches()
        changed = [address_of(uri)[1] for uri, _, _ in found.changed] if self.scan.on_change == "halt" else []
        self._waiting = set(changed[:_HEADS])
        return note

    def _behind(self, tails: _Tails) -> list[list[ObjectFacts]]:
        """Return what comes after each tail up to the next known key, and what comes before the first folder."""
        starts = tails.starts()
        if len(starts) == 1:
            return [self._from(starts[0], tails)]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="list") as pool:
            return list(pool.map(lambda start: self._from(start, tails), starts))

    def _from(self, start: str, tails: _Tails) -> list[ObjectFacts]:
        taken: list[ObjectFacts] = []
        for page in self.listing.pages(start, _FIRST_PAGE):
            for facts in page:
                if tails.know(facts.key):
                    return taken
                taken.append(facts)
            if len(taken) >= _TAIL_KEYS:
                break
        return taken

    def _look(self, keys: Iterable[str], found: Found) -> None:
        heads = (self.listing.head(key) for key in sorted(keys) if key.startswith(self.prefix))
        self._judge([facts for facts in heads if facts is not None], found)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _slice(self, note: ScanNote, found: Found, now: float) -> ScanNote:
        """List some more of everything; return the note of how far it came."""
        began = self._monotonic()
        until = began + self._slices.next_seconds(began)
        if until == began:
            return note
        if note.at is None:
            if 0 <= now - note.began < self.limits.rest_seconds:
                return note
            note, self._round = replace(note, at="", began=now), _Tails(self.prefix)
        judged = {trigger.uri for trigger in found.new} | {uri for uri, _, _ in found.changed}
        pages = self.listing.pages(note.at or "")
        while self._monotonic() < until:
            page = next(pages, None)
            if page is None:
                return self._with_round_ended(note)
            self._judge((facts for facts in page if object_uri(self.bucket, facts.key) not in judged), found)
            if self._round is not None:
                self._round.extend(page)
            note = replace(note, at=page[-1].key) if page else note
        return note

    def _with_round_ended(self, note: ScanNote) -> ScanNote:
        """Return the note with the folders that there are, and small again if most keys are gone."""
        ended, counted = note.with_round_ended(), self._round
        self._round = None
        if counted is None:  # it began in another process
            return ended
        return replace(counted.noted(ended), is_large=counted.count > self.limits.whole // 2)

    def _keep(self, note: ScanNote, kept: ScanNote) -> None:
        self._note = note
        is_over = note.at is None or self._monotonic() - self._noted_at > _NOTE_SECONDS
        if note != kept and is_over:
            self._noted_at = self._monotonic()
            self.memory.keep(note.token, note.to_text())


class _Tails:
    """The greatest key of each folder directly below a prefix, "" for keys in none; of all, if there are many."""

    def __init__(self, prefix: str, note: ScanNote | None = None) -> None:
        self.prefix = prefix
        self.count = 0
        self._of = dict(note.tails) if note is not None else {}
        self._greatest = note.greatest if note is not None else ""
        self._are_many = bool(self._greatest) and not self._of

    def extend(self, facts: Sequence[ObjectFacts]) -> None:
        """Take keys that were listed."""
        self.count += len(facts)
        for key in (each.key for each in facts):
            self._greatest = max(self._greatest, key)
            if not self._are_many:
                folder = self._folder(key)
                self._of[folder] = max(self._of.get(folder, ""), key)
                self._are_many = len(self._of) > _TAILS
        if self._are_many:
            self._of = {}

    def know(self, key: str) -> bool:
        """Say whether a key is one that was listed, or sorts before one in its folder."""
        return key <= (self._greatest if self._are_many else self._of.get(self._folder(key), ""))

    def starts(self) -> list[str]:
        """Return the keys after which new ones are to be looked for."""
        return [self._greatest] if self._are_many else sorted({"", *self._of.values()})

    def noted(self, note: ScanNote) -> ScanNote:
        """Return a note with them."""
        return replace(note, tails=dict(self._of), greatest=self._greatest)

    def _folder(self, key: str) -> str:
        below = key[len(self.prefix) :]
        return below[: below.find("/") + 1]
