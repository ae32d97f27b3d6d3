"""Scan the same folder again and again: all of a small one each time, of a large one what can have changed (V42, I18).

A directory whose times, inode and device are what they were before its last listing is not listed again; one that was
touched within the last two seconds is not trusted, since a clock tick may hide a change. Rounds look at everything
else, slice by slice: what was rewritten in place, and what a file system with loose times did not tell.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path

from drainmark.jobs.operators.sources.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.runtime.scan.folder import (
    Found,
    LocalFile,
    ScanResult,
    Verdict,
    entries_of,
    judge,
    look_at,
    note_unlisted,
    path_of,
    readable,
    require_folder,
    uri_of,
    walk,
)
from drainmark.jobs.runtime.scan.index import ScanLimits, ScanMemory, ScanNote, SeenUris, Slices, in_batches, recalled

Stamp = tuple[int, int, int, int]
"""mtime_ns, ctime_ns, inode, device of a directory: no entry comes or goes without a trace, no `touch` hides it."""

_RACY_NS = 2_000_000_000  # the coarsest clock of a file system in use, FAT's
_CHUNK = 500
_LOOKED_AT = 20_000  # files that a scan looks at besides a round; beyond, known names are passed without a look
_PASSED = (TriggerStatus.SUPERSEDED, TriggerStatus.MISSING, TriggerStatus.REFUSED)
_PASSED_LIMIT = 300
_NOTE_SECONDS = 30.0
_END = object()


class FolderWatch:
    """All scans of one source's folder in this process.

    `batches` is used up or dropped: what a batch found is remembered when the next one is asked for, so the consumer
    records it before. Scans of several threads follow each other.
    """

    def __init__(
        self, folder: Path, scan: DirectoryScan, memory: ScanMemory,
        *, limits: ScanLimits | None = None, monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.scan = scan
        self.memory = memory
        self.limits = limits or ScanLimits()
        self._monotonic = monotonic
        self._recursive = scan.recursive or scan.outputs is not None
        self._oldest = scan.oldest()
        self._lock = threading.Lock()
        self._token = ""
        self._forget()

    def _forget(self) -> None:
        self._alike: dict[int, int] = {}  # hash of path -> hash of what stat said when the registry knew it so
        self._stamps: dict[str, Stamp | None] = {}
        self._waiting: set[str] = set()  # paths to be looked at by every scan: growing, or changed and not taken
        self._seen: SeenUris | None = None
        self._round: Iterator[None] | None = None
        self._round_entries = 0
        self._slices = Slices(self.limits)
        self._noted_at = -1e9

    def batches(self, now: float) -> Iterator[ScanResult]:
        """Scan once; yield what was found, new files in the order of the scan's rule.

        Args:
            now: seconds since 1970, against which `settle` is judged.

        Raises:
            UsageError: the folder does not exist or is none.
        """
        with self._lock:
            require_folder(self.folder)
            kept = note = recalled(self.memory, str(self.folder), self.scan)
            if note.token != self._token:
                self._forget()
                self._token = note.token
            if not note.is_large:
                found = self._whole(now)
                if found is not None:
                    yield found.result()
                    return
                note = replace(note, is_large=True, is_first=True)
            try:
                yield from self._large(note, kept, now)
            except BaseException:
                self._round = None  # its last slice may not have been recorded: it goes on where the note says
                raise

    # --- a small folder ----------------------------------------------------------------------------------------------

    def _whole(self, now: float) -> Found | None:
        """Look at every file; None when there are too many for that."""
        found, entries = Found(), 0
        for chunk in in_batches(walk(self.folder, found, recursive=self._recursive), _CHUNK):
            entries += len(chunk)
            if entries > self.limits.whole:
                self._alike.clear()
                return None
            self._look(chunk, found, now)
        return found

    def _look(self, paths: Iterable[tuple[str, str]], found: Found, now: float) -> list[LocalFile]:
        """Judge (path below the folder, path); return the files that need another look: growing, or changed."""
        files = []
        for relative, path in paths:
            if (alike := self._alike.get(hash(path))) is not None and alike == self._hash_of(path):
                found.seen += 1
                continue
            output = self.scan.output_of(readable(relative))
            file = None if output is None else look_at(path, output, found, follow_links=self.scan.follow_links)
            if file is not None:
                files.append(file)
        known = self.memory.known([file.uri for file in files]) if files else {}
        again = []
        for file in files:
            verdict = judge(file, known.get(file.uri), found, self.scan, now=now, oldest=self._oldest)
            if verdict is Verdict.KNOWN:
                self._alike[hash(file.path)] = _hash_of_facts(file.facts)
            elif verdict is Verdict.UNSETTLED or (verdict is Verdict.CHANGED and self.scan.on_change == "halt"):
                again.append(file)
        if len(self._alike) > 2 * self.limits.whole:  # most of them files that are gone, or of a large folder
            self._alike.clear()
        return again

    def _hash_of(self, path: str) -> int | None:
        try:
            return _hash_of_facts(os.stat(path, follow_symlinks=self.scan.follow_links))
        except OSError:
            return None

    # --- a large one -------------------------------------------------------------------------------------------------

    def _large(self, note: ScanNote, kept: ScanNote, now: float) -> Iterator[ScanResult]:
        found = Found()
        if not self._stamps:
            self._stamps = {str(self.folder): None, **self._kept_stamps()}
        listing = _Listing(self, found, now)
        listing.all_that_changed()
        listing.again()
        if not note.is_first and len(found.new) <= _LOOKED_AT:
            note = self._slice(note, listing, now)
        yield from found.batches()
        changed = self._remember(listing)
        self._keep(replace(note.with_round_ended(), began=now) if note.is_first else note, kept, changed)

    def _kept_stamps(self) -> dict[str, Stamp | None]:
        below = str(self.folder).rstrip("/") + "/"
        kept = {path_of(uri): text for uri, text in self.memory.directories().items()}
        return {path: _stamp_from(text) for path, text in kept.items() if f"{path}/".startswith(below)}

    def _remember(self, listing: _Listing) -> dict[str, str | None]:
        """Take over what a scan saw, now that what it found is recorded; return what of it is to be kept."""
        self._waiting = set(itertools.islice(listing.waiting, _LOOKED_AT))
        growing = {os.path.dirname(path) for path in listing.waiting}
        for path in listing.waiting - self._waiting:  # more than a scan looks at one by one: its directory is listed
            listing.stamps[os.path.dirname(path)] = None
        changed: dict[str, str | None] = {}
        for path, stamp in listing.stamps.items():
            self._stamps[path] = stamp
            # Only this process knows what grows there: another one is to list the directory.
            changed[uri_of(path)] = json.dumps(None if path in growing else stamp)
        for path in listing.gone:
            self._stamps.pop(path, None)
            changed[uri_of(path)] = None
        if self._seen is not None:
            self._seen.add(listing.decided)
        return changed

    def seen(self) -> SeenUris:
        """Return what the registry knows, by hash; read once a process."""
        if self._seen is None:
            self._seen = SeenUris(self.memory.hashes())
        return self._seen

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _slice(self, note: ScanNote, listing: _Listing, now: float) -> ScanNote:
        """Look at some more of everything; return the note of how far it came."""
        began = self._monotonic()
        until = began + self._slices.next_seconds(began)
        if until == began:
            return note
        if self._round is None:
            if note.at is None and 0 <= now - note.began < self.limits.rest_seconds:
                return note
            if note.at is None:
                note = replace(note, began=now, at="")
            self._began = note.began
            self._round_entries = 0 if not note.at else -1  # a round that began in another process counts no entries
            self._round = self._look_at_all(note.at or "")
        self._slicing = listing
        listing.leave_out_what_was_found()
        while self._monotonic() < until:
            if next(self._round, _END) is _END:
                self._round = None
                is_small = 0 <= self._round_entries <= self.limits.whole // 2
                return replace(note.with_round_ended(), began=self._began, is_large=not is_small)
        return replace(note, began=self._began, at=self._at)

    def _look_at_all(self, after: str) -> Iterator[None]:
        """List every directory after one, by path, and judge each file; a step is a chunk of one of them."""
        self._at = after
        for directory in sorted((path for path in self._stamps if uri_of(path) >= after), key=uri_of):
            self._at = uri_of(directory)
            try:
                for chunk in in_batches(entries_of(directory), _CHUNK):
                    self._slicing.judge_each(self._slicing.files_of(chunk))
                    if self._round_entries >= 0:
                        self._round_entries += len(chunk)
                    yield
            except OSError:
                continue  # gone, which its parent tells, or not to be listed, which its own listing told

    def _keep(self, note: ScanNote, kept: ScanNote, stamps: Mapping[str, str | None]) -> None:
        if not note.is_large:  # harmless whoever began anew meanwhile: of a small folder every scan looks at all
            self.memory.begin(note.to_text())
            self._forget()
            return
        is_over = note.at is None or self._monotonic() - self._noted_at > _NOTE_SECONDS
        is_due = note != kept and is_over
        self._noted_at = self._monotonic() if is_due else self._noted_at
        self.memory.keep(note.token, note.to_text() if is_due else None, stamps)


class _Listing:
    """One scan of a large folder on its way.

    Attributes:
        stamps: of directories that were listed whole; None where the next scan is to list it again.
        decided: hashes of the uris that need no more looking at, once they are recorded.
    """

    def __init__(self, watch: FolderWatch, found: Found, now: float) -> None:
        self.watch = watch
        self.found = found
        self.now = now
        self.stamps: dict[str, Stamp | None] = {}
        self.gone: list[str] = []
        self.waiting: set[str] = set()
        self.decided = array("q")
        self.found_before: set[str] = set()
        self._root = str(watch.folder)
        self._room = _LOOKED_AT

    def all_that_changed(self) -> None:
        """List each directory that is not what it was, and all that is new below it."""
        known = self.watch._stamps
        left = list(known)
        while left:
            directory = left.pop()
            try:
                stamp = _stamp_of(directory, follow=directory == self._root)
            except OSError as error:
                self._leave(directory, error)
                continue
            if stamp is None:
                self.gone += [directory] * (directory != self._root)
            elif stamp != known.get(directory):
                left += self._list(directory, stamp)

    def _list(self, directory: str, stamp: Stamp) -> list[str]:
        """Judge what is in a directory; return the directories in it that nobody knew."""
        new: list[str] = []
        try:
            for chunk in in_batches(entries_of(directory), _CHUNK):
                self._judge_unseen(self.files_of(chunk, new))
        except OSError as error:
            self._leave(directory, error)
            return new
        is_quiet = self.now * 1e9 - max(stamp[:2]) >= _RACY_NS
        self.stamps[directory] = stamp if is_quiet else None
        return new

    def _leave(self, directory: str, error: OSError) -> None:
        """Have the next scan list a directory: that it could not be listed now says nothing of what is in it."""
        note_unlisted(directory, error, self.found)
        self.stamps[directory] = None

    def files_of(self, entries: Iterable[os.DirEntry[str]], new: list[str] | None = None) -> list[str]:
        """Return the paths of what is no directory; directories that nobody knew are noted, and put into `new`."""
        files = []
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                files.append(entry.path)
            elif self.watch._recursive and entry.path not in self.watch._stamps and entry.path not in self.stamps:
                self.stamps[entry.path] = None
                if new is not None:
                    new.append(entry.path)
        return files

    def _judge_unseen(self, paths: list[str]) -> None:
        """Judge files, all of them while they are few; known names are passed then."""
        if self._room < len(paths):
            of_uri = {uri_of(path): path for path in paths}
            paths = [of_uri[uri] for uri in self.watch.seen().unseen(list(of_uri))]
        self._room -= len(paths)
        self._look(paths)

    def judge_each(self, paths: list[str]) -> None:
        """Judge files, but for those that this scan found already."""
        self._look([path for path in paths if path not in self.found_before])

    def _look(self, paths: list[str]) -> None:
        below = len(self._root.rstrip("/")) + 1
        again = self.watch._look([(path[below:], path) for path in paths], self.found, self.now)
        undecided = {file.path for file in again}
        self.waiting |= undecided
        if self.watch._seen is not None:
            self.decided.extend(hash(uri_of(path)) for path in paths if path not in undecided)

    def again(self) -> None:
        """Look at what grew, or was left, when it was last seen: no directory tells of that."""
        passed = map(path_of, self.watch.memory.passed(_PASSED, _PASSED_LIMIT))
        below = self._root.rstrip("/") + "/"
        paths = {path for path in (*self.watch._waiting, *passed) if path.startswith(below)}
        if paths:
            self.leave_out_what_was_found(paths)
            self._look(sorted(path for path in paths - self.found_before if os.path.lexists(path)))

    def leave_out_what_was_found(self, among: Set[str] | None = None) -> None:
        """Judge nothing a second time in this scan."""
        found = (path_of(trigger.uri) for trigger in self.found.new)
        self.found_before = self.waiting | {path_of(uri) for uri, _, _ in self.found.changed}
        self.found_before.update(path for path in found if among is None or path in among)


def _stamp_of(directory: str, *, follow: bool) -> Stamp | None:
    """Return what a directory looks like; None where it is none (any more).

    Raises:
        OSError: nobody knows now.
    """
    try:
        facts = os.stat(directory, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISDIR(facts.st_mode):
        return None
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, facts.st_dev


def _stamp_from(text: str) -> Stamp | None:
    """Return a stamp that was kept; None of a directory that is known and to be listed."""
    numbers = json.loads(text)
    return None if numbers is None else (numbers[0], numbers[1], numbers[2], numbers[3])


def _hash_of_facts(facts: os.stat_result) -> int:
    # With the time of the inode: permissions are part of what a scan judges.
    return hash((facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino))
