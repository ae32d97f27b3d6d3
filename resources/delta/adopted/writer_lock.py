"""A lock for an adopted table on a local disk: one writer JVM at a time, since commits of two overwrite each other.

It is an OS lock on a file below the table, held during each commit. Clients of one Spark Connect server use one JVM and
share the lock: inside a JVM, delta-spark detects conflicts. A stopped process (SIGSTOP) never releases it; the error in
a waiting process has its pid. Safety against older owners comes from Delta's own transaction ids, not from this lock.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from drainmark.jobs import world
from drainmark.jobs.errors import WriterBusy
from drainmark.resources.processes import boot_id, is_running, process_started

LOCK_FILE = "_drainmark/writer.lock"
PATIENCE_SECONDS = 15.0
_POLL_SECONDS = 0.05
_JVM_ENDS_SECONDS = 3.0
"""An in-process JVM ends about a second after its Python process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterProcess:
    """The JVM that commits, and the process that asks it to.

    Attributes:
        jvm: Spark's application id; each JVM has its own.
        master: how the process reaches it; `sc://host:port` for a Connect server.
    """

    jvm: str
    master: str


@contextmanager
def writing(table: Path, writer: WriterProcess, *, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Hold the right to commit to a table inside the block.

    Raises:
        WriterBusy: another JVM has it, or may still be writing for a client that died.
    """
    path = table / LOCK_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        _acquire(file, path, writer, world.monotonic() + patience_seconds)
        yield
        # Skipped if the block raised, since the JVM may still write; and while another client of the JVM has the lock.
        if _lock(file, exclusive=True):
            _write(file, {**_record(file), "busy": False})


def _acquire(file: IO[str], path: Path, writer: WriterProcess, deadline: float) -> None:
    """Share the lock with clients of the same JVM; take it exclusively to put this JVM into the file."""
    pid = os.getpid()
    me = {"pid": pid, "host": socket.gethostname(), "boot": boot_id(), "started": process_started(pid)}
    mine = {**asdict(writer), **me, "busy": True}
    while True:
        if _is_mine(_record(file), writer):
            if _lock(file, exclusive=False) and _is_mine(_record(file), writer):
                return
        elif _lock(file, exclusive=True):
            _await_end_of(_record(file), writer, path)
            _write(file, mine)
            continue
        if world.monotonic() > deadline:
            raise _busy(_record(file), path)
        world.sleep(_POLL_SECONDS)


def _is_mine(record: dict[str, Any], writer: WriterProcess) -> bool:
    return record.get("jvm") == writer.jvm and bool(record.get("busy"))


def _await_end_of(before: dict[str, Any], writer: WriterProcess, path: Path) -> None:
    """Make sure that the JVM of a client that died in the middle of a commit does not commit any more."""
    if not before.get("busy") or before["jvm"] == writer.jvm:
        return
    if not before["master"].startswith("sc://"):
        if not _is_running_here(before):
            world.sleep(_JVM_ENDS_SECONDS)
        return
    if writer.master.startswith("sc://") and _address(writer.master) == _address(before["master"]):
        world.sleep(_JVM_ENDS_SECONDS)  # the server was started again: its earlier JVM has given up the port
        return
    if _answers(before["master"]):
        msg = f"a client of {before['master']} died while it wrote to {path.parents[1]}; the server may still be at it"
        remedy = f"use that server (spark_master = {before['master']}), or stop it"
        raise WriterBusy(msg, remedy=remedy, table=str(path.parents[1]))


def _busy(holder: dict[str, Any], path: Path) -> WriterBusy:
    pid = holder.get("pid")
    is_stopped = _is_running_here(holder) and _is_stopped(holder["pid"])
    state = "is stopped" if is_stopped else "writes"
    msg = f"process {pid} on {holder.get('host')} {state} with the right to write to {path.parents[1]}"
    remedy = f"kill -CONT {pid}, or kill -KILL {pid}" if is_stopped else "wait for it, or end it"
    return WriterBusy(msg, remedy=remedy, pid=pid, table=str(path.parents[1]))


# --- the file -----------------------------------------------------------------------------------------------------


def _lock(file: IO[str], *, exclusive: bool) -> bool:
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise
        return False
    return True


def _record(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        found: dict[str, Any] = json.loads(file.read() or "{}")
    except ValueError:  # a write that was cut off by a power cut
        found = {}
    return found


def _write(file: IO[str], record: dict[str, Any]) -> None:
    file.seek(0)
    file.truncate()
    file.write(json.dumps(record))
    file.flush()
    os.fsync(file.fileno())


# --- the process --------------------------------------------------------------------------------------------------


def _is_running_here(holder: dict[str, Any]) -> bool:
    """Say whether the holder runs where this process sees it; in another container its pid means another process."""
    return is_running(holder.get("pid", 0), holder.get("started"), holder.get("boot", ""))


def _is_stopped(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _address(master: str) -> tuple[str, int]:
    """Return the host and the port of a Connect server, without its options."""
    host, _, port = master.removeprefix("sc://").partition("/")[0].partition(":")
    return host, int(port or 15002)


def _answers(master: str) -> bool:
    try:
        with socket.create_connection(_address(master), timeout=2):
            return True
    except OSError:
        return False
