"""Faults of the machine under a run: its disks, its network disks, its limits. They pass, and blame nobody's code.

An error is judged by its type and its number. Texts count only in errors of Delta's library, of Arrow and of the JVM,
which have no numbers, and only in the form that these give them: a value of an input, or the message of a function,
may quote any words.
"""

from __future__ import annotations

import builtins
import errno
import os
import re
import sys
import traceback
from collections.abc import Iterator

from drainmark.jobs.errors import StoreRefused, StoreUnavailable

_ROOM = "free some room (df -h, df -i, quota)"
_DISK = "look at the disk (dmesg, df -h), and mount it again"
_FILES = "let the process open more files (ulimit -n; LimitNOFILE= of a systemd unit)"
_MEMORY = "look for what takes the memory (free -m, the limit of the container)"
_PROCESSES = "let the user have more processes (ulimit -u; the container's limit of pids)"
_NETWORK = "look at the network disk and its server, and mount it again"

_OF_DISKS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: _DISK,
    errno.EIO: _DISK,
    errno.EREMOTEIO: _DISK,
    errno.EUCLEAN: _DISK,
    errno.EMFILE: _FILES,
    errno.ENFILE: "let the machine open more files (sysctl fs.file-max)",
    errno.ENOMEM: _MEMORY,
    errno.ESTALE: _NETWORK,
    errno.ENOLCK: _NETWORK,
}
_OF_NETWORKS = frozenset(
    {
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.ESHUTDOWN,
    }
)
"""Numbers of network disks, and as well of the sockets of an author's function, which are the author's."""

_OF_SQLITE = {7: errno.ENOMEM, 10: errno.EIO, 13: errno.ENOSPC}
"""By SQLite's code: SQLITE_NOMEM, SQLITE_IOERR, SQLITE_FULL."""

_LIBRARIES = ("deltalake", "pyarrow")
_OUR_FRAMES = (*_LIBRARIES, "drainmark")
_OF_RUST = re.compile(r"([^\n]+) \(os error (\d+)\)(?!['\"`])")
_OF_ARROW = re.compile(r"Detail: \[errno (\d+)\] ([^\n]+)\Z")

_PYTHON = "Traceback (most recent call last):"
_RAISED = re.compile(r"(\w+): \[Errno (\d+)\] (.*)")
_STARTS_PROCESS = re.compile(r'  File "[^"]*/(?:subprocess|multiprocessing/\w+)\.py"')
_OF_JAVA = re.compile(
    r"(?:^|^: |^Caused by: |\(TID \d+\) \([^()]*\): )"
    r"(?:(?:org\.apache\.hadoop|java)\.[\w.$]*"
    r"\.(?:IOException|FSError|FileSystemException|FileNotFoundException|SyncFailedException): )+"
    r"(?:.*?(?:: |\())?([^:()]+)\)?$"
)
_JAVA_STARTS_PROCESS = re.compile(r'java\.io\.IOException: Cannot run program "[^"]*".*: error=(\d+), ')
_JAVA_NO_THREAD = re.compile(r"(?:^|: )java\.lang\.OutOfMemoryError: unable to create (?:new )?native thread")
_JAVA_FRAME = re.compile(r"\s+(?:at |\.\.\. \d+ more)")


def machine_fault(error: BaseException) -> StoreUnavailable | None:
    """Return the error for a fault of the machine if one is the cause of another error, else None."""
    for link in chain(error):
        if isinstance(link, StoreRefused):
            return None  # the store answered; an OSError of its client behind it tells of nothing else
        if (number := _number_of(link)) is not None:
            return _unavailable(number, link)
    return None


