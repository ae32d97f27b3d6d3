"""Spark clusters on this machine for tests: a standalone master, and workers that share its disk or see none of it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import quick_jvm
from ports import free_port

from drainmark.jobs.frames.tags import POSITION
from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.spark.session_settings import SessionSettings, write_properties
from drainmark.resources.storage.folder import Folder

HOST = "127.0.0.1"
_SPARK = Path(pyspark.__file__).parent
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SECONDS = 120.0

CONF = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": quick_jvm.options(),
    "spark.executor.extraJavaOptions": quick_jvm.options(is_executor=True),
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings of Spark: two executors, and one partition for small files."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The end of a verb: the JSON that it printed, or its error."""

    code: int
    printed: Any
    error: dict[str, Any]
    told: str


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with `app.py`, an inbox and a home; the command line runs it in new processes."""

    folder: Path
    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark beside `CONF`."""

    def write(self, app: str, files: dict[str, str], **settings: Any) -> None:
        (self.folder / "inbox").mkdir(parents=True)
        (self.folder / "app.py").write_text(app)
        for name, text in files.items():
            (self.folder / "inbox" / name).write_text(text)
        values = {"home": "home", "spark_master": self.master, "retry_backoff_seconds": 0.1, **settings}
        (self.folder / "drainmark.toml").write_text(f"{_toml(values)}[spark_conf]\n{_toml({**CONF, **self.conf})}")

    def drainmark(self, *arguments: str, **variables: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "drainmark.orchestration.cli.main", *arguments, "--json"],
            cwd=self.folder, env=environment() | variables, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        last = done.stderr.strip().splitlines()[-1:]
        error = json.loads(last[0])["error"] if done.returncode and last and last[0].startswith("{") else {}
        printed = json.loads(done.stdout) if done.stdout.strip() else None
        return Ran(done.returncode, printed, error, done.stderr)

    @contextlib.contextmanager
    def killed_run(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start a run of `app.py` that logs to `run.log`; kill it with all its processes at the end of the block."""
        with (self.folder / "run.log").open("w") as log:
            run = subprocess.Popen(
                [sys.executable, "-m", "drainmark.orchestration.cli.main", "run", "app.py"],
                cwd=self.folder, env=environment(), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield run
        finally:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()

    def rows(self, table: str) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        found: list[dict[str, Any]] = DeltaTable(self.folder / "home" / "lake" / table).to_pyarrow_table().to_pylist()
        return found


def rows_of(table: Folder) -> list[dict[str, Any]]:
    """Return the rows of a visible table, without their places within an id, which no oracle tells."""
    return [
        {column: value for column, value in row.items() if column != POSITION}
        for file in file_lists.live_files(delta_tables.open_table(table), table)
        for row in pq.read_table(table.source(file.path)).to_pylist()
    ]


def _toml(values: Mapping[str, Any]) -> str:
    return "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in values.items())


def environment(host: str = HOST) -> dict[str, str]:
    """Return the environment of workers and drivers: their Python is that of this process.

    Args:
        host: address that they listen on.
    """
    left_out = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "PYTHONPATH")
    own = {name: value for name, value in os.environ.items() if name not in left_out}
    daemons = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": quick_jvm.options(is_executor=True)}
    return {**own, **daemons, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(_SPARK), "SPARK_LOCAL_IP": host}


def why_not_isolated() -> str:
    """Return why workers cannot have their own disks here; "" if they can."""
    try:
        done = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no unshare"
    return "" if done.returncode == 0 else f"unshare -m is not permitted: {done.stderr.strip()}"


@contextlib.contextmanager
def standalone(
    folder: Path,
    *,
    hidden: Sequence[Path] = (),
    workers: int = 1,
    host: str = HOST,
    defaults: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Start a master, and workers with two cores together; yield the address of the master.

    Args:
        folder: the folder of their logs and work; the workers see it.
        hidden: folders that are empty for each worker: only the worker itself sees the files that it writes there.
        host: address that they listen on.
        defaults: their `conf/spark-defaults.conf`.
    """
    port = free_port()
    write_properties(folder / "conf" / "spark-defaults.conf", defaults or {})
    variables = {"SPARK_LOCAL_IP": host, "SPARK_CONF_DIR": str(folder / "conf")}
    address = f"spark://{host}:{port}"
    spark_class = str(_SPARK / "bin" / "spark-class")
    where = ["--host", host, "--webui-port", str(free_port())]
    master = [spark_class, "org.apache.spark.deploy.master.Master", *where, "--port", str(port)]
    worker = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", host, "-c", str(2 // workers),
              "-m", f"{1024 // workers}m", "-d", str(folder / "work")]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start(master, folder / "master.log", **variables))
        _await_port(port, started[0], host)
        for number in range(workers):
            own = [*worker, "--webui-port", str(free_port()), address]
            started.append(_start(_hiding(hidden, own), folder / f"worker-{number}.log", **variables))
        yield address
    finally:
        _end(started)


@contextlib.contextmanager
def connect_server(
    folder: Path,
    *,
    hidden: Sequence[Path] = (),
    python: Path | str = sys.executable,
    master: str = "local[2]",
    conf: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Start a Connect server that is not the project's; yield its address.

    Args:
        folder: the folder of its log and work.
        hidden: folders that are empty for the server and its workers.
        python: the Python of its workers.
        master: the master of its session; with a local one, the server is one JVM.
        conf: settings of Spark beside `CONF`.
    """
    port = free_port()
    own = {"spark.connect.grpc.binding.address": HOST, "spark.connect.grpc.binding.port": str(port)}
    settings = SessionSettings(master=master, conf={**CONF, **own, **(conf or {})}, scratch=folder / "work").of_start()
    options = [each for name, value in settings.items() for each in ("--conf", f"{name}={value}")]
    server = [
        str(_SPARK / "bin" / "spark-submit"),
        "--master",
        master,
        *options,
        "--class",
        _CONNECT,
        "spark-internal",
    ]
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"SPARK_DAEMON_MEMORY": "1g", "PYSPARK_PYTHON": str(python)}  # a server ignores the setting for it
    started = [_start(_hiding(hidden, server), folder / "server.log", **variables)]
    try:
        _await_port(port, started[0])
        yield f"sc://{HOST}:{port}"
    finally:
        _end(started)


def python_without_drainmark(
    folder: Path, others: Mapping[str, str] | None = None, lacking: Sequence[str] = ()
) -> Path:
    """Make an environment with all installed packages except Drainmark; return its Python.

    Args:
        others: the texts of files that are installed instead, by path.
        lacking: the names of packages that are left out.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for each in _SPARK.parent.iterdir():
        package = each.name.partition("-")[0].removesuffix(".libs")
        if "drainmark" not in package and package not in lacking and not each.name.endswith(".pth"):
            (site / each.name).symlink_to(each)
    for name, text in (others or {}).items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    return folder / "bin" / "python"


def _hiding(hidden: Sequence[Path], command: list[str]) -> list[str]:
    """Return a command that sees some folders as empty."""
    if not hidden:
        return command
    mounts = "".join(f"mount -t tmpfs tmpfs {shlex.quote(str(path))} && " for path in hidden)
    return ["unshare", "-m", "--propagation", "private", "bash", "-c", f"{mounts}exec {shlex.join(command)}"]


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in reversed(started):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _start(command: Sequence[str], log: Path, **variables: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment() | variables,
            start_new_session=True,
        )  # fmt: skip


def _await_port(port: int, process: subprocess.Popen[bytes], host: str = HOST) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on {port}")
