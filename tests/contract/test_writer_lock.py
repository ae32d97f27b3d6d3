"""One writer JVM at a time, because two overwrite each other's commits: other, stopped (H25), dead JVMs; one server."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from waiting import SOON, eventually

from drainmark.jobs.errors import Retry, WriterBusy
from drainmark.resources.delta.adopted import writer_lock
from drainmark.resources.delta.adopted.writer_lock import WriterProcess, writing

HOLD = """
import sys
from pathlib import Path
from drainmark.resources.delta.adopted.writer_lock import WriterProcess, writing
with writing(Path(sys.argv[1]), WriterProcess(jvm=sys.argv[2], master=sys.argv[3])):
    print("held", flush=True)
    sys.stdin.read()
"""
MINE = WriterProcess(jvm="mine", master="local[2]")


@contextmanager
def holder(table: Path, writer: WriterProcess) -> Iterator[subprocess.Popen[str]]:
    """Yield another process that holds the lock until its standard input ends."""
    command = [sys.executable, "-c", HOLD, str(table), writer.jvm, writer.master]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_another_jvm_is_refused_with_the_holders_pid_and_let_in_afterwards(tmp_path: Path) -> None:
    with holder(tmp_path, WriterProcess(jvm="other", master="local[2]")) as process:
        with pytest.raises(WriterBusy) as refused, writing(tmp_path, MINE, patience_seconds=0.2):
            pass
        assert refused.value.facts["pid"] == process.pid
        assert refused.value.retry is Retry.WAIT
        process.communicate("", timeout=SOON)
        with writing(tmp_path, MINE, patience_seconds=0.2):
            pass


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGSTOP)
    eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "a process that stands still")


@pytest.mark.seed("H25")
def test_a_stopped_holder_never_lets_go_and_the_error_says_how_to_end_it(tmp_path: Path) -> None:
    with holder(tmp_path, WriterProcess(jvm="other", master="local[2]")) as process:
        stop(process)
        with pytest.raises(WriterBusy) as refused, writing(tmp_path, MINE, patience_seconds=0.2):
            pass
        assert "is stopped" in refused.value.message
        assert f"kill -KILL {process.pid}" in (refused.value.remedy or "")


@pytest.mark.parametrize("other", [{"boot": "another container's"}, {"started": "1"}, {"boot": None, "started": None}])
def test_nobody_is_told_to_kill_a_process_that_only_has_the_holders_pid(tmp_path: Path, other: dict[str, str]) -> None:
    """The holder's pid is one of another container, or of an earlier process, or was written without those."""
    with holder(tmp_path, WriterProcess(jvm="other", master="local[2]")) as process:
        stop(process)
        lock = tmp_path / writer_lock.LOCK_FILE
        record = {**json.loads(lock.read_text()), **other}
        lock.write_text(json.dumps({key: value for key, value in record.items() if value is not None}))
        with pytest.raises(WriterBusy) as refused, writing(tmp_path, MINE, patience_seconds=0.2):
            pass
        assert "is stopped" not in refused.value.message
        assert "kill" not in (refused.value.remedy or "")


def test_clients_of_one_server_are_one_writer(tmp_path: Path) -> None:
    """Inside a JVM, delta-spark sees conflicts; a stopped client does not stop the next one from taking over."""
    server = WriterProcess(jvm="app-1", master="sc://127.0.0.1:15002")
    with holder(tmp_path, server) as process:
        stop(process)
        shared = writing(tmp_path, server, patience_seconds=0.2)
        with shared, pytest.raises(WriterBusy), writing(tmp_path, MINE, patience_seconds=0.2):
            pass


def test_the_jvm_of_a_killed_process_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM ends about a second after its Python."""
    monkeypatch.setattr(writer_lock, "_JVM_ENDS_SECONDS", 0.3)
    with holder(tmp_path, WriterProcess(jvm="other", master="local[2]")) as process:
        process.kill()
        process.wait()
    before = time.monotonic()
    with writing(tmp_path, MINE, patience_seconds=0.2):
        assert time.monotonic() - before >= 0.3


@pytest.mark.parametrize("is_up", [True, False])
def test_a_server_whose_client_was_killed_may_still_be_at_it(tmp_path: Path, is_up: bool) -> None:
    """A server went on for 10.8 s after the death of its client, and committed."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if is_up:
            server.listen()
        remote = WriterProcess(jvm="app-1", master=f"sc://127.0.0.1:{server.getsockname()[1]}/;token=x")
        with holder(tmp_path, remote) as process:
            process.kill()
            process.wait()
        with writing(tmp_path, remote, patience_seconds=0.2):
            pass  # the same JVM is let in; it leaves no trace of a commit under way
        with holder(tmp_path, remote) as process:
            process.kill()
            process.wait()
        if is_up:
            with pytest.raises(WriterBusy, match="may still"), writing(tmp_path, MINE, patience_seconds=0.2):
                pass
        else:
            with writing(tmp_path, MINE, patience_seconds=0.2):
                pass


def test_a_server_that_was_started_again_is_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server at the address has another JVM; the one that was to be waited for has ended."""
    monkeypatch.setattr(writer_lock, "_JVM_ENDS_SECONDS", 0.3)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"sc://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ZeroDivisionError), writing(tmp_path, WriterProcess(jvm="app-1", master=address)):
            raise ZeroDivisionError
        before = time.monotonic()
        with writing(tmp_path, WriterProcess(jvm="app-2", master=f"{address}/;token=x"), patience_seconds=0.2):
            assert time.monotonic() - before >= 0.3


def test_a_failed_commit_of_a_living_process_keeps_nobody_out(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing(tmp_path, MINE):
        raise ZeroDivisionError
    with writing(tmp_path, WriterProcess(jvm="other", master="local[2]"), patience_seconds=0.2):
        pass