def require_gone(error: OSError) -> None:
    """Raise the fault of the machine behind an error: it says nothing about a file, which is there or not."""
    if (fault := machine_fault(error)) is not None:
        raise fault from error


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def is_of_spark(error: BaseException) -> bool:
    """Say whether Spark's client raised an error."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j", "grpc")


def _unavailable(number: int, error: BaseException) -> StoreUnavailable:
    said = os.strerror(number)
    where = f": {error.filename}" if isinstance(error, OSError) and error.filename is not None else ""
    remedy = _PROCESSES if number == errno.EAGAIN else _OF_DISKS.get(number, _NETWORK)
    found = StoreUnavailable(
        f"the machine fails, no function and no input: {said}{where}",
        remedy=f"{remedy}, then start again: no attempt was counted",
    )
    found.__cause__ = error
    return found


def _number_of(error: BaseException) -> int | None:
    """Return the number of the fault of the machine that an error tells, None if it tells none."""
    if isinstance(error, OSError) and error.errno is not None:
        return _number_of_system(error, error.errno)
    if type(error).__module__ == "sqlite3":
        return _OF_SQLITE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if is_of_spark(error):
        return _number_in_spark(str(error))
    if isinstance(error, RuntimeError) and _frames(error)[-1:] == ["threading"]:
        return errno.EAGAIN  # "can't start new thread"
    return _number_in_library(error)


def _number_of_system(error: OSError, number: int) -> int | None:
    if number in _OF_DISKS:
        return number
    frames = _frames(error)
    if number in _OF_NETWORKS:
        is_of_file = error.filename is not None or _package(frames) in _OUR_FRAMES
        return number if is_of_file else None
    if number == errno.EAGAIN and _package(frames) in ("subprocess", "multiprocessing"):
        return number
    return None


def _number_in_library(error: BaseException) -> int | None:
    """Return the number in the text of an error of Delta's library or of Arrow."""
    delta = sys.modules.get("deltalake.exceptions")  # an error of a module that is not loaded cannot exist
    is_of_delta = delta is not None and isinstance(error, delta.DeltaError)
    if not is_of_delta and type(error).__module__ != "pyarrow.lib" and _package(_frames(error)) not in _LIBRARIES:
        return None
    for said, number in _OF_RUST.findall(str(error)):
        if said.endswith(os.strerror(int(number))) and int(number) in _OF_DISKS.keys() | _OF_NETWORKS:
            return int(number)
    found = _OF_ARROW.search(str(error))
    if found and found[2] == os.strerror(int(found[1])) and int(found[1]) in _OF_DISKS.keys() | _OF_NETWORKS:
        return int(found[1])
    return None


def _number_in_spark(text: str) -> int | None:
    """Return the number of the fault that a task or the JVM met, from an error as Spark's client shows it."""
    before, python, raised = text.partition(_PYTHON)
    if python:  # what follows may quote anything; only its first error is of the form that Python gives
        return _number_in_python(raised) or _number_in_java(before)
    return _number_in_java(text)


def _number_in_python(raised: str) -> int | None:
    """Return the number of the first error of a traceback without its first line, whose chained errors come behind."""
    frame = ""
    for line in raised.splitlines()[1:]:
        if not line.startswith(" "):
            break
        frame = line if line.startswith("  File ") else frame
    else:
        return None
    found = _RAISED.match(line)
    kind = getattr(builtins, found[1], None) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, OSError)):
        return None
    number, said = int(found[2]), found[3]
    if number in _OF_DISKS:
        return number
    if number in _OF_NETWORKS:
        return number if said.startswith(f"{os.strerror(number)}: '") else None
    return number if number == errno.EAGAIN and _STARTS_PROCESS.match(frame) else None


def _number_in_java(text: str) -> int | None:
    lines = text.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if not _JAVA_FRAME.match(after):  # every exception of Java is followed by its frames
            continue
        if started := _JAVA_STARTS_PROCESS.search(line):
            number = int(started[1])
            if number in _OF_DISKS or number == errno.EAGAIN:
                return number
        elif _JAVA_NO_THREAD.search(line):
            return errno.EAGAIN
        elif (found := _OF_JAVA.search(line)) and found[1] in _BY_TEXT:
            return _BY_TEXT[found[1]]
    return None


_BY_TEXT = {os.strerror(number): number for number in (*_OF_DISKS, *_OF_NETWORKS)}


def _frames(error: BaseException) -> list[str]:
    """Return the names of the modules that an error passed, the one that raised it last."""
    return [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]


def _package(frames: list[str]) -> str:
    return frames[-1].partition(".")[0] if frames else ""
