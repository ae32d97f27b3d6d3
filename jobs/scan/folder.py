"""Files of a folder: their names as uris, and their facts from `stat`.

Nothing here reads a file's content, or follows a link unless the source says so.
"""

from __future__ import annotations

import json
import os
import stat
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drainmark.jobs.errors import UsageError
from drainmark.jobs.errors.machine_faults import require_gone
from drainmark.jobs.protocol.records.triggers import AGAIN, BACK, VERSION
from drainmark.jobs.scan.findings import ScanFindings

IS_LINK = "is a symbolic link, and links are followed with follow_links=True at the source alone"

_FILE_SCHEME = "file://"
_ENCODED = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def require_folder(folder: Path) -> None:
    """Check that a folder exists.

    Raises:
        UsageError: the folder does not exist, or is no folder.
    """
    if not folder.is_dir():
        msg = f"the folder to scan does not exist: {folder}"
        moved = "if it was moved, move it back: at another path its files count once more"
        raise UsageError(msg, remedy=f"create it; {moved}; or read another folder: --input PATH")


def facts_of(path: str, *, follow_links: bool) -> os.stat_result | str:
    """Return the `stat` facts of a regular file that may be read, or the reason why the path is none."""
    try:
        facts = os.stat(path, follow_symlinks=follow_links)
    except OSError as error:
        require_gone(error)
        return f"cannot be read: {error.strerror}"
    if stat.S_ISLNK(facts.st_mode):
        return IS_LINK
    if not stat.S_ISREG(facts.st_mode):
        return "is no regular file"
    return facts if os.access(path, os.R_OK) else "no permission to read"


def walk(folder: Path, found: ScanFindings, *, recursive: bool) -> Iterator[str]:
    """Yield the path of every entry that is no directory; links are not resolved.

    A directory that vanishes during the walk is no error; one that cannot be listed is noted as refused.

    Raises:
        OSError: the folder itself cannot be listed.
    """
    stack = [str(folder)]
    while stack:
        directory = stack.pop()
        try:
            for entry in entries_of(directory):
                if not entry.is_dir(follow_symlinks=False):
                    yield entry.path
                elif recursive:
                    stack.append(entry.path)
        except OSError as error:
            if directory == str(folder):
                raise
            note_unlisted(directory, error, found)


def entries_of(directory: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory, in no order."""
    with os.scandir(directory) as entries:
        yield from entries


def note_unlisted(directory: str, error: OSError, found: ScanFindings) -> None:
    """Note a directory that could not be listed as refused, unless it is gone."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        found.refused.append((uri_of(directory), f"cannot be listed: {error.strerror}"))


def identity_of(facts: os.stat_result) -> dict[str, Any]:
    """Return the identity of a local file: size, mtime_ns, inode."""
    return {"size": facts.st_size, "mtime_ns": facts.st_mtime_ns, "inode": facts.st_ino}


def identity_key(identity: Mapping[str, Any]) -> str:
    """Return the identity as one text; see `file_key`."""
    file = {name: value for name, value in identity.items() if name not in (AGAIN, BACK, VERSION)}
    again = f"#{identity[AGAIN]}" if AGAIN in identity else ""
    back = f"#{BACK}{identity[BACK]}" if BACK in identity else ""
    return f"{_ENCODED(file)}{back}{again}"


def uri_of(path: str) -> str:
    """Return a file's path as text that any store can hold: unchanged, or percent-encoded if it is no UTF-8."""
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
    """Return a name as text that can be shown and compared, even if its bytes are no UTF-8."""
    return name.encode(errors="surrogateescape").decode(errors="replace")
