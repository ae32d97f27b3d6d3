"""A cascade that is killed at any of its commits: no table is wrong, and the same command goes on.

The command is a process of its own, killed by SIGKILL; the regions before and after it are fed by hand.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from by_hand import HandFed
from chained_by_hand import Reader, source_of, take

from drainmark.jobs.failpoints import ENVIRONMENT, FailPoint
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


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    found = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    yield found
    found.registry.close()


def reset(place: Workplace, failpoint: str = "") -> int:
    command = [
        sys.executable,
        "-m",
        "drainmark.orchestration.cli.main",
        "reset",
        "one/files",
        "--to",
        "1",
        "--cascade",
        "--yes",
    ]
    environment = {**os.environ, ENVIRONMENT: failpoint}
    done = subprocess.run([*command, "--home", str(place.home)], env=environment, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode


@pytest.mark.parametrize(("point", "number"), CASES)
def test_the_same_command_goes_on_after_a_kill(place: Workplace, tmp_path: Path, point: FailPoint, number: int) -> None:
    one = HandFed(place, tmp_path / "inbox", region="one/files", names=("one",))
    other = HandFed(place, tmp_path / "others", region="other/files", names=("other",))
    left, right, last = (
        Reader(place, tmp_path / "none", region=f"{name}/rows", names=(name,),
               sources=tuple(source_of(f"{name}_{table}", table) for table in tables))
        for name, tables in {"left": ("one",), "right": ("one", "other"), "last": ("left", "right")}.items()
    )  # fmt: skip
    readers = (left, right, last)
    for name in "ab":
        take(one, name)
        take(other, name.upper())
        for each in readers:
            each.run()
    assert last.rows() == sorted("aabbAB")

    assert reset(place, f"{point}:kill:{number}") == -signal.SIGKILL
    assert left.rows() in (["a"], ["a", "b"])
    assert right.rows() in (["A", "a"], sorted("aAbB"))
    assert last.rows() in (sorted("aaA"), sorted("aabbAB"))
    upstream_is_done = one.values() == [(1, "a")]
    assert not upstream_is_done or last.rows() == sorted("aaA"), "readers go back before what they read"

    assert reset(place) == 0
    assert [each.rows() for each in readers] == [["a"], ["A", "a"], sorted("aaA")]
    assert one.values() == [(1, "a")]
    one.drain()
    for each in readers:
        each.run()
    assert last.rows() == sorted("aabbAB"), "each row once for each way, and nobody halts"
