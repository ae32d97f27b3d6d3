"""One Connect server and one nursery for the whole recovery run; a home a test."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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
    server = ChildServer(tmp_path_factory.mktemp("connect"))
    server.start()
    yield server.master
    server.stop()


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
