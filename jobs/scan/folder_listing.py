"""The listing of a folder, for a scanner.

A directory is not listed again if its times, inode and device are the same as before its last listing. One that was
touched within the last two seconds is not trusted, since a clock tick may hide a change. No directory shows files that
were rewritten in place, and a file system with inexact times shows less: the scanner's rounds find these changes.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.triggers import NewTrigger, TriggerStatus
from drainmark.jobs.scan.findings import Candidate, Passed, ScanFindings
from drainmark.jobs.scan.folder import (
    entries_of,
    facts_of,
    identity_key,
    identity_of,
    note_unlisted,
    path_of,
    readable,
    require_folder,
    uri_of,
    walk,
)
from drainmark.jobs.scan.index import ScanMemory, ScanNote, SeenUris, in_batches

Stamp = tuple[int, int, int, int]
"""mtime_ns, ctime_ns, inode, device of a directory: each new or deleted entry changes it, and no `touch` hides that."""

_RACY_NS = 2_000_000_000  # the coarsest clock of a file system in use, FAT's
_CHUNK = 500
_LOOKED_AT = 20_000  # files that a scan looks at besides a round; if there are more, it skips known names


class FolderListing:
    """The files below a folder; an entry is a path.

    Args:
        memory: of known files, for folders that are too large to look at each file.
    """

    settles = True
    passed: Passed = ((TriggerStatus.SUPERSEDED, TriggerStatus.MISSING, TriggerStatus.REFUSED), 300)

    def __init__(self, folder: Path, scan: DirectoryScan, memory: ScanMemory | None = None) -> None:
        self.folder = folder
        self.location = str(folder)
        self._scan = scan
        self._memory = memory
        self._below = len(self.location.rstrip("/")) + 1
        self._recursive = scan.recursive or scan.outputs is not None
        self.forget()

    def forget(self) -> None:
        self._stamps: dict[str, Stamp | None] = {}  # of directories that were listed; None: to be listed again
        self._seen: SeenUris | None = None
        self._begin()

    def _begin(self) -> None:
        self._listed: dict[str, Stamp | None] = {}
        self._gone: list[str] = []
        self._asked = array("q")
        self._room = _LOOKED_AT

    def require(self) -> None:
        require_folder(self.folder)

    # --- entries -----------------------------------------------------------------------------------------------------

    def key_of(self, entry: str) -> str:
        return entry

    def key_at(self, uri: str) -> str:
        return path_of(uri)

    def stamp_of(self, entry: str) -> int | None:
        try:
            return _hash_of(os.stat(entry, follow_symlinks=self._scan.follow_links))
        except OSError:
            return None

    def candidate(self, entry: str, found: ScanFindings) -> Candidate | None:
        output = self._scan.output_of(readable(entry[self._below :]))
        if output is None:
            return None
        uri, facts = uri_of(entry), facts_of(entry, follow_links=self._scan.follow_links)
        if isinstance(facts, str):
            found.refused.append((uri, facts))
            return None
        identity = identity_of(facts)
        trigger = NewTrigger(
            uri=uri, output=output, identity=identity, identity_key=identity_key(identity), size_bytes=facts.st_size
        )
        place = (facts.st_mtime_ns if self._scan.order == "mtime" else 0, readable(entry))
        return Candidate(entry, _hash_of(facts), facts.st_mtime, facts.st_ctime, place, trigger)

    def entries_of(self, keys: Iterable[str]) -> list[str]:
        below = self.location.rstrip("/") + "/"
        found = [key for key in keys if key.startswith(below) and os.path.lexists(key)]
        self._note_asked(found)
        return found

    # --- listings ----------------------------------------------------------------------------------------------------

    def everything(self, found: ScanFindings) -> Iterator[Sequence[str]]:
        yield from in_batches(walk(self.folder, found, recursive=self._recursive), _CHUNK)

    def first(self, note: ScanNote, found: ScanFindings) -> Iterator[tuple[Sequence[str], str | None]]:
        yield from ((paths, None) for paths in self.news(note, found))

    def news(self, note: ScanNote, found: ScanFindings) -> Iterator[Sequence[str]]:
        """Yield the files of each directory that has changed, and of all new directories below it."""
        self._begin()
        if not self._stamps:
            self._stamps = {self.location: None, **self._kept_stamps()}
        left = list(self._stamps)
        while left:
            directory = left.pop()
            try:
                stamp = _stamp_of(directory, follow=directory == self.location)
                if stamp is None:
                    self._gone += [directory] * (directory != self.location)
                elif stamp != self._stamps.get(directory):
                    for chunk in in_batches(entries_of(directory), _CHUNK):
                        files, new = self._files_of(chunk)
                        left += new
                        yield self._unseen(files)
                    is_quiet = found.now * 1e9 - max(stamp[:2]) >= _RACY_NS
                    self._listed[directory] = stamp if is_quiet else None
            except OSError as error:  # the error says nothing about the entries: list it again next time
                note_unlisted(directory, error, found)
                self._listed[directory] = None

    def rest(self, after: str) -> Iterator[tuple[str, Sequence[str]]]:
        first, _, passed = after.partition("\0")
        for directory in sorted((path for path in self._stamps if uri_of(path) >= first), key=uri_of):
            done = int(passed or 0) if uri_of(directory) == first else 0
            try:
                for chunk in in_batches(itertools.islice(entries_of(directory), done, None), _CHUNK):
                    done += len(chunk)
                    files, _ = self._files_of(chunk)
                    self._note_asked(files)
                    yield f"{uri_of(directory)}\0{done}", files
            except OSError:
                continue  # gone, which its parent's listing shows, or unreadable, which `news` has noted

    def _files_of(self, entries: Iterable[os.DirEntry[str]]) -> tuple[list[str], list[str]]:
        """Return the paths of entries that are no directories, and the paths of new directories."""
        files, new = [], []
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                files.append(entry.path)
            elif self._recursive and entry.path not in self._stamps and entry.path not in self._listed:
                self._listed[entry.path] = None
                new.append(entry.path)
        return files, new

    def _unseen(self, paths: list[str]) -> list[str]:
        """Return the files to judge: all of them while they are few, then only those with unknown names."""
        if self._room < len(paths) and self._memory is not None:
            if self._seen is None:
                self._seen = SeenUris(self._memory.hashes())
            of_uri = {uri_of(path): path for path in paths}
            paths = [of_uri[uri] for uri in self._seen.unseen(list(of_uri))]
        self._room -= len(paths)
        self._note_asked(paths)
        return paths

    def _note_asked(self, paths: Iterable[str]) -> None:
        if self._seen is not None:
            self._asked.extend(hash(uri_of(path)) for path in paths)

    # --- memory ------------------------------------------------------------------------------------------------------

    def _kept_stamps(self) -> dict[str, Stamp | None]:
        if self._memory is None:
            return {}
        below = self.location.rstrip("/") + "/"
        kept = {path_of(uri): text for uri, text in self._memory.directories().items()}
        return {path: _stamp_from(text) for path, text in kept.items() if f"{path}/".startswith(below)}

    def noted(self, note: ScanNote, *, is_round_over: bool = False) -> ScanNote:
        return note

    def recorded(self, waiting: Collection[str]) -> tuple[set[str], dict[str, str | None]]:
        looked_at = set(itertools.islice(waiting, _LOOKED_AT))
        growing = {os.path.dirname(path) for path in waiting}
        for path in waiting:
            if path not in looked_at:  # more than a scan looks at one by one: list the directory again
                self._listed[os.path.dirname(path)] = None
        # Only this process knows the growing files of a directory: another process must list it.
        stamps: dict[str, str | None] = {
            uri_of(path): json.dumps(None if path in growing else stamp) for path, stamp in self._listed.items()
        }
        self._stamps |= self._listed
        for path in self._gone:
            self._stamps.pop(path, None)
            stamps[uri_of(path)] = None
        if self._seen is not None:
            undecided = {hash(uri_of(path)) for path in waiting}
            self._seen.add(array("q", (each for each in self._asked if each not in undecided)))
        self._begin()
        return looked_at, stamps


def _stamp_of(directory: str, *, follow: bool) -> Stamp | None:
    """Return the stamp of a directory; None if the path is no directory (any more).

    Raises:
        OSError: the path cannot be examined now.
    """
    try:
        facts = os.stat(directory, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISDIR(facts.st_mode):
        return None
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, facts.st_dev


def _stamp_from(text: str) -> Stamp | None:
    """Return a stamp that was kept; None for a known directory that must be listed again."""
    numbers = json.loads(text)
    return None if numbers is None else (numbers[0], numbers[1], numbers[2], numbers[3])


def _hash_of(facts: os.stat_result) -> int:
    # ctime is included, because a scan also judges permissions.
    return hash((facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino))
