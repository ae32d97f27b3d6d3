"""A project with generated logs under `drainmark dev`, for the browser tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.testing.syslog import HOSTS, generate_syslog
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

ROOT = Path(__file__).parents[2]
REGION = "log_watch/lines"
JOB = "log_watch__lines"
WAIT_SECONDS = 420.0

SETTINGS = """
applications = ["log_watch"]
spark = "in-process"
spark_master = "local[2]"
linger_seconds = 0.0
sensor_interval_seconds = 1
max_group_triggers = 4

[spark_conf]
"spark.driver.memory" = "1g"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A running `drainmark dev` on its own project.

    Attributes:
        root: folder of the project.
        url: address of the web page.
        process: the server; its output is in `dev.log`.
    """

    root: Path
    url: str
    process: subprocess.Popen[bytes]
    instance: DagsterInstance
    workplace: Workplace

    def drop_logs(self, first_hour: int, last_hour: int) -> None:
        """Put the logs of these hours of all hosts into the inbox, one file for each host and hour."""
        count = last_hour * len(HOSTS)
        for file in list(generate_syslog(files_per_host=last_hour))[first_hour * len(HOSTS) : count]:
            file.write(self.root / "inbox")

    def wait_committed(self, triggers: int) -> None:
        """Wait until so many files are committed and published, and no run is active."""

        def is_done() -> bool:
            history = self.workplace.history(REGION)
            return (
                len(history.states) == triggers
                and not history.unpublished
                and all(run.status is DagsterRunStatus.SUCCESS for run in self.runs())
            )

        self.wait(is_done, f"{triggers} committed files")

    def wait_skip_reason(self, text: str) -> None:
        """Wait until the skip reason of the sensor's last tick contains a text."""

        def is_said() -> bool:
            for state in self.instance.all_instigator_state():
                if state.instigator_name == f"{JOB}__sensor":
                    ticks = self.instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
                    return bool(ticks) and text in (ticks[0].skip_reason or "")
            return False

        self.wait(is_said, f"a skip reason with {text!r}")

    def groups(self) -> list[Any]:
        """Return the last row of each group of the region, including withdrawn ones."""
        rows = self.workplace.store(REGION).checkpoint.rows()
        return [row for row in rows if row.kind is RowKind.STATE and row.sequence_id == row.group_last]

    def runs(self) -> list[DagsterRun]:
        """Return the region's runs, newest first."""
        return [run for run in self.instance.get_runs() if run.job_name == JOB]

    def wait(self, find: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if find():
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.3)
        pytest.fail(f"waited in vain for {what}: {(self.root / 'dev.log').read_text()[-4000:]}")


@contextmanager
def running_site(root: Path, port: int) -> Iterator[Site]:
    """Make the project below `root`, serve it on the loopback, and end all its processes afterwards."""
    (root / "inbox").mkdir(parents=True)
    (root / "drainmark.toml").write_text(SETTINGS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DRAINMARK_", "DAGSTER_"))}
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "dev", "--port", str(port)]
    home, url = root / ".drainmark", f"http://127.0.0.1:{port}"
    with (root / "dev.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=root, env={**kept, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        workplace = Workplace(Settings(home=home, project_root=root))
        try:
            with opened_instance(home / "dagster", url, process) as instance:
                yield Site(root=root, url=url, process=process, instance=instance, workplace=workplace)
        finally:
            end(process)
            workplace.registry.close()


@contextmanager
def opened_instance(folder: Path, url: str, process: subprocess.Popen[bytes]) -> Iterator[DagsterInstance]:
    """Open the instance once the server answers: two processes that create its storage at once disturb each other."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not answers(url) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.3)
    with DagsterInstance.from_config(str(folder)) as instance:
        yield instance


def answers(url: str) -> bool:
    """Say whether the web server answers."""
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=5):  # noqa: S310 - our own server
            return True
    except OSError:
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, then kill the processes that are left of its session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == process.pid:
                os.kill(pid, signal.SIGKILL)
    process.wait()
