"""What can happen at a seam, where it can, with what chance, and the errors as the real libraries raise them."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import deltalake
from deltalake.exceptions import DeltaError
from sqlalchemy.exc import OperationalError

from drainmark.jobs.world import Seam


class Fault(StrEnum):
    """The kinds of what happens at a seam; a setup has the chance of each at one seam, by these names."""

    SWITCH = "switch"  # others go on first: a delay
    PAUSE = "pause"  # the whole process stands still for long, as one that is thought dead
    SAMPLE = "sample"  # a reader comes
    CRASH_BEFORE = "crash_before"
    CRASH_AFTER = "crash_after"
    ERROR = "error"  # and no effect
    LOST_REPLY = "lost_reply"  # an error, and the effect
    DOUBLED = "doubled"  # a client's retry after the effect: made twice, the second answer; a commit's put is refused
    STALE = "stale"  # the answer of an earlier call
    CLOCK_JUMP = "clock_jump"
    FULL_DISK = "full_disk"  # for a while every write fails


_ALWAYS = (Fault.SWITCH, Fault.PAUSE, Fault.SAMPLE, Fault.CLOCK_JUMP, Fault.CRASH_BEFORE)
_READS = (Fault.ERROR,)
_WRITES = (Fault.ERROR, Fault.CRASH_AFTER, Fault.LOST_REPLY)
_CALLS: Mapping[Seam, tuple[Fault, ...]] = {
    Seam.REGISTRY_READ: _READS,
    Seam.REGISTRY_WRITE: _WRITES,
    Seam.DELTA_OPEN: _READS,
    Seam.DELTA_COMMIT: (*_WRITES, Fault.DOUBLED, Fault.FULL_DISK),
    Seam.DELTA_UPKEEP: (*_WRITES, Fault.DOUBLED),
    Seam.STORE_WRITE: (*_WRITES, Fault.DOUBLED, Fault.FULL_DISK),
    Seam.STORE_READ: _READS,
    Seam.STORE_LIST: (*_READS, Fault.STALE),
    Seam.STORE_REMOVE: (*_WRITES, Fault.DOUBLED),
    Seam.SINK_FILE: (*_WRITES, Fault.DOUBLED, Fault.FULL_DISK),
    Seam.SINK_DATABASE: _WRITES,
}
LEGAL: Mapping[Seam | None, tuple[Fault, ...]] = {
    None: _ALWAYS,
    **{seam: (*_ALWAYS, *calls) for seam, calls in _CALLS.items()},
}
"""By the seam; None for a point of the protocol, at which nothing leaves the process."""

WITHIN = frozenset({Fault.CLOCK_JUMP, Fault.CRASH_BEFORE, *(fault for calls in _CALLS.values() for fault in calls)})
"""What can happen while the process holds a lock of a database, for which others would wait in real time."""

ON_FULL_DISK = frozenset(seam for seam, calls in _CALLS.items() if Fault.FULL_DISK in calls)

_HEAT = 10
_HEATED = (Fault.PAUSE, Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.ERROR, Fault.LOST_REPLY)
"""What happens that many times as often at the one kind of seam to which a history pays attention."""

_STALLED = 0.6  # a run passes the place once or a few times
FOR_LONG = 100_000
_PAUSES = (50, 200, 600)
_JUMPS = (5, 20, 3600, 2 * 86400, -5, -3600)
_FULL = (5, 40)


class Chances:
    """What the seed makes happen at the seams: a hash of the seam's name, so that no seam depends on another one.

    Args:
        hot, stall: see `Setup`.
    """

    def __init__(self, seed: int, rates: Mapping[str, float], hot: str = "", stall: str = "") -> None:
        unknown = set(rates) - set(Fault)
        assert not unknown, f"no faults: {sorted(unknown)}"
        self._salt = f"{seed}/".encode()
        self._stall = stall
        self._ladders = {
            seam: _ladder(faults, _heated(rates) if seam == hot else rates) for seam, faults in LEGAL.items()
        }

    def at(self, key: str, seam: Seam | None) -> str | None:
        """Return the choice at a seam: a fault, and a number after a colon if it has one; None for nothing."""
        number = self.number(key)
        ladder = self._ladders[seam]
        drawn = (number >> 64) / 2**64
        if not ladder or drawn >= ladder[-1][0]:
            return None
        fault = next(fault for until, fault in ladder if drawn < until)
        return fault + _with(fault, seam, number & 0xFFFFFFFF)

    def stalls(self, key: str, call: str) -> bool:
        """Say whether the slow owner of a duel stands still at a call until all others have ended."""
        is_there = bool(self._stall) and f"{call} ".startswith(f"{self._stall} ")
        return is_there and self.number(key) % 2**32 < _STALLED * 2**32

    def number(self, key: str) -> int:
        """Return 128 bits that belong to a name."""
        return int.from_bytes(blake2b(self._salt + key.encode(), digest_size=16).digest())


def _heated(rates: Mapping[str, float]) -> dict[str, float]:
    return {fault: rate * (_HEAT if fault in _HEATED else 1) for fault, rate in rates.items()}


def _ladder(faults: tuple[Fault, ...], rates: Mapping[str, float]) -> list[tuple[float, Fault]]:
    steps, until = [], 0.0
    for fault in faults:
        if rate := rates.get(fault, 0.0):
            until += rate
            steps.append((until, fault))
    return steps


def _with(fault: Fault, seam: Seam | None, number: int) -> str:
    match fault:
        case Fault.SWITCH:
            return f":{number}"
        case Fault.PAUSE:
            return f":{_PAUSES[number % len(_PAUSES)]}"
        case Fault.CLOCK_JUMP:
            return f":{_JUMPS[number % len(_JUMPS)]}"
        case Fault.FULL_DISK:
            return f":{_FULL[number % len(_FULL)]}"
        case Fault.ERROR | Fault.LOST_REPLY:
            assert seam is not None
            return f":{number % len(_ERRORS[seam])}"
    return ""


# --- errors -------------------------------------------------------------------------------------------------------


def fail(seam: Seam, number: int) -> None:
    """Raise an error of a seam, one of the few that the library below it has."""
    errors = _ERRORS[seam]
    raise errors[number % len(errors)]()


def fail_for_room(seam: Seam) -> None:
    """Raise the error of a seam at a full disk."""
    raise _of_system(errno.ENOSPC)


def refuse_second() -> None:
    """Raise the error of a client whose second put of a commit finds the first: no version is written twice."""
    raise _of_system(errno.EEXIST)


def _of_system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _of_sqlite(said: str, code: int) -> OperationalError:
    error = sqlite3.OperationalError(said)
    error.sqlite_errorcode = code  # type: ignore[misc]
    return OperationalError("(simulated)", None, error)


def _of_delta(kind: type[Exception], number: int) -> Exception:
    return _raised(kind(f"Generic LocalFileSystem error: {os.strerror(number)} (os error {number})"))


def _raised(error: Exception) -> Exception:
    """Return an error as deltalake raises it: its last frame is in that package."""
    library: dict[str, Any] = {"__name__": deltalake.__name__}
    exec("def raised(error):\n    raise error\n", library)  # noqa: S102
    try:
        library["raised"](error)
    except type(error) as found:
        return found
    raise AssertionError


_DATABASE: tuple[Callable[[], Exception], ...] = (
    lambda: _of_sqlite("disk I/O error", sqlite3.SQLITE_IOERR),
    lambda: _of_sqlite("unable to open database file", sqlite3.SQLITE_CANTOPEN),
    lambda: _of_sqlite("database is locked", sqlite3.SQLITE_BUSY),
)
_DISK: tuple[Callable[[], Exception], ...] = (
    lambda: _of_system(errno.EIO),
    lambda: _of_system(errno.ESTALE),
)
_FULLER = (*_DISK, lambda: _of_system(errno.ENOSPC))
_DELTA: tuple[Callable[[], Exception], ...] = (
    lambda: _of_delta(OSError, errno.EIO),
    lambda: _of_delta(DeltaError, errno.EIO),
    lambda: _of_delta(OSError, errno.ENOSPC),
)
_ERRORS: Mapping[Seam, tuple[Callable[[], Exception], ...]] = {
    Seam.REGISTRY_READ: _DATABASE,
    Seam.REGISTRY_WRITE: _DATABASE,
    Seam.SINK_DATABASE: _DATABASE,
    Seam.DELTA_OPEN: _DELTA[:2],
    Seam.DELTA_COMMIT: _FULLER,
    Seam.DELTA_UPKEEP: _DELTA,
    Seam.STORE_READ: _DISK,
    Seam.STORE_LIST: _DISK,
    Seam.STORE_REMOVE: _DISK,
    Seam.STORE_WRITE: _FULLER,
    Seam.SINK_FILE: _FULLER,
}
