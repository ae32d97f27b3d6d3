"""Files between keeper and clients of a resident server: mode 0600 below `DRAINMARK_HOME/spark`.

`plan.json` has the settings of the server, `access.json` its address and token. `owners/` has a file for each process
that wants the server, `clients/` one for each process that uses it. The keeper holds `lock`. Files that a dead process,
or an earlier boot, left are not trusted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drainmark.resources.processes import boot_id, is_running, process_started

FOLDER = "resident"
"""Name of the folder of all resident servers below `DRAINMARK_HOME/spark`."""

TAKEN = 3
"""Exit code of a keeper that finds another one at its folder."""

_FORMAT = 3
"""Increased when the meaning of the files changes: clients of another release then have their own folder and server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings that a server is started with; another plan means another server.

    Attributes:
        settings: Spark's, by full name.
        idle_seconds: after so long without a client the server is stopped; the next need starts it again.
        python, path: the interpreter of the keeper and of Python workers, and the places that they import from.
        environment: see `task_environment`.
    """

    settings: Mapping[str, str]
    idle_seconds: float
    python: str
    path: tuple[str, ...]
    environment: str = ""

    def digest(self) -> str:
        """Return a text that differs between plans; `path` does not count, it varies a little between processes."""
        text = json.dumps({**asdict(self), "path": None, "format": _FORMAT}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


_OF_TASKS = ("AWS_", "PG", "MYSQL_")
"""Beginnings of the names of variables with credentials for buckets and databases, besides those in settings."""


def task_environment() -> str:
    """Return a digest of this environment's credentials, "" without any: tasks have those of the server's start."""
    known = sorted((name, value) for name, value in os.environ.items() if name.startswith(_OF_TASKS))
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12] if known else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The address of a server, its processes and its keeper.

    Attributes:
        pid, started: of the JVM; 0 and "" while there is none.
        token: new with every start of the JVM.
        starts: number of starts by the keeper.
        is_warm: its first query, read and write are done.
        failure: reason that the last start failed.
    """

    keeper: int
    keeper_started: str
    boot: str
    pid: int = 0
    started: str = ""
    port: int = 0
    token: str = ""
    since: float = 0.0
    starts: int = 0
    is_warm: bool = False
    failure: str = ""

    @property
    def is_kept(self) -> bool:
        """Say whether its keeper lives."""
        return is_running(self.keeper, self.keeper_started, self.boot)

    @property
    def is_up(self) -> bool:
        """Say whether there is a server that clients can connect to."""
        return self.pid > 0 and self.is_kept and is_running(self.pid, self.started, self.boot)


class ServerFiles:
    """The folder of one server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, scratch: Path, plan: Plan) -> ServerFiles:
        """Return the folder for a plan, with the plan in it."""
        files = cls(scratch / FOLDER / f"{socket.gethostname()}-{plan.digest()}")
        files.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if files.plan() != plan:
            files._write("plan.json", json.dumps(asdict(plan)))
        return files

    def plan(self) -> Plan | None:
        """Return the plan of the server; None if there is none, or another release wrote it."""
        try:
            found = self._read("plan.json")
            return None if found is None else Plan(**{**found, "path": tuple(found["path"])})
        except (KeyError, TypeError):
            return None

    def access(self) -> Access | None:
        """Return the last record of the keeper, which may be dead; None without one, or if another release wrote it."""
        try:
            found = self._read("access.json")
            return None if found is None else Access(**found)
        except TypeError:
            return None

    def save(self, access: Access) -> None:
        self._write("access.json", json.dumps(asdict(access)))

    def forget(self) -> None:
        """Delete the address and the token, so that no client takes them for a server."""
        for name in ("access.json", "server.conf"):
            (self.folder / name).unlink(missing_ok=True)

    # --- owners and clients -------------------------------------------------------------------------------------------

    def own(self, pid: int) -> None:
        """Note that the server is wanted as long as a process lives."""
        self._enter("owners", pid)

    def owners(self) -> list[int]:
        """Return the pids of the owners that live, and forget the others."""
        return self._alive("owners")

    def enter(self, pid: int) -> None:
        """Note that a process uses the server: when its owners end, the server waits until that process has left."""
        self._enter("clients", pid)

    def leave(self, pid: int) -> None:
        """Note that a process no longer uses the server; a process that dies need not call this."""
        for path in (self.folder / "clients").glob(f"{pid}-*"):
            path.unlink(missing_ok=True)

    def clients(self) -> list[int]:
        """Return the pids of the clients that live, and forget the others."""
        return self._alive("clients")

    def _enter(self, role: str, pid: int) -> None:
        started = process_started(pid)
        if started is None:
            return
        (self.folder / role).mkdir(exist_ok=True, mode=0o700)
        name = f"{role}/{pid}-{started}"
        if not self._says(name, boot_id()):
            self._write(name, boot_id())

    def _says(self, name: str, text: str) -> bool:
        try:
            return (self.folder / name).read_text(encoding="ascii") == text
        except FileNotFoundError:
            return False

    def _alive(self, role: str) -> list[int]:
        """Return the living pids of a role. An empty entry is kept: it does not prove that its process is dead."""
        alive = []
        for path in (self.folder / role).glob("*-*"):
            pid, _, started = path.name.partition("-")
            try:
                boot = path.read_text(encoding="ascii")
            except FileNotFoundError:
                continue
            if is_running(int(pid), started, boot):
                alive.append(int(pid))
            elif boot:
                path.unlink(missing_ok=True)
        return alive

    # --- the keeper's lock --------------------------------------------------------------------------------------------

    @contextmanager
    def kept(self) -> Iterator[bool]:
        """Hold the keeper's lock inside the block; yield False if another keeper has it."""
        with (self.folder / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return found

    def _write(self, name: str, text: str) -> None:
        """Write a file whole or not at all, readable by its owner alone from the first byte."""
        part = self.folder / f".{Path(name).name}.{uuid.uuid4().hex}"
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(self.folder / name)


def all_servers(scratch: Path) -> list[ServerFiles]:
    """Return the folders of all servers of a home on this host, living or not."""
    return [ServerFiles(path) for path in sorted((scratch / FOLDER).glob(f"{socket.gethostname()}-*"))]
