"""`drainmark dev` as a script runs it."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest
from ports import free_port
from waiting import SOON, eventually

from drainmark.resources.spark.resident.files import Access, all_servers
from drainmark.resources.spark.resident.server import HOST

SECURITY = (Path(__file__).parents[2] / "SECURITY.md").read_text()
UNIX = "Unix socket"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def status_of(port: int, path: str, **headers: str) -> int:
    connection = HTTPConnection(HOST, port, timeout=SOON)
    connection.request("GET", path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.slow
@pytest.mark.seed("NU9")
def test_it_ends_at_sigterm_where_a_script_started_it_in_the_background(tmp_path: Path) -> None:
    """A shell lets its background processes ignore SIGINT, and Dagster handles SIGTERM as SIGINT."""
    (tmp_path / "drainmark.toml").write_text('spark = "in-process"\n')
    port = free_port()
    dev = f"{sys.executable} -m drainmark.orchestration.cli.main dev --port {port}"
    script = f"{dev} > dev.log 2>&1 & echo $!; wait $!"
    command = ["bash", "-c", script]
    shell = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    try:
        eventually(lambda: answers(port), (tmp_path / "dev.log").read_text)
        mutation = "/graphql?query=mutation%7Bterminate(runId:%22x%22)%7B__typename%7D%7D"
        assert status_of(port, mutation) == 405, "the page is behind the guard"
        assert status_of(port, "/server_info", Host="evil.example") == 403
        assert status_of(port, "/server_info") == 200
        os.kill(pid, signal.SIGTERM)
        assert shell.wait(60) == 0
        assert not answers(port)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()


def sockets(process: psutil.Process) -> Iterator[tuple[str, int]]:
    """Yield address and port of each TCP socket that a process listens on, and the path of each Unix socket."""
    for each in process.net_connections(kind="all"):
        if each.family == socket.AF_UNIX:
            if each.laddr and Path(each.laddr).is_socket():
                assert not stat.S_IMODE(Path(each.laddr).stat().st_mode) & 0o022, f"others may write to {each.laddr}"
                yield UNIX, 0
        elif each.status == psutil.CONN_LISTEN or each.type == socket.SOCK_DGRAM:
            yield each.laddr.ip.removeprefix("::ffff:"), each.laddr.port


@pytest.mark.slow
def test_what_listens_is_in_the_table_of_security(tmp_path: Path) -> None:
    """A socket that nobody has thought about is one that strangers may use; the umask does not open any."""
    (tmp_path / "drainmark.toml").write_text('[spark_conf]\n"spark.driver.memory" = "1g"\n')
    port = free_port()
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "dev", "--port", str(port)]
    listed = set(re.findall(r"^\| `([^`]+)` \| ([^|]+?) \|", SECURITY, re.MULTILINE))
    with (tmp_path / "dev.log").open("wb") as log:
        dev = subprocess.Popen(
            command, cwd=tmp_path, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, umask=0
        )

    def resident() -> Access | None:
        found = [files.access() for files in all_servers(tmp_path / ".drainmark" / "spark")]
        return next((access for access in found if access is not None and access.is_up), None)

    try:
        access = eventually(resident, "the resident Spark")
        eventually(lambda: answers(port), "the web page")
        names = {port: "web page", port + 1: "pages of regions"}
        found = set()
        ours = [psutil.Process(dev.pid), *psutil.Process(dev.pid).children(recursive=True)]
        for process in [*ours, psutil.Process(access.keeper), *psutil.Process(access.keeper).children(recursive=True)]:
            line = " ".join(process.cmdline())
            for address, at in sockets(process):
                known = (name for name, _ in listed if name in line)
                found.add((names.get(at) or next(known, line), address))
        assert found <= listed
        assert {"web page", "pages of regions", "dagster code-server", "SparkConnectServer"} <= {
            name for name, _ in found
        }
    finally:
        dev.terminate()
        dev.wait(60)
    eventually(lambda: not psutil.pid_exists(access.pid), "the end of the resident Spark")
