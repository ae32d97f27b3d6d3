"""One Connect server for all processes of the recovery run, one nursery a process; a home a test."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from graphs import BESIDE, GRAPHS
from scene import Build, Scene
from staged_graphs import is_unaligned

from drainmark.orchestration.testing.crash.children import Nursery
from drainmark.orchestration.testing.crash.connect_server import ChildServer

PATIENCE = 120.0


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the run's Connect server; one that runs already if the environment names it."""
    if address := os.environ.get("RECOVERY_CONNECT"):
        yield address
        return
    base = tmp_path_factory.getbasetemp()
    with shared_server(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) as address:
        yield address


@contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """Enter with the address of a server that all processes of the folder share: a JVM takes a minute to be warm.

    Who needs it first starts it, and who leaves last stops it; of one that is killed the kernel takes its share away.
    """
    note = folder / "connect-server"
    with (folder / "connect-users").open("a") as users:
        with locked(folder):
            if not note.exists():
                server = ChildServer(folder / "connect")
                server.start()
                note.write_text(f"{server.pid} {server.master}")
            fcntl.flock(users, fcntl.LOCK_SH)
        pid, address = note.read_text().split()
        try:
            yield address
        finally:
            with locked(folder):
                if is_alone(users):
                    note.unlink()
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(int(pid), signal.SIGKILL)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    with (folder / "connect-lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_alone(users: IO[str]) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """What forks the children of the run."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def begun(nursery: Nursery, connect: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Scene]:
    """Return a graph's scene whose first files are committed in one group, and its second region run; made once.

    In flight, it is one whose owner was killed with all other files begun, and a stage hanging.
    """
    made: dict[tuple[str, int, bool], Scene] = {}

    def make(graph: str, committed: int, in_flight: bool = False) -> Scene:
        key = graph, committed, in_flight
        if key not in made:
            folder = tmp_path_factory.mktemp(graph)
            if in_flight:
                made[key] = make(graph, committed).copied_to(folder)
                kill_in_flight(made[key], graph)
            else:
                made[key] = begin(nursery, connect, folder, graph, committed)
        return made[key]

    return make


@pytest.fixture
def midway(begun: Callable[..., Scene], tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Return a copy of a scene some way into its input: two files of five by default; the others are pending, or in
    flight as far as a state may be established before all stages have done it."""
    copies: list[Scene] = []

    def make(graph: str, committed: int = 2, *, in_flight: bool = False) -> Scene:
        copies.append(begun(graph, committed, in_flight).copied_to(tmp_path / str(len(copies))))
        copies[-1].gate.open()
        return copies[-1]

    yield make
    for scene in copies:
        scene.place.registry.close()


def begin(nursery: Nursery, connect: str, folder: Path, graph: str, committed: int) -> Scene:
    scene = GRAPHS[graph](nursery, connect, folder)
    if graph in BESIDE:
        scene.run_well(region=BESIDE[graph][0])
    later = [path for file in scene.files[committed:] for path in scene.behind.get(file, (file,))]
    for path in later:
        path.rename(path.with_suffix(".later"))
    if committed:
        scene.run_well()
    for path in later:
        path.with_suffix(".later").rename(path)
    if later:
        scene.run_well(["scan"])
    return scene


def kill_in_flight(scene: Scene, graph: str, group: int = 2) -> None:
    """Run a scene until a stage hangs and all before it is done, committed as far as may be; and kill the owner."""
    scene.gate.open()
    scene.gate.hold()
    child = scene.start(["run", group])
    try:
        deadline = time.monotonic() + PATIENCE
        while not is_hanging(scene, graph):
            assert time.monotonic() < deadline, f"nothing is in flight: {child.events()}\n{child.log_text()[-3000:]}"
            time.sleep(0.05)
    finally:
        child.signal(signal.SIGKILL)
        code = child.wait().code
        scene.gate.open()
    assert code == -signal.SIGKILL
    scene.unclean += 1


def is_hanging(scene: Scene, graph: str) -> bool:
    if not scene.gate.is_held:
        return False
    history = scene.history
    return not is_unaligned(graph) or (len(history.states) == len(scene.files) and bool(history.flow.channels))


@pytest.fixture
def build(nursery: Nursery, connect: str, tmp_path: Path) -> Iterator[Callable[[str | Build], Scene]]:
    """Build a scene by the name of its graph, or by a function."""
    scenes: list[Scene] = []

    def make(graph: str | Build) -> Scene:
        scene = (GRAPHS[graph] if isinstance(graph, str) else graph)(nursery, connect, tmp_path)
        scenes.append(scene)
        return scene

    yield make
    for scene in scenes:
        scene.place.registry.close()
