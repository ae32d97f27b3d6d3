"""One Connect server and one nursery for the whole recovery run; a home a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from children import Nursery
from connect_server import ConnectServer
from graphs import GRAPHS, Build
from scene import Scene


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the run's Connect server."""
    server = ConnectServer(tmp_path_factory.mktemp("connect"))
    server.start()
    yield server.master
    server.stop()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """What forks the children of the run."""
    nursery = Nursery()
    nursery.open()
    yield nursery
    nursery.close()


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
