"""The clients for which the keeper keeps the resident Spark, and the files it reads; real processes and sockets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from drainmark.jobs.errors import SparkLost
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.doctor.machine import resident_spark
from drainmark.resources.processes import process_started
from drainmark.resources.spark.resident import keeper as keeping
from drainmark.resources.spark.resident.access import ResidentServer
from drainmark.resources.spark.resident.files import TAKEN, Access, Plan, ServerFiles, task_environment
from drainmark.resources.spark.resident.keeper import Keeper

IDLE_SECONDS = 100.0


@pytest.fixture
def files(tmp_path: Path) -> ServerFiles:
    plan = Plan(settings={"spark.master": "local[1]"}, idle_seconds=IDLE_SECONDS, python=sys.executable, path=("here",))
    return ServerFiles.of(tmp_path / "spark", plan)


class Clock:
    """A keeper with a clock that the test moves; `listener`, a socket of this process, stands for the server."""

    def __init__(self, files: ServerFiles, monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
        self.now = 1000.0
        monkeypatch.setattr(keeping, "time", SimpleNamespace(monotonic=lambda: self.now))
        plan = files.plan()
        assert plan is not None
        self.keeper = Keeper(files, plan)
        self.keeper._server = SimpleNamespace(pid=os.getpid(), port=listener.getsockname()[1])  # type: ignore[assignment]

    def is_wanted_after(self, seconds: float) -> bool:
        self.now += seconds
        return self.keeper._is_wanted()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


@pytest.fixture
def clock(files: ServerFiles, monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> Clock:
    return Clock(files, monkeypatch, listener)


@contextmanager
def connected(listener: socket.socket) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(socket.create_connection(listener.getsockname()))
        stack.enter_context(listener.accept()[0])
        yield


@contextmanager
def process() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


def test_a_client_at_work_outlives_the_owners(files: ServerFiles, clock: Clock, listener: socket.socket) -> None:
    """`drainmark run` shares the server of a `drainmark dev` that ended; its group is not killed after half an hour."""
    with process() as owner:
        files.own(owner)
        assert clock.is_wanted_after(0)
    with process() as client, connected(listener):
        files.enter(client)
        for _ in range(60):
            assert clock.is_wanted_after(30)
        files.leave(client)
        files.enter(client)
        assert clock.is_wanted_after(1)
    assert clock.is_wanted_after(1), "the grace begins when the last client is gone"
    assert not clock.is_wanted_after(keeping.OWNERLESS_SECONDS)
    assert files.clients() == []


def test_a_client_without_a_connection_keeps_it(files: ServerFiles, clock: Clock) -> None:
    """It is about to connect, or gRPC has closed its connection because the run waits for input."""
    with process() as client:
        files.enter(client)
        assert clock.is_wanted_after(0)
        assert clock.is_wanted_after(IDLE_SECONDS + 1)
    assert clock.is_wanted_after(IDLE_SECONDS)
    assert not clock.is_wanted_after(1)


def test_a_connection_without_a_name_has_its_grace(files: ServerFiles, clock: Clock, listener: socket.socket) -> None:
    with process() as owner:
        files.own(owner)
        assert clock.is_wanted_after(0)
    with connected(listener):
        assert clock.is_wanted_after(1)
        assert clock.is_wanted_after(keeping.CLIENT_GRACE_SECONDS - 1)
        assert not clock.is_wanted_after(2)


def test_a_client_that_has_left_keeps_nothing(files: ServerFiles, clock: Clock) -> None:
    with process() as owner, process() as client:
        files.own(owner)
        files.enter(client)
        files.leave(client)
        assert clock.is_wanted_after(0)
        assert (files.owners(), files.clients()) == ([owner], [])
    assert clock.is_wanted_after(0)
    assert not clock.is_wanted_after(keeping.OWNERLESS_SECONDS)


def test_who_came_since_the_last_count_keeps_it(clock: Clock, listener: socket.socket) -> None:
    """Connections are counted every five seconds; the decision to stop a server needs a count of that moment."""
    assert clock.is_wanted_after(IDLE_SECONDS - 1), "counted: nobody"
    with connected(listener):
        assert clock.is_wanted_after(2)
    assert clock.is_wanted_after(IDLE_SECONDS)
    assert not clock.is_wanted_after(1)


def test_a_living_owner_is_never_lost_to_a_reader(files: ServerFiles) -> None:
    """Two threads register the owner again and again, as ticks do, while another thread reads, as the keeper does."""
    pid, done = os.getpid(), threading.Event()
    files.own(pid)

    def want() -> None:
        while not done.is_set():
            files.own(pid)

    writers = [threading.Thread(target=want) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        assert {tuple(files.owners()) for _ in range(3000)} == {(pid,)}
    finally:
        done.set()
        for writer in writers:
            writer.join()


def test_an_entry_of_an_earlier_boot_is_said_again(files: ServerFiles) -> None:
    pid = os.getpid()
    entry = files.folder / "owners" / f"{pid}-{process_started(pid)}"
    entry.parent.mkdir()
    entry.write_text("another boot")
    files.own(pid)
    assert files.owners() == [pid]
    entry.write_text("another boot")
    assert files.owners() == []
    assert not entry.exists()


ACCESS = {"keeper": 1, "keeper_started": "1", "boot": "b"}


@pytest.mark.parametrize("found", [{**ACCESS, "cores": 2}, {"keeper": 1}, [1, 2], 7])
def test_the_address_another_version_wrote_is_none(files: ServerFiles, found: Any) -> None:
    (files.folder / "access.json").write_text(json.dumps(found))
    assert files.access() is None
    (finding,) = resident_spark(files.folder.parents[2])
    assert "does not run" in finding.message


@pytest.mark.parametrize("found", [{"path": ["here"], "cores": 2}, {"settings": {}}, [1], 7])
def test_the_plan_another_version_wrote_is_none_and_is_written_anew(files: ServerFiles, found: Any) -> None:
    plan = files.plan()
    assert plan is not None
    (files.folder / "plan.json").write_text(json.dumps(found))
    assert files.plan() is None
    assert ServerFiles.of(files.folder.parents[1], plan).plan() == plan


def test_what_is_saved_is_read_again(files: ServerFiles) -> None:
    access = Access(keeper=1, keeper_started="1", boot="b", port=7, failure="no memory")
    files.save(access)
    assert files.access() == access


@pytest.mark.parametrize("variable", ["AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "MYSQL_PWD"])
def test_a_server_is_shared_by_whoever_reaches_stores_alike(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Tasks have the environment of the server's start, so other credentials need another server."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "PG", "MYSQL_"))]:
        monkeypatch.delenv(name)
    without = task_environment()
    monkeypatch.setenv(variable, "one-that-is-secret")
    one = task_environment()
    monkeypatch.setenv(variable, "another-that-is-secret")
    assert len({without, one, task_environment()}) == 3
    assert "secret" not in one


@pytest.mark.parametrize(
    ("module", "text"),
    [
        pytest.param("psutil", "raise ImportError('psutil is broken here')", id="when it is imported"),
        pytest.param("secrets", "def token_urlsafe(n): raise ValueError('no secret here')", id="when it is at work"),
    ],
)
def test_a_keeper_that_ends_at_its_start_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str
) -> None:
    """A run waited for two minutes for a keeper that was gone, and then named no reason."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "broken")
    server = ResidentServer(tmp_path / "spark", "local[1]", {}, idle_seconds=60)
    with pytest.raises(SparkLost) as lost:
        server.wait(seconds=3600)
    assert text.split("'")[1] in str(lost.value)
    assert "keeper.log" in str(lost.value)


