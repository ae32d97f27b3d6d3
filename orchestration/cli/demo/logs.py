"""The demo's input and its expected result: a copy of the user's logs, and the same counts in plain Python."""

from __future__ import annotations

import datetime as dt
import gzip
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from drainmark.jobs.errors import UsageError

COPIED_BYTES_MAX = 256 * 1024 * 1024
WINDOW_SECONDS = 300
_SNIFFED_BYTES = 4096
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ANY = "[^\n\r\x85\u2028\u2029]*"
"""The meaning of `.*` in Java."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedLogs:
    """The outcome of `copy_logs`: number of files, the year for reading them, remarks on files that were left out."""

    files: int
    year: int
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Failures by remote host; failures by (remote host, start of the window) for windows with ten or more."""

    failures: Counter[str]
    alerts: dict[tuple[str, str], int]


def copy_logs(source: Path, inbox: Path) -> CopiedLogs:
    """Copy the text files below a folder into the inbox as `NNNN-<path>.log`, oldest first; gzip is unpacked.

    Raises:
        UsageError: the folder does not exist, or has no file that can be read as text.
    """
    if not source.is_dir():
        raise UsageError(f"{source} is no folder", remedy="--input takes a folder with syslog files")
    found = [path for path in source.rglob("*") if path.is_file() and not path.is_symlink()]
    found.sort(key=lambda path: (path.stat().st_mtime, str(path)))
    copied, skipped, room = 0, 0, COPIED_BYTES_MAX
    newest = 0.0
    for path in found:
        name = re.sub(r"[^\w.-]+", "_", path.relative_to(source).as_posix()).lstrip("._")
        target = inbox / f"{copied + 1:04d}-{name.removesuffix('.log')}.log"
        size = _copy_text(path, target, room)
        if size:
            copied, room, newest = copied + 1, room - size, max(newest, path.stat().st_mtime)
        else:
            skipped += 1
    if not copied:
        raise UsageError(f"no file below {source} can be read as text", remedy="may you read them? try sudo, or a copy")
    remarks = (f"{skipped} left out (binary, empty, unreadable or too much)",) if skipped else ()
    return CopiedLogs(files=copied, year=dt.datetime.fromtimestamp(newest, tz=dt.UTC).year, remarks=remarks)


def _copy_text(path: Path, target: Path, room: int) -> int:
    """Copy one file and return its size as text, 0 if it was left out."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as content:
            head = content.read(_SNIFFED_BYTES)
            if not head or b"\0" in head:
                return 0
            with target.open("wb") as copy:
                copy.write(head)
                shutil.copyfileobj(content, copy)
    except (OSError, EOFError):
        target.unlink(missing_ok=True)
        return 0
    size = target.stat().st_size
    if size > room:
        target.unlink()
        return 0
    return size


def count_in_python(files: Sequence[Path], year: int) -> Counted:
    """Return the counts of LogWatch, computed line by line."""
    from drainmark.jobs.apps.log_watch import ALERT_FAILURES, HEADER, PAM_FAILURE, SSHD_FAILURE

    pam, sshd = (re.compile(pattern.replace(".*", _ANY), re.ASCII) for pattern in (PAM_FAILURE, SSHD_FAILURE))
    header = re.compile(HEADER, re.ASCII)
    failures: Counter[str] = Counter()
    windows: Counter[tuple[str, str]] = Counter()
    for line in (line for path in files for line in _lines(path)):
        if match := pam.search(line):
            remote = match.group(1)
        elif match := sshd.search(line):
            remote = match.group(2)
        else:
            continue
        failures[remote] += 1
        if window := _window(header.match(line), year):
            windows[remote, window] += 1
    return Counted(failures=failures, alerts={key: n for key, n in windows.items() if n >= ALERT_FAILURES})


def _lines(path: Path) -> Iterator[str]:
    for line in re.split(rb"\r\n|\r|\n", path.read_bytes().removeprefix(b"\xef\xbb\xbf")):
        yield line.decode("utf-8", errors="replace")


def _window(header: re.Match[str] | None, year: int) -> str | None:
    """Return the start of the five-minute window of a line's time, None if the line has no valid time."""
    if header is None:
        return None
    try:
        month = _MONTHS.index(header.group(1)) + 1
        time = dt.time.fromisoformat(header.group(3))
        moment = dt.datetime.combine(dt.date(year, month, int(header.group(2))), time, tzinfo=dt.UTC)
    except ValueError:
        return None
    start = int(moment.timestamp()) // WINDOW_SECONDS * WINDOW_SECONDS
    return f"{dt.datetime.fromtimestamp(start, tz=dt.UTC):%Y-%m-%d %H:%M:%S}"
