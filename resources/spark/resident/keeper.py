"""The process that keeps a resident server: `python -m drainmark.resources.spark.resident.keeper FOLDER`.

It starts the server, restarts it with back-off when it dies or no longer answers, and stops it when all of its owners
are dead and its clients have left, or when it had no client for `idle_seconds`: the connection of one that is silent
for half an hour is closed, and opened again when it is needed. On Linux the server dies with the keeper; elsewhere the
next keeper ends it. It is no child of Dagster's code server, which may be reloaded meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from drainmark.jobs.errors import DrainmarkError
from drainmark.resources.processes import boot_id, is_running, process_started, signal_handler
from drainmark.resources.spark.resident.files import TAKEN, Access, Plan, ServerFiles
from drainmark.resources.spark.resident.server import ConnectServer

OWNERLESS_SECONDS = 5.0
"""How long the server outlives its last owner: `dagster dev` replaces a code server within this time."""

CLIENT_GRACE_SECONDS = 30.0
"""How long it does so while a client that is not registered is connected; for clients of Drainmark, which register, it
waits. A run without its daemon needs no limit here: it ends itself (`orchestration.runs.interruption`)."""

_POLL_SECONDS = 0.5
_COUNT_SECONDS = 5.0
_PROBE_SECONDS = 10.0
_DEAF_PROBES = 3
_BACKOFF_SECONDS = (0.0, 1.0, 2.0, 5.0, 15.0, 30.0)
_STABLE_SECONDS = 60.0
_LONELY_FAILURES = 3
"""After more failed starts in a row than this, the keeper gives up a server that has no owner; the next use retries."""


class Keeper:
    """The keeper of one server, until no process needs it."""

    def __init__(self, files: ServerFiles, plan: Plan) -> None:
        self.files = files
        self.plan = plan
        pid = os.getpid()
        self.access = Access(keeper=pid, keeper_started=process_started(pid) or "", boot=boot_id())
        self._server: ConnectServer | None = None
        self._stop = threading.Event()
        self._was_owned = False
        self._ownerless_since: float | None = None
        self._used_at = time.monotonic()
        self._counted, self._count_at = 0, 0.0

    def keep(self, started: Callable[[], None] = lambda: None) -> None:
        """Keep the server until it has no owner, it is idle, or a SIGTERM or SIGINT comes.

        Args:
            started: called when clients can see that there is a keeper.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal_handler(self._stop.set))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._end_orphan()
        self.files.save(self.access)
        started()
        failures = 0
        try:
            while self._is_wanted():
                self._pause(_BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)])
                if not self._is_wanted():
                    return
                since = time.monotonic()
                self._serve()
                failures = 1 if time.monotonic() - since > _STABLE_SECONDS else failures + 1
                if self.access.failure and failures > _LONELY_FAILURES and not self.files.owners():
                    return
        finally:
            self._end_server()
            self.files.forget()

    def _serve(self) -> None:
        """Start the server and watch it until it is dead, does not answer, or is not needed any more."""
        token = secrets.token_urlsafe(32)
        server = self._server = ConnectServer(
            self.files.folder, self.plan.settings, token=token, dies_with_parent=sys.platform == "linux"
        )
        self._note(pid=0, token="", port=0, is_warm=False, starts=self.access.starts + 1, failure="")
        try:
            server.start(is_wanted=self._is_owned)
        except (DrainmarkError, OSError) as error:
            self._note(failure=str(error))
            return
        pid = server.pid or 0
        self._note(
            pid=pid, started=process_started(pid) or "", port=server.port, token=token, since=time.time(), failure=""
        )
        self._used_at = time.monotonic()
        warming = self._warm()
        deaf, probe_at = 0, time.monotonic() + _PROBE_SECONDS
        while server.is_alive and deaf < _DEAF_PROBES and self._is_wanted():
            if warming is not None and warming.poll() is not None:
                self._note(is_warm=warming.returncode == 0)
                warming = None
            if time.monotonic() >= probe_at:
                deaf, probe_at = (0 if server.answers() else deaf + 1), time.monotonic() + _PROBE_SECONDS
            self._pause(_POLL_SECONDS)
        if warming is not None:
            warming.kill()
            warming.wait()
        self._end_server()

    def _warm(self) -> subprocess.Popen[bytes] | None:
        """Start a process that uses the server once, so that the first file does not have to wait."""
        with (self.files.folder / "warming.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "drainmark.resources.spark.resident.warming", str(self.files.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _is_wanted(self) -> bool:
        """Say whether the server still has an owner, or never had one, and is not idle."""
        if not self._is_owned():
            return False
        if self._connected() or (self._is_idle() and (self.files.clients() or self._connected(anew=True))):
            self._used_at = time.monotonic()
        return not self._is_idle()

    def _is_idle(self) -> bool:
        return time.monotonic() - self._used_at > self.plan.idle_seconds

    def _is_owned(self) -> bool:
        """Say whether an owner lives, none was ever named, or the last one died just now or while a client works."""
        if self._stop.is_set():
            return False
        now = time.monotonic()
        if self.files.owners():
            self._was_owned, self._ownerless_since = True, None
        elif self._was_owned and self.files.clients():
            self._ownerless_since = None
        elif self._was_owned:
            self._ownerless_since = self._ownerless_since or now
            if now - self._ownerless_since >= OWNERLESS_SECONDS:
                return now - self._ownerless_since < CLIENT_GRACE_SECONDS and self._connected(anew=True) > 0
        return True

    def _connected(self, *, anew: bool = False) -> int:
        """Return the number of connections to the server; counted every few seconds, since it takes a while.

        Args:
            anew: count now, before the server is stopped: a client may just have connected.
        """
        if self._server is None or self._server.pid is None:
            return 0
        now = time.monotonic()
        if anew or now >= self._count_at:
            self._count_at = now + min(_COUNT_SECONDS, self.plan.idle_seconds / 4)
            self._counted = _connections(self._server.pid, self._server.port)
        return self._counted

    def _note(self, **changes: object) -> None:
        self.access = replace(self.access, **changes)  # type: ignore[arg-type]
        self.files.save(self.access)

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _end_orphan(self) -> None:
        """End a server that a killed keeper left, on systems that do not end it by themselves."""
        before = self.files.access()
        if before is not None and before.pid and is_running(before.pid, before.started, before.boot):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(before.pid, signal.SIGKILL)


def _connections(pid: int, port: int) -> int:
    try:
        found = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.Error:
        return 0
    return sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == port for c in found)


def main(arguments: Sequence[str]) -> int:
    """Detach from the parent process, and keep the server of a folder.

    Returns:
        of the parent, after the child has started: 0 if the child is the keeper, `TAKEN` if another process is, 1 if
        the child has ended.
    """
    answer, told = os.pipe()
    if os.fork():
        os.close(told)
        said = os.read(answer, 1)  # nothing, if the child ends before it says anything
        return said[0] if said else 1
    os.close(answer)

    def tell(code: int) -> None:
        os.write(told, bytes([code]))
        os.close(told)  # else the server would inherit it

    files = ServerFiles(Path(arguments[0]))
    plan = files.plan()
    with files.kept() as is_mine:
        if not is_mine:
            tell(TAKEN)
        elif plan is not None:
            Keeper(files, plan).keep(lambda: tell(0))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