def test_who_finds_another_keeper_waits_for_it(files: ServerFiles) -> None:
    command = [sys.executable, "-m", "drainmark.resources.spark.resident.keeper", str(files.folder)]
    with files.kept() as is_mine:
        assert is_mine
        assert subprocess.run(command, check=False).returncode == TAKEN
    (files.folder / "plan.json").write_text("of another release")
    assert subprocess.run(command, check=False).returncode == 1, "it ended, and said nothing"


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerFiles]:
    """The files of a keeper that goes on trying, since there is no Java and its owner, this process, lives."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    server = ResidentServer(tmp_path / "home" / "spark", "local[1]", {}, idle_seconds=60)
    server.want(owner=os.getpid())
    yield server.files
    if (access := server.files.access()) is not None:
        os.kill(access.keeper, 9)


def test_what_is_kept_is_listed_and_stopped(
    tmp_path: Path, failing: ServerFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path / "home")]
    while not (failing.access() or Access(keeper=0, keeper_started="", boot="")).failure:
        time.sleep(0.05)
    assert invoke(["sparks", *home, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["state"], told["pid"], told["owners"], told["stopped"]) == ("failing", None, [os.getpid()], False)
    with process() as run:
        failing.enter(run)
        assert invoke(["sparks", "--stop", *home]) == 2
        assert f"pid {run}" in capsys.readouterr().err
        assert psutil.pid_exists(told["keeper"])
        assert invoke(["sparks", "--stop", "--yes", *home]) == 0
    assert "stopped" in capsys.readouterr().out
    assert process_started(told["keeper"]) is None
    assert invoke(["sparks", *home]) == 0
    assert "no resident Spark" in capsys.readouterr().out
