"""`deploy/entrypoint.sh`, which every container of the image runs: Dagster's services, and an executor of Spark."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pyspark
import pytest
from nobody import become_nobody, needs_root
from ports import free_ports

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "deploy" / "entrypoint.sh")
SPARK = Path(pyspark.__file__).parent
SECONDS = 240.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DRIVER = """
import sys, time
from pyspark.sql import SparkSession

made = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
here = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.port": sys.argv[2]}
for name, value in {**here, "spark.authenticate": "true", "spark.authenticate.secret": "of-the-test"}.items():
    made = made.config(name, value)
session = made.getOrCreate()
print("ready", session.sparkContext.applicationId, flush=True)
print("sum", session.sparkContext.parallelize(range(10), 2).map(lambda each: each + 1).sum(), flush=True)
session.stop()
"""


def environment(**variables: str) -> dict[str, str]:
    """Return an environment in which `python` and Dagster's programs are those of the tests, as in the image."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", **variables}


@contextlib.contextmanager
def started(command: Sequence[str], log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a session of its own; end it and all that it has started at the end of the block."""
    with log.open("wb") as file:
        given = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, "start_new_session": True}
        process = subprocess.Popen(command, env=environment(**variables), cwd=log.parent, **given)
    try:
        yield process
    finally:
        family = [process, *psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
        for each in reversed(family):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def wait_for(what: Callable[[], object], log: Path) -> object:
    end = time.monotonic() + SECONDS
    while not (found := what()):
        assert time.monotonic() < end, log.read_text(errors="replace")[-3000:]
        time.sleep(0.2)
    return found


def is_served(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("ends", ["the web page", "the container"])
def test_daemon_and_web_page_end_together(tmp_path: Path, ends: str) -> None:
    home, log, (port,) = tmp_path / "dagster", tmp_path / "log", free_ports(1)
    home.mkdir()
    shutil.copy(ROOT / "dagster.yaml", home)
    (tmp_path / "drainmark.toml").touch()
    variables = {"DAGSTER_HOME": str(home), "WORKSPACE": str(ROOT / "workspace.yaml"), "PORT": str(port)}
    with started([SCRIPT, "services"], log, DRAINMARK_HOME=str(tmp_path / "home"), **variables) as script:
        wait_for(lambda: is_served(port), log)
        both = psutil.Process(script.pid).children()
        (web,) = [each for each in both if any("web_server" in word for word in each.cmdline())]
        assert any("dagster-daemon" in word for each in both for word in each.cmdline())
        if ends == "the web page":
            web.kill()
        else:
            script.send_signal(signal.SIGTERM)
        assert script.wait(SECONDS) != 0
        assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in both)


@pytest.mark.parametrize("user", ["of the image", pytest.param("without a name", marks=needs_root)])
def test_an_executor_joins_its_driver_and_does_its_tasks(tmp_path: Path, user: str) -> None:
    """The variables are those that Spark gives to a pod of Kubernetes; the driver waits, as no worker offers one."""
    master_port, driver_port, web_port = free_ports(3)
    master, app = f"spark://127.0.0.1:{master_port}", tmp_path / "driver.py"
    app.write_text(DRIVER)
    options = ["--host", "127.0.0.1", "--port", str(master_port), "--webui-port", str(web_port)]
    command = [str(SPARK / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master", *options]
    secret = {"SPARK_CONF_DIR": str(tmp_path), "SPARK_HOME": str(SPARK)}
    (tmp_path / "spark-defaults.conf").write_text("spark.authenticate true\nspark.authenticate.secret of-the-test\n")
    log, said = tmp_path / "executor.log", tmp_path / "driver.log"
    with contextlib.ExitStack() as stack:
        stack.enter_context(started(command, tmp_path / "master.log", **secret))
        wait_for(lambda: "New state: ALIVE" in (tmp_path / "master.log").read_text(), tmp_path / "master.log")
        run = [sys.executable, str(app), master, str(driver_port)]
        stack.enter_context(started(run, said, PYSPARK_PYTHON=sys.executable))
        wait_for(lambda: "ready" in said.read_text(), said)
        given = {
            "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{driver_port}",
            "SPARK_APPLICATION_ID": said.read_text().partition("ready ")[2].split()[0],
            "SPARK_EXECUTOR_ID": "1",
            "SPARK_EXECUTOR_CORES": "1",
            "SPARK_EXECUTOR_MEMORY": "512m",
            "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
            "SPARK_EXECUTOR_POD_NAME": "one",
            "SPARK_RESOURCE_PROFILE_ID": "0",
            "SPARK_JAVA_OPT_0": f"-Dspark.driver.port={driver_port}",
            "SPARK_JAVA_OPT_1": "-Dsome.words=two words",
            "SPARK_JAVA_OPT_2": "-Dspark.authenticate=true",
            "_SPARK_AUTH_SECRET": "of-the-test",
            "SPARK_USER": "root",
        }
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        command = [SCRIPT, "executor"]
        if user == "without a name":
            command = become_nobody(command, place)
        stack.enter_context(started(command, log, TMPDIR=str(place), **given))
        wait_for(lambda: "sum 55" in said.read_text(), log)
