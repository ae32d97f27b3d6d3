"""A region whose sinks left the code: one home a module, a copy of it a test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from by_hand import HandFed, Shown

from drainmark.jobs import failpoints
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings


def opened(folder: Path) -> Workplace:
    databases = {"shop": "sqlite:///{home}/shop.db"}
    return Workplace(Settings(home=folder / "home", project_root=folder, databases=databases))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    found = opened(tmp_path)
    yield found
    failpoints.arm("")
    found.registry.close()


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a region with six ids; after the fourth id, every sink except one has left the code."""
    folder = tmp_path_factory.mktemp("left")
    scene = Shown(opened(folder), folder / "inbox", names=("kept", "copied"))
    feed(scene, "abcd")
    scene.names, scene.sinks = ("kept",), ()
    feed(scene, "ef")
    scene.workplace.registry.close()
    return folder


@pytest.fixture
def fed(left: Path, tmp_path: Path) -> Iterator[Shown]:
    """Yield a copy of that region, in a home for one test."""
    shutil.copytree(left / "home", tmp_path / "home")
    place = opened(tmp_path)
    yield Shown(place, left / "inbox", sinks=())
    failpoints.arm("")
    place.registry.close()


def feed(fed: HandFed, names: str) -> None:
    for name in names:
        fed.write(name, [f"{name}1", f"{name}2"])
        fed.add(name)
    fed.drain()


def rows_up_to(to: int) -> list[tuple[int, str]]:
    return [(number, f"{name}{part}") for number, name in enumerate("abcdef", 1) for part in (1, 2) if number <= to]
