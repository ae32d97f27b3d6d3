"""One local Spark Connect server for all processes that are to be killed: a run then costs a connection, not a JVM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from jobs.errors import StoreUnavailable
from resources.spark import CORRECTNESS, SPEED, check_java, delta_settings

_START_SECONDS = 90.0


class ConnectServer:
    """A Connect server on the loopback, with the settings of an in-process session; a child of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def master(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it listens.

        Raises:
            StoreUnavailable: it ended, or did not listen in time; with the end of its log.
        """
        import pyspark

        check_java()
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            **SPEED,
            **CORRECTNESS,
            **delta_settings(),
            "spark.master": "local[2]",
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.local.dir": str(self.folder / "local"),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
        }
        options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
        environment.pop("SPARK_CONNECT_MODE_ENABLED", None)
        with (self.folder / "server.log").open("wb") as log:
            process = self._process = subprocess.Popen(
                [str(submit), "--class", server, *options, "spark-internal"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self._await(process)

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        self.stop()
        text = (self.folder / "server.log").read_text(errors="replace")
        raise StoreUnavailable(f"the Connect server did not start: {text[-2000:]}", remedy="see its log above")

    def stop(self) -> None:
        """End the server and its Python workers: all of the process group that it leads."""
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
