"""The resident Sparks of a home: what each is at, and its end. One is for a set of settings, on one machine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from drainmark.jobs.errors import SparkLost, UsageError
from drainmark.orchestration.inspection.status import iso
from drainmark.resources.spark.resident.files import ServerFiles, all_servers

if TYPE_CHECKING:
    from drainmark.resources.spark.resident.files import Access

_END_SECONDS = 30.0


def resident_sparks(home: Path) -> list[dict[str, Any]]:
    """Return an entry for each resident Spark of a home that is kept on this machine.

    Each has `state` (`starting`, `up`, `failing`), `pid` (null without a JVM), `keeper`, `port`, `since` (null without
    a JVM), `starts`, `memory_bytes` (of the JVM and the processes below it), `master`, `idle_seconds`, `users` (pids of
    the runs that use it), `owners` (pids of the processes that it is kept for), `failure` and `folder`.
    """
    return [_entry(files, access) for files in all_servers(home / "spark") if (access := _kept(files)) is not None]


def stop(found: Sequence[dict[str, Any]]) -> None:
    """End resident Sparks with their keepers, and wait until they are gone.

    Raises:
        UsageError: one belongs to another user; the others are ended.
        SparkLost: one is still there after half a minute.
    """
    keepers = [process for entry in found if (process := _process(entry["keeper"])) is not None]
    of_others = [keeper for keeper in keepers if not _is_told_to_end(keeper)]
    keepers = [keeper for keeper in keepers if keeper not in of_others]
    _, left = psutil.wait_procs(keepers, timeout=_END_SECONDS)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise SparkLost(f"the keeper of the resident Spark did not end: pid {pids}", remedy=f"kill -9 {left[0].pid}")
    if of_others:
        keeper = of_others[0]
        raise UsageError(
            f"the keeper of a resident Spark, pid {keeper.pid}, belongs to {keeper.username()}",
            remedy=f"repeat the command as {keeper.username()}",
        )


def _is_told_to_end(keeper: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        try:
            keeper.terminate()
        except psutil.AccessDenied:
            return False
    return True


def _kept(files: ServerFiles) -> Access | None:
    access = files.access()
    return access if access is not None and access.is_kept else None


def _entry(files: ServerFiles, access: Access) -> dict[str, Any]:
    plan = files.plan()
    return {
        "state": "up" if access.is_up else "failing" if access.failure else "starting",
        "pid": access.pid if access.is_up else None,
        "keeper": access.keeper,
        "port": access.port if access.is_up else None,
        "since": iso(dt.datetime.fromtimestamp(access.since, dt.UTC)) if access.is_up else None,
        "starts": access.starts,
        "memory_bytes": _memory(access.pid) if access.is_up else None,
        "master": plan.settings.get("spark.master") if plan is not None else None,
        "idle_seconds": plan.idle_seconds if plan is not None else None,
        "users": files.clients(),
        "owners": files.owners(),
        "failure": access.failure or None,
        "folder": str(files.folder),
    }


def _memory(pid: int) -> int | None:
    server = _process(pid)
    if server is None:
        return None
    total = 0
    with suppress(psutil.NoSuchProcess):
        for process in (server, *server.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total or None


def _process(pid: int) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None
