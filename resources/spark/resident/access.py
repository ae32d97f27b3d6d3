"""Access of a process to the resident server of its home: start it if necessary, wait for it, connect to it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import SparkLost
from drainmark.resources.spark.resident.files import TAKEN, Access, Plan, ServerFiles, task_environment
from drainmark.resources.spark.resident.server import HOST, START_SECONDS
from drainmark.resources.spark.session import SparkEngine, check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_RETRIES = {"max_retries": 5, "max_backoff": 1000, "jitter": 50}
"""A server on the loopback that does not answer for three seconds is gone; Spark's default waits for ten minutes."""

_POLL_SECONDS = 0.05
_TAKEN_SECONDS = 1.0
"""Pause if another keeper has no record yet, or none any more because it is about to end."""
_MOST_STARTS = 2
"""Keepers that a process starts while it waits; more have the same end."""
_LAST_LINES = 3
_PATIENCE_SECONDS = START_SECONDS + 30.0
_OWN_TO_A_SERVER = {
    # Python workers import functions of users by name: a worker that is used again would keep yesterday's code.
    "spark.python.worker.reuse": "false",
    # A client that was killed leaves its session; a run that lingers is silent for an hour at most.
    "spark.connect.session.manager.defaultSessionTimeout": "70m",
}
"""Settings that a process for many runs needs, and a process for a single run does not."""


class ResidentServer:
    """The resident server of a home, with the settings that an engine would use in-process.

    Args:
        scratch: `DRAINMARK_HOME/spark`.
        master: `local[...]`.
        settings: of the session, complete.
        idle_seconds: how long it may stay without a client.
    """

    def __init__(self, scratch: Path, master: str, settings: dict[str, str], *, idle_seconds: float) -> None:
        self._plan = Plan(
            settings={**_OWN_TO_A_SERVER, **settings, "spark.master": master},
            idle_seconds=idle_seconds,
            python=sys.executable,
            path=tuple(filter(None, sys.path)),
            environment=task_environment(),
        )
        self._scratch = scratch
        self._files: ServerFiles | None = None

    @property
    def files(self) -> ServerFiles:
        if self._files is None:
            self._files = ServerFiles.of(self._scratch, self._plan)
        return self._files

    def want(self, *, owner: int | None = None) -> Access | None:
        """Have the server started if it is not, without waiting; return its address if it is up.

        Args:
            owner: pid of a process with which it may end; without any owner it ends when it is idle.
        """
        access = self._wanted(owner)
        if access is None:
            self._start_keeper()
        return access if access is not None and access.is_up else None

    def _wanted(self, owner: int | None) -> Access | None:
        """Return the record of a keeper that lives, after a note that the owner wants the server."""
        if owner is not None:
            self.files.own(owner)
        access = self.files.access()
        return access if access is not None and access.is_kept else None

    def _start_keeper(self) -> int:
        """Start a keeper; return 0 if it keeps the server now, `TAKEN` if another one does, else it has ended."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(self._plan.path)}
        with self._log.open("ab") as log:
            return subprocess.run(  # its parent ends at once, so the keeper is not our child
                [sys.executable, "-m", "drainmark.resources.spark.resident.keeper", str(self.files.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                check=False,
            ).returncode

    @property
    def _log(self) -> Path:
        return self.files.folder / "keeper.log"

    def _lost(self, why: str, log: Path) -> SparkLost:
        return SparkLost(why, remedy=f"see {log}, or set spark = in-process")

    def leave(self) -> None:
        """Note that this process no longer uses the server."""
        if self._files is not None:
            self._files.leave(os.getpid())

    def wait(self, *, owner: int | None = None, seconds: float = _PATIENCE_SECONDS) -> Access:
        """Wait until the server is up; return its address.

        Raises:
            SparkLost: it did not start; the message gives the reason.
            JavaMissing: it did not start, and there is no Java runtime for this process either.
        """
        deadline, starts = time.monotonic() + seconds, 0
        logged = self._log.stat().st_size if self._log.exists() else 0
        while (access := self._wanted(owner)) is None or not access.is_up:
            if access is not None and access.failure:
                check_java()
                raise self._lost(access.failure, self.files.folder / "server.log")
            if time.monotonic() > deadline:
                raise self._lost(f"the resident Spark server was not up within {seconds:g} s", self._log)
            if access is None:
                code = self._start_keeper() if starts < _MOST_STARTS else 1
                if code not in (0, TAKEN):
                    said = _last_lines(self._log, logged)
                    raise self._lost(f"the keeper of the resident Spark ended at its start: {said}", self._log)
                starts += code == 0
                time.sleep(_TAKEN_SECONDS if code == TAKEN else 0)
            time.sleep(_POLL_SECONDS)
        return access


def _last_lines(log: Path, start: int) -> str:
    """Return the last lines of what was written to a log behind a place."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").strip().splitlines()
    return " / ".join(line.strip() for line in lines[-_LAST_LINES:])


class ResidentEngine(SparkEngine):
    """A session on the home's resident server.

    Args:
        owner: pid of the process with which the server may end; None leaves it to its idle limit.
    """

    def __init__(
        self, master: str, conf: dict[str, str], scratch: Path, *, idle_seconds: float, owner: int | None = None
    ) -> None:
        super().__init__(master, conf, scratch)
        self._owner = owner
        self.server = ResidentServer(scratch, master, self.settings.of_start(), idle_seconds=idle_seconds)

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def is_local(self) -> bool:
        return True

    @property
    def session_id(self) -> str | None:
        return str(self.session.session_id)

    def end_session(self, session_id: str) -> None:
        access = self.server.files.access()
        if access is None or not access.is_up or session_id == self.session_id:
            return
        try:
            other: Any = connect(access, session_id=session_id)
            other.interruptAll()
            other.stop()
        except Exception as error:  # the fence works without it: a job can only leave staged files behind
            logger.info("session %s was not ended: %s", session_id, error)

    def prepare(self) -> None:
        self.server.want(owner=self._owner)

    def connect_soon(self) -> None:
        threading.Thread(target=self._warm_up, name="connect to Spark", daemon=True).start()

    def _warm_up(self) -> None:
        with suppress(Exception):
            self.session.conf.get("spark.sql.session.timeZone", None)  # the first call makes the server's session

    def stop(self) -> None:
        super().stop()
        self.server.leave()

    def _connect(self) -> SparkSession:
        self.server.files.enter(os.getpid())  # before the search, since the last owner may die at any moment
        access = self.server.wait(owner=self._owner)
        self.master = f"sc://{HOST}:{access.port}"
        return connect(access)


def connect(access: Access, *, session_id: str | None = None) -> SparkSession:
    """Return a new session on a server, which has the settings that results depend on.

    Args:
        session_id: of a session that exists there already, to interrupt it; by default a new one.
    """
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession

    class Loopback(DefaultChannelBuilder):  # type: ignore[misc]
        """Spark's channel for `localhost`, which sends a token without TLS; but it never uses IPv6 for that name."""

        @property
        def endpoint(self) -> str:
            return f"{HOST}:{access.port}"

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # `pyspark.sql.functions` depend on it
    builder = Loopback(f"sc://localhost:{access.port}")
    builder.set("token", access.token)
    if session_id is not None:
        builder.set("session_id", session_id)
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")  # the error says the same, as SPARK_LOST
    session: Any = SparkSession.builder.channelBuilder(builder).create()
    session.client.set_retry_policies([DefaultPolicy(**_RETRIES)])
    return session  # type: ignore[no-any-return]
