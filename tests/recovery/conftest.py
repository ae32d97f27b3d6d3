"""One Connect server and one nursery for the whole recovery run; a home a test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from graphs import GRAPHS, SECOND_REGION, Build
from scene import Scene

from orchestration.testing.children import Nursery
from orchestration.testing.connect_server import ConnectServer


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the run's Connect server; one that runs already if the environment names it."""
    if address := os.environ.get("RECOVERY_CONNECT"):
        yield address
        return
    server = ConnectServer(tmp_path_factory.mktemp("connect"))
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
def begun(nursery: Nursery, connect: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Scene]:
    """Return a graph's scene whose first files are committed in one group, and its second region run; made once."""
    made: dict[tuple[str, int], Scene] = {}

    def make(graph: str, committed: int) -> Scene:
        if (graph, committed) not in made:
            made[graph, committed] = begin(nursery, connect, tmp_path_factory.mktemp(graph), graph, committed)
        return made[graph, committed]

    return make


@pytest.fixture
def midway(begun: Callable[[str, int], Scene], tmp_path: Path) -> Iterator[Callable[[str, int], Scene]]:
    """Return a copy of a scene some way into its input: two files of five by default; the others are pending."""
    copies: list[Scene] = []

    def make(graph: str, committed: int = 2) -> Scene:
        copies.append(begun(graph, committed).copied_to(tmp_path / str(len(copies))))
        return copies[-1]

    yield make
    for scene in copies:
        scene.place.registry.close()


def begin(nursery: Nursery, connect: str, folder: Path, graph: str, committed: int) -> Scene:
    scene = GRAPHS[graph](nursery, connect, folder)
    if graph == "two_regions":
        scene.run_well(region=SECOND_REGION)
    later = scene.files[committed:]
    for path in later:
        path.rename(path.with_suffix(".later"))
    if committed:
        scene.run_well()
    for path in later:
        path.with_suffix(".later").rename(path)
    if later:
        scene.run_well(["scan"])
    return scene


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
