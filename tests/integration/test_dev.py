"""`drainmark dev` as a script runs it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from drainmark.resources.spark.resident.server import HOST, free_port

_SECONDS = 180.0


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def status_of(port: int, path: str, **headers: str) -> int:
    connection = HTTPConnection(HOST, port, timeout=60)
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
        deadline = time.monotonic() + _SECONDS
        while not answers(port) and time.monotonic() < deadline:
            time.sleep(0.3)
        assert answers(port), (tmp_path / "dev.log").read_text()
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
