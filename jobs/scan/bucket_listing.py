"""The listing of a prefix of a bucket, for a scanner.

Keys are listed in their order, a thousand per request. For a large prefix, each scan lists the keys after the greatest
known key of every folder directly below the prefix (of all, if there are many), so it finds new folders, and names that
rise with time. The scanner's rounds find keys that sort before known ones, and objects that replaced others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.addresses import address_of, object_uri, prefix_of
from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.scan.bucket_objects import (
    is_marker,
    may_be_altered,
    refusal_of,
    trigger_of_object,
)
from drainmark.jobs.scan.findings import Candidate, Passed, ScanFindings
from drainmark.jobs.scan.index import ScanNote
from drainmark.jobs.tasks.buckets import ObjectFacts

_TAILS = 64  # with more folders, a scan does not list each of them
_AT_ONCE = 16
_FIRST_PAGE = 100  # keys of a tail, which mostly has nothing new
_TAIL_KEYS = 20_000  # after so many keys, a scan leaves a tail
_PAGES_A_BATCH = 5
_HEADS = 20


class Objects(Protocol):
    """The objects below a prefix in a store."""

    def pages(self, start_after: str = "", first_page: int = ...) -> Iterator[Sequence[ObjectFacts]]:
        """Yield all objects with keys that sort after a key, in the order of the keys; an error ends the scan."""

    def head(self, key: str) -> ObjectFacts | None:
        """Return the facts of an object; None if there is none."""


class PrefixListing:
    """The objects below a prefix; an entry is the facts about one object.

    A put is atomic: an object is there whole or not at all. An empty object whose key ends in a slash marks a folder.
    Objects that nobody can fetch under the key that is listed, or whose key ends in a slash, are refused.
    """

    settles = False
    passed: Passed = ((TriggerStatus.SUPERSEDED, TriggerStatus.MISSING), _HEADS)

    def __init__(self, location: str, scan: DirectoryScan, objects: Objects) -> None:
        self.location = location
        self._bucket, self._prefix = prefix_of(location)
        self._scan = scan
        self._objects = objects
        self.forget()

    def forget(self) -> None:
        self._tails = _Tails(self._prefix)
        self._round: _Tails | None = None
        self._refused: dict[ObjectFacts, str] = {}  # so that each scan does not ask for them again

    def require(self) -> None:
        """Accept every prefix: one without objects is empty."""

    # --- entries -----------------------------------------------------------------------------------------------------

    def key_of(self, entry: ObjectFacts) -> str:
        return entry.key

    def key_at(self, uri: str) -> str:
        return address_of(uri)[1]

    def stamp_of(self, entry: ObjectFacts) -> int | None:
        return hash((entry.size, entry.etag))

    def candidate(self, entry: ObjectFacts, found: ScanFindings) -> Candidate | None:
        if is_marker(entry):
            return None
        output = self._scan.output_of(entry.key[len(self._prefix) :].rstrip("/"))
        if output is None:
            return None
        if reason := self._refused.get(entry) or refusal_of(entry, self._objects.head):
            self._refused[entry] = reason
            found.refused.append((object_uri(self._bucket, entry.key), reason))
            return None
        trigger = trigger_of_object(self._bucket, entry, output=output)
        place = (entry.modified if self._scan.order == "mtime" else 0, entry.key)
        return Candidate(entry.key, hash((entry.size, entry.etag)), entry.modified, entry.modified, place, trigger)

    def entries_of(self, keys: Iterable[str]) -> list[ObjectFacts]:
        heads = (self._objects.head(key) for key in keys if key.startswith(self._prefix))
        return [facts for facts in heads if facts is not None]

    # --- listings ----------------------------------------------------------------------------------------------------

    def everything(self, found: ScanFindings) -> Iterator[Sequence[ObjectFacts]]:
        yield from self._objects.pages()

    def first(self, note: ScanNote, found: ScanFindings) -> Iterator[tuple[Sequence[ObjectFacts], str | None]]:
        """Yield all objects. If the order is by name, some pages have the key to continue after if the scan fails."""
        self._tails = _Tails(self._prefix, note)
        by_name = self._scan.order != "mtime"
        for number, page in enumerate(self._objects.pages(note.at or ""), start=1):
            self._tails.extend(page)
            yield page, _last_key(page) if by_name and number % _PAGES_A_BATCH == 0 else None

    def news(self, note: ScanNote, found: ScanFindings) -> Iterator[Sequence[ObjectFacts]]:
        """Yield the objects after each tail up to the next known key, and the objects before the first folder."""
        self._tails = _Tails(self._prefix, note)
        starts = self._tails.starts()
        if len(starts) == 1:
            behind = [self._from(starts[0])]
        else:
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="list") as pool:
                behind = list(pool.map(self._from, starts))
        judged: set[str] = set()
        for taken in behind:
            self._tails.extend(taken)
            yield [facts for facts in taken if facts.key not in judged]
            judged.update(facts.key for facts in taken)  # without a known key in between, starts may overlap

    def _from(self, start: str) -> list[ObjectFacts]:
        taken: list[ObjectFacts] = []
        for page in self._objects.pages(start, _FIRST_PAGE):
            for facts in page:
                if self._tails.know(facts.key):
                    return taken
                taken.append(facts)
            if len(taken) >= _TAIL_KEYS:
                break
        return taken

    def rest(self, after: str) -> Iterator[tuple[str, Sequence[ObjectFacts]]]:
        self._round = _Tails(self._prefix)
        for page in self._objects.pages(after):
            self._round.extend(page)
            after = _last_key(page) or after  # a page of folders only is empty, but not the last page
            yield after, page

    # --- memory ------------------------------------------------------------------------------------------------------

    def noted(self, note: ScanNote, *, is_round_over: bool = False) -> ScanNote:
        """Return a note with the tails; after a round, with those of the folders that still exist."""
        tails = self._round if is_round_over and self._round is not None else self._tails
        return tails.noted(note)

    def recorded(self, waiting: Collection[str]) -> tuple[set[str], dict[str, str | None]]:
        return set(sorted(waiting)[:_HEADS]), {}


def _last_key(page: Sequence[ObjectFacts]) -> str | None:
    """Return the last key of a page from which a listing can go on: one that the server has not altered."""
    return next((facts.key for facts in reversed(page) if not may_be_altered(facts.key)), None)


class _Tails:
    """The greatest key of each folder directly below a prefix ("" for keys in no folder); of all, if there are many."""

    def __init__(self, prefix: str, note: ScanNote | None = None) -> None:
        self.prefix = prefix
        self._of = dict(note.tails) if note is not None else {}
        self._greatest = note.greatest if note is not None else ""
        self._are_many = bool(self._greatest) and not self._of

    def extend(self, facts: Sequence[ObjectFacts]) -> None:
        """Add keys that were listed."""
        for key in (each.key for each in facts if not may_be_altered(each.key)):
            self._greatest = max(self._greatest, key)
            if not self._are_many:
                folder = self._folder(key)
                self._of[folder] = max(self._of.get(folder, ""), key)
                self._are_many = len(self._of) > _TAILS
        if self._are_many:
            self._of = {}

    def know(self, key: str) -> bool:
        """Say whether a key was listed, or sorts before a listed key of its folder."""
        return key <= (self._greatest if self._are_many else self._of.get(self._folder(key), ""))

    def starts(self) -> list[str]:
        """Return the keys after which a scan looks for new ones."""
        return [self._greatest] if self._are_many else sorted({"", *self._of.values()})

    def noted(self, note: ScanNote) -> ScanNote:
        """Return a note with the tails."""
        return replace(note, tails=dict(self._of), greatest=self._greatest)

    def _folder(self, key: str) -> str:
        below = key[len(self.prefix) :]
        return below[: below.find("/") + 1]
