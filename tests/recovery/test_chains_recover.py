"""A cascade that is killed at any of its commits: no table is wrong, and the same command goes on.

The command is a process of its own, killed by SIGKILL; the regions before and after it are fed by hand.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from by_hand import HandFed
from chained_by_hand import Reader, source_of, take
from killed_commands import KILLED, killed_at

from drainmark.jobs.failpoints import FailPoint
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

POINTS = (
    FailPoint.CLAIM_AFTER,
    FailPoint.REWIND_BEFORE,
    FailPoint.REWIND_AFTER,
    FailPoint.REWIND_TABLE_BEFORE,
    FailPoint.REWIND_TABLE_AFTER,
    FailPoint.NOTE_AFTER,
    FailPoint.RELEASE_BEFORE,
)
SAMPLE = {(FailPoint.REWIND_AFTER, 1), (FailPoint.REWIND_TABLE_BEFORE, 3), (FailPoint.REWIND_BEFORE, 3)}
"""After the last reader, between the readers and the region, and half way through the region."""

CASES = [
    pytest.param(point, number, id=f"{point}-{number}", marks=() if (point, number) in SAMPLE else pytest.mark.slow)
    for point in POINTS
    for number in (1, 2, 3, 4)
]


COMMAND = ("reset", "one/files", "--to", "1", "--cascade", "--yes", "--home")


@dataclass(frozen=True)
class Scene:
    """Two regions of files, `left` and `right`, which read them, and `last`, which reads these."""

    place: Workplace
    one: HandFed
    other: HandFed
    readers: tuple[Reader, Reader, Reader]

    @classmethod
    def at(cls, folder: Path) -> Scene:
        place = Workplace(Settings(home=folder / "home", project_root=folder))
        left, right, last = (
            Reader(place, folder / "none", region=f"{name}/rows", names=(name,),
                   sources=tuple(source_of(f"{name}_{table}", table) for table in tables))
            for name, tables in {"left": ("one",), "right": ("one", "other"), "last": ("left", "right")}.items()
        )  # fmt: skip
        one = HandFed(place, folder / "inbox", region="one/files", names=("one",))
        other = HandFed(place, folder / "others", region="other/files", names=("other",))
        return cls(place, one, other, (left, right, last))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a folder in which all regions have read two files of each, and a copy of its home."""
    folder, kept = tmp_path_factory.mktemp("chain"), tmp_path_factory.mktemp("kept") / "home"
    scene = Scene.at(folder)
    for name in "ab":
        take(scene.one, name)
        take(scene.other, name.upper())
        for each in scene.readers:
            each.run()
    scene.place.registry.close()
    shutil.copytree(folder / "home", kept)
    return folder, kept


@pytest.fixture
def scene(built: tuple[Path, Path]) -> Iterator[Scene]:
    folder, kept = built
    shutil.rmtree(folder / "home")
    shutil.copytree(kept, folder / "home")
    found = Scene.at(folder)
    yield found
    found.place.registry.close()


@pytest.mark.parametrize(("point", "number"), CASES)
def test_the_same_command_goes_on_after_a_kill(scene: Scene, point: FailPoint, number: int) -> None:
    one, readers, home = scene.one, scene.readers, str(scene.place.home)
    left, right, last = readers
    assert last.rows() == sorted("aabbAB")

    assert killed_at(f"{point}:kill:{number}", *COMMAND, home) == KILLED
    assert left.rows() in (["a"], ["a", "b"])
    assert right.rows() in (["A", "a"], sorted("aAbB"))
    assert last.rows() in (sorted("aaA"), sorted("aabbAB"))
    upstream_is_done = one.values() == [(1, "a")]
    assert not upstream_is_done or last.rows() == sorted("aaA"), "readers go back before what they read"

    assert invoke([*COMMAND, home]) == 0
    assert [each.rows() for each in readers] == [["a"], ["A", "a"], sorted("aaA")]
    assert one.values() == [(1, "a")]
    one.drain()
    for each in readers:
        each.run()
    assert last.rows() == sorted("aabbAB"), "each row once for each way, and nobody halts"
