"""Processes of this machine: who they are, for a pid may belong to another one by now; and how they take signals.

It imports little on purpose: the keeper of the resident server uses it and lives for days.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from functools import cache
from pathlib import Path


def process_started(pid: int) -> str | None:
    """Return when a process of this machine started, as a text to compare; None if it is dead or a zombie.

    On Linux it is in ticks since boot, which do not depend on the clock.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _process_started_by_psutil(pid)
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else fields[19]


def _process_started_by_psutil(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.NoSuchProcess:
        return None


@cache
def boot_id() -> str:
    """Return a text that is equal for two processes only if one sees the other: the boot id and the pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        import psutil

        return str(int(psutil.boot_time()))


def is_running(pid: int, started: str | None, boot: str) -> bool:
    """Say whether the process with this pid, start and boot still runs on this machine."""
    return started is not None and boot == boot_id() and process_started(pid) == started


def signal_handler(act: Callable[[], object]) -> Callable[..., object]:
    """Return a handler that lets a new thread act.

    Python handles a signal in the main thread, which may hold the lock of the very event that is to be set, and would
    then wait for itself for ever. `threading` would not do: the main thread may hold its lock, too.
    """
    return lambda *_: _thread.start_new_thread(act, ())
