"""Scan a folder for triggers: what is there, what is new, what changed (V42, E24, I1–I17).

Never reads a file's content and never follows a link out of the folder; the result depends on names and stat only.
"""

from __future__ import annotations

import json
import os
import stat
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.errors import UsageError
from jobs.operators.directory_scan import DirectoryScan
from jobs.protocol.triggers import AGAIN, VERSION, NewTrigger

_FILE_SCHEME = "file://"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """What one scan of a folder found.

    Attributes:
        new: files never seen, in the order of the scan's rule.
        changed: (uri, known identity key, new trigger) of files that are not what they were.
        unsettled: files left alone because they changed within `settle` seconds.
        refused: (uri, reason) of what is no readable file: directories, pipes, links out of the folder, no permission.
    """

    new: tuple[NewTrigger, ...] = ()
    changed: tuple[tuple[str, str, NewTrigger], ...] = ()
    unsettled: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    seen: int = 0


@dataclass(slots=True)
class Found:
    """A scan on its way; `new` holds (place in the order, trigger)."""

    new: list[tuple[Any, NewTrigger]] = field(default_factory=list)
    changed: list[tuple[str, str, NewTrigger]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    unsettled: int = 0
    seen: int = 0

    def result(self) -> ScanResult:
        """Return what was found, new files in their order."""
        self.new.sort(key=lambda item: item[0])
        return ScanResult(
            new=tuple(trigger for _, trigger in self.new),
            changed=tuple(self.changed),
            unsettled=self.unsettled,
            refused=tuple(self.refused),
            seen=self.seen,
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
    if not folder.is_dir():
        msg = f"the folder to scan does not exist: {folder}"
        raise UsageError(msg, remedy="create it, or give another one with --input")
    found = Found()
    oldest = scan.oldest()
    for relative, path in _walk(folder, recursive=scan.recursive or scan.outputs is not None):
        output = scan.output_of(_text(relative))
        if output is not None:
            _judge(path, output, known, found, now=now, settle=scan.settle, oldest=oldest, scan=scan)
    return found.result()


def _judge(
    path: str,
    output: str,
    known: Mapping[str, str],
    found: Found,
    *,
    now: float,
    settle: float,
    oldest: float | None,
    scan: DirectoryScan,
) -> None:
    uri = uri_of(path)
    try:
        facts = os.stat(path)
    except OSError as error:
        found.refused.append((uri, f"cannot be read: {error.strerror}"))
        return
    if not stat.S_ISREG(facts.st_mode):
        found.refused.append((uri, "is no regular file"))
        return
    if not os.access(path, os.R_OK):
        found.refused.append((uri, "no permission to read"))
        return
    found.seen += 1
    identity = identity_of(facts)
    key = identity_key(identity)
    before = known.get(uri)
    if before == key or (oldest is not None and facts.st_mtime < oldest and before is None):
        return
    if now - facts.st_mtime < settle:
        found.unsettled += 1
        return
    trigger = NewTrigger(uri=uri, output=output, identity=identity, identity_key=key, size_bytes=facts.st_size)
    if before is None:
        name = _text(path)
        found.new.append(((facts.st_mtime_ns, name) if scan.order == "mtime" else (0, name), trigger))
    else:
        found.changed.append((uri, before, trigger))


def _walk(folder: Path, *, recursive: bool) -> Iterator[tuple[str, str]]:
    """Yield (path below the folder, path) of every entry that is no directory, links as they are named."""
    stack = [("", str(folder))]
    while stack:
        prefix, directory = stack.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                relative = f"{prefix}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if recursive:
                        stack.append((f"{relative}/", entry.path))
                else:
                    yield relative, entry.path


def identity_of(facts: os.stat_result) -> dict[str, Any]:
    """Return the identity of a local file: size, mtime_ns, inode (H24)."""
    return {"size": facts.st_size, "mtime_ns": facts.st_mtime_ns, "inode": facts.st_ino}


def identity_key(identity: Mapping[str, Any]) -> str:
    """Return the identity as one text; see `file_key`."""
    file = {name: value for name, value in identity.items() if name not in (AGAIN, VERSION)}
    text = json.dumps(file, sort_keys=True, separators=(",", ":"))
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


def _text(name: str) -> str:
    return name.encode(errors="surrogateescape").decode(errors="replace")
