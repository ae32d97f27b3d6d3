"""Scan a folder for triggers: what is there, what is new, what changed (V42, E24, I1–I17).

Never reads a file's content, and follows no link unless the source says so; the result depends on names and stat only.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from drainmark.jobs.errors import UsageError
from drainmark.jobs.operators.sources.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.triggers import AGAIN, VERSION, NewTrigger
from drainmark.jobs.runtime.scan.order import InOrder

KEPT = 50_000
"""New files that a `ScanResult` holds: about 50 MB. What more there is went into the registry batch by batch."""

IS_LINK = "is a symbolic link, and links are followed with follow_links=True at the source alone"

_FILE_SCHEME = "file://"
_ENCODED = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """What one scan of a folder found.

    Attributes:
        new: files never seen, in the order of the scan's rule; of a scan that found more, the first `KEPT`.
        changed: (uri, known identity key, new trigger) of files that are not what they were.
        unsettled: files left alone because they changed within `settle` seconds.
        refused: (uri, reason) of what is no readable file: directories, pipes, links, no permission.
        seen: files that were looked at; an incremental scan leaves out what cannot have changed.
        beyond: files never seen that are not in `new`.
    """

    new: tuple[NewTrigger, ...] = ()
    changed: tuple[tuple[str, str, NewTrigger], ...] = ()
    unsettled: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    seen: int = 0
    beyond: int = 0

    @property
    def new_count(self) -> int:
        """How many files were never seen."""
        return len(self.new) + self.beyond

    def with_batch(self, batch: ScanResult) -> ScanResult:
        """Return this result and the next batch of the same scan as one."""
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
    """A scan on its way; new files are put in order on a disk where they are many."""

    new: InOrder = field(default_factory=InOrder)
    changed: list[tuple[str, str, NewTrigger]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    unsettled: int = 0
    seen: int = 0

    def result(self) -> ScanResult:
        """Return what was found, new files in their order."""
        return replace(self.rest(), new=tuple(self.new))

    def batches(self, size: int = 5000) -> Iterator[ScanResult]:
        """Yield the same, at most `size` new files at a time; the last result holds all else."""
        ordered = iter(self.new)
        for _ in range(len(self.new) // size):
            yield ScanResult(new=tuple(itertools.islice(ordered, size)))
        yield replace(self.rest(), new=tuple(ordered))

    def rest(self) -> ScanResult:
        """Return what was found besides new files."""
        return ScanResult(
            changed=tuple(self.changed), unsettled=self.unsettled, refused=tuple(self.refused), seen=self.seen
        )


def scan_folder(
    folder: Path,
    scan: DirectoryScan,
    known: Mapping[str, str],
    *,
    now: float,
) -> ScanResult:
    """Scan a folder once.

    Args:
        known: uri to identity key of every trigger of the region.
        now: seconds since 1970, against which `settle` is judged.

    Raises:
        UsageError: the folder does not exist or is none.
    """
    require_folder(folder)
    found = Found()
    oldest = scan.oldest()
    for relative, path in walk(folder, found, recursive=scan.recursive or scan.outputs is not None):
        output = scan.output_of(readable(relative))
        file = None if output is None else look_at(path, output, found, follow_links=scan.follow_links)
        if file is not None:
            judge(file, known.get(file.uri), found, scan, now=now, oldest=oldest)
    return found.result()


def require_folder(folder: Path) -> None:
    """Refuse what is no folder.

    Raises:
        UsageError: always then.
    """
    if not folder.is_dir():
        msg = f"the folder to scan does not exist: {folder}"
        raise UsageError(msg, remedy="create it, or give another one with --input")


class LocalFile(NamedTuple):
    """A regular file that may be read, as `os.stat` describes it."""

    path: str
    uri: str
    output: str
    facts: os.stat_result


def look_at(path: str, output: str, found: Found, *, follow_links: bool) -> LocalFile | None:
    """Return the file at a path; what is no readable file is noted as refused."""
    uri = uri_of(path)
    facts = facts_of(path, follow_links=follow_links)
    if isinstance(facts, str):
        found.refused.append((uri, facts))
        return None
    return LocalFile(path, uri, output, facts)


def facts_of(path: str, *, follow_links: bool) -> os.stat_result | str:
    """Return what is known of a regular file that may be read, or why it is none."""
    try:
        facts = os.stat(path, follow_symlinks=follow_links)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if stat.S_ISLNK(facts.st_mode):
        return IS_LINK
    if not stat.S_ISREG(facts.st_mode):
        return "is no regular file"
    return facts if os.access(path, os.R_OK) else "no permission to read"


class Verdict(Enum):
    """What a scan makes of a file."""

    KNOWN = "known"
    OLD = "old"
    UNSETTLED = "unsettled"
    CHANGED = "changed"
    NEW = "new"


def judge(
    file: LocalFile, before: str | None, found: Found, scan: DirectoryScan, *, now: float, oldest: float | None
) -> Verdict:
    """Note what a file is.

    Args:
        before: file key of the newest input at its uri, None where there is none.
        oldest: `scan.oldest()`.
    """
    facts = file.facts
    found.seen += 1
    identity = identity_of(facts)
    key = identity_key(identity)
    if before == key:
        return Verdict.KNOWN
    if oldest is not None and facts.st_mtime < oldest and before is None:
        return Verdict.OLD
    if now - facts.st_mtime < scan.settle:
        found.unsettled += 1
        return Verdict.UNSETTLED
    trigger = NewTrigger(
        uri=file.uri, output=file.output, identity=identity, identity_key=key, size_bytes=facts.st_size
    )
    if before is not None:
        found.changed.append((file.uri, before, trigger))
        return Verdict.CHANGED
    found.new.add((facts.st_mtime_ns if scan.order == "mtime" else 0, readable(file.path)), trigger)
    return Verdict.NEW


def walk(folder: Path, found: Found, *, recursive: bool) -> Iterator[tuple[str, str]]:
    """Yield (path below the folder, path) of every entry that is no directory, links as they are named.

    A directory that goes while it is walked is no error; one that cannot be listed is noted as refused.

    Raises:
        OSError: the folder itself cannot be listed.
    """
    stack = [("", str(folder))]
    while stack:
        prefix, directory = stack.pop()
        try:
            for entry in entries_of(directory):
                relative = f"{prefix}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if recursive:
                        stack.append((f"{relative}/", entry.path))
                else:
                    yield relative, entry.path
        except OSError as error:
            if not prefix:
                raise
            note_unlisted(directory, error, found)


def entries_of(directory: str) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a directory, in no order."""
    with os.scandir(directory) as entries:
        yield from entries


