"""One Connect server for all processes of the recovery run, one nursery for each process, a home for each test."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from graphs import BESIDE, GRAPHS
from scene import Build, Scene
from staged_graphs import is_unaligned
from waiting import eventually

from drainmark.orchestration.testing.crash.children import Nursery
from drainmark.orchestration.testing.crash.killing import ChildServer


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the run's Connect server; if the environment names a running one, use that."""
    if address := os.environ.get("RECOVERY_CONNECT"):
        yield address
        return
    base = tmp_path_factory.getbasetemp()
    with shared_server(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) as address:
        yield address


@contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """Yield the address of a server that all processes of the folder share: a JVM takes a minute to warm up.

    The first process to need it starts it, the last to leave stops it; the kernel frees the lock of a killed process.
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
    """Yield the process that forks the children of the run."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def begun(nursery: Nursery, connect: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Scene]:
    """Return a function that makes a graph's scene once: its first files are one committed group; a second region ran.

    With `in_flight`, the owner was killed while a stage hung and all other files were begun.
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
    """Yield a function that copies a scene in the middle of its input: two files of five by default. The others are
    pending; or in flight, as far as a state may be committed before all stages have done it."""
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
    """Run a scene until a stage hangs and all other work is done, and committed if possible; then kill the owner."""
    scene.gate.open()
    scene.gate.hold()
    child = scene.start(["run", group])
    try:
        eventually(lambda: is_hanging(scene, graph), lambda: f"{child.events()}\n{child.log_text()[-3000:]}")
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
    """Yield a function that builds a scene by the name of its graph, or by a function."""
    scenes: list[Scene] = []

    def make(graph: str | Build) -> Scene:
        scene = (GRAPHS[graph] if isinstance(graph, str) else graph)(nursery, connect, tmp_path)
        scenes.append(scene)
        return scene

    yield make
    for scene in scenes:
        scene.place.registry.close()
