"""A Spark Connect server as a child process: bound to the loopback, with a token that no command line shows."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from drainmark.jobs.errors import SparkLost
from drainmark.resources.spark.session import check_java
from drainmark.resources.spark.session_settings import UTC, write_properties

START_SECONDS = 90.0
"""How long a server may take until it listens, on a machine that is busy."""

HOST = "127.0.0.1"
_MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_POLL_SECONDS = 0.1
_LOG_BYTES = 16 * 1024 * 1024
_PR_SET_PDEATHSIG = 1


class ConnectServer:
    """One start of a server, the leader of a process group of its own.

    Args:
        folder: for its log and configuration; made if it is not there.
        settings: Spark's, by full name. They are read from a file of mode 0600, since `ps` shows arguments to everyone.
        token: that every client must send; None if clients need none.
        dies_with_parent: SIGKILL for the server when the thread that started it ends (Linux only).
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, str], *, token: str | None = None, dies_with_parent: bool = False
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.token = token
        self._settings = dict(settings)
        self._dies_with_parent = dies_with_parent
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def master(self) -> str:
        return f"sc://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Start it and wait until it listens.

        Args:
            is_wanted: called while it waits; False gives up.

        Raises:
            SparkLost: it ended, or did not listen in time; with the end of its log.
            JavaMissing: there is no Java runtime.
        """
        check_java()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process = self._spawn()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.is_alive and is_wanted():
            if self.answers():
                return
            time.sleep(_POLL_SECONDS)
        self.stop()
        said = self.log.read_text(errors="replace")[-2000:].strip()
        raise SparkLost(f"the Spark Connect server did not start: {said}", remedy=f"see {self.log}")

    def answers(self) -> bool:
        """Say whether it takes connections."""
        with socket.socket() as probe:
            probe.settimeout(2)
            return probe.connect_ex((HOST, self.port)) == 0

    def stop(self) -> None:
        """End the server and its Python workers: all of the process group that it leads."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _spawn(self) -> subprocess.Popen[bytes]:
        import pyspark

        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        configuration = self._write_configuration()
        # Workers of Python functions can import the same modules as the starter.
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, **UTC, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
        for name in ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_CONNECT_AUTHENTICATE_TOKEN"):
            environment.pop(name, None)
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.unlink()
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [str(submit), "--properties-file", str(configuration), "--class", _MAIN_CLASS, "spark-internal"],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
                preexec_fn=_die_with_parent if self._dies_with_parent else None,  # noqa: PLW1509 - the keeper has one thread
            )

    def _write_configuration(self) -> Path:
        settings = {
            **self._settings,
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.python.daemon.module": "drainmark.resources.spark.resident.python_daemon",
        }
        if self.token is not None:
            settings["spark.connect.authenticate.token"] = self.token
        path = self.folder / "server.conf"
        write_properties(path, settings)
        return path


def free_port() -> int:
    """Return a port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    """Ask Linux for a SIGKILL when the parent dies; this stays in force when shell scripts exec the JVM."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