def note_unlisted(directory: str, error: OSError, found: Found) -> None:
    """Note a directory that could not be listed as refused, unless it is gone."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        found.refused.append((uri_of(directory), f"cannot be listed: {error.strerror}"))


def identity_of(facts: os.stat_result) -> dict[str, Any]:
    """Return the identity of a local file: size, mtime_ns, inode (H24)."""
    return {"size": facts.st_size, "mtime_ns": facts.st_mtime_ns, "inode": facts.st_ino}


def identity_key(identity: Mapping[str, Any]) -> str:
    """Return the identity as one text; see `file_key`."""
    file = {name: value for name, value in identity.items() if name not in (AGAIN, VERSION)}
    text = _ENCODED(file)
    return f"{text}#{identity[AGAIN]}" if AGAIN in identity else text


def uri_of(path: str) -> str:
    """Return a file's path as text that any store can hold: as it is, or percent-encoded where it is no UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return _FILE_SCHEME + urllib.parse.quote(os.fsencode(path))
    return path


def path_of(uri: str) -> str:
    """Return the path that a uri stands for, usable with `open`."""
    if uri.startswith(_FILE_SCHEME):
        return os.fsdecode(urllib.parse.unquote_to_bytes(uri[len(_FILE_SCHEME) :]))
    return uri


def readable(name: str) -> str:
    """Return a name as text that can be shown and compared, whatever its bytes are."""
    return name.encode(errors="surrogateescape").decode(errors="replace")
