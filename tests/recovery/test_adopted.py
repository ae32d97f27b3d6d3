"""Adopted tables under faults: commits of delta-spark for a client that died, was stopped, or lost the reply.

The Connect server is one JVM for all clients; it goes on with the command of a dead client for seconds.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from graphs import APPS, FILES
from scene import Scene
from waiting import eventually

from drainmark.orchestration.testing.crash.children import Nursery

SINKS = ("theirs", "theirs_newest")
SHORT_LEASE = {"lease_seconds": 0.8, "heartbeat_seconds": 0.2}
FENCED = 4


def oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    rows = [{"k": k, "n": int(n)} for path in files for k, n in csv.reader(path.open(newline=""))]
    return {"theirs": rows, "theirs_newest": list({row["k"]: row for row in rows}.values())}


def adopting(nursery: Nursery, master: str, folder: Path) -> Scene:
    """Return a scene with two adopted tables, each with a constraint, and five files."""
    scene = Scene(
        nursery=nursery, master=master, folder=folder, app=str(APPS / "adopting.py"), region="adopting/lines",
        inputs=(str(folder / "in"),), oracle=oracle, sinks=SINKS,
    )  # fmt: skip
    columns = Schema([Field("k", PrimitiveType("string")), Field("n", PrimitiveType("long"))])
    for sink in SINKS:
        DeltaTable.create(scene.home / "lake" / sink, columns).alter.add_constraint({"small": "n < 1000"})
    for number in range(FILES):
        text = "".join(f"{key},{number * 10 + place}\n" for place, key in enumerate("abc" if number % 2 else "cde"))
        scene.add(folder / "in" / f"{number}.csv", text)
    return scene


@pytest.fixture(scope="session")
def two_committed(nursery: Nursery, connect: str, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Return the scene after delta-spark has published two files of five; three are pending. Tests copy it."""
    scene = adopting(nursery, connect, tmp_path_factory.mktemp("adopting"))
    later = scene.files[2:]
    for path in later:
        path.rename(path.with_suffix(".later"))
    scene.run_well()
    for path in later:
        path.with_suffix(".later").rename(path)
    scene.run_well(["scan"])
    return scene


@pytest.fixture
def scene(two_committed: Scene, tmp_path: Path) -> Iterator[Scene]:
    copy = two_committed.copied_to(tmp_path)
    yield copy
    copy.place.registry.close()


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("publish.before_commit:kill:1", marks=pytest.mark.recovery),
        pytest.param("publish.before_commit:kill:3", marks=pytest.mark.recovery),
        pytest.param("publish.after_commit:kill:3", marks=pytest.mark.recovery),
        pytest.param("publish.after_commit:kill:2", marks=pytest.mark.recovery),
        pytest.param("publish.after_commit:lost_reply:1", marks=pytest.mark.recovery),
        pytest.param("publish.after_commit:lost_reply:3", marks=pytest.mark.recovery),
    ],
)
def test_a_committed_group_is_published_once(scene: Scene, point: str) -> None:
    """Each group has three tables: the rows, the history of the newest rows, the newest rows."""
    if ":kill" in point:
        scene.run_killed(["run", 2], failpoints=point)
    else:
        scene.run_well(["run", 2], failpoints=point)
    scene.run_well(["run", 2])
    scene.assert_golden()


@pytest.mark.recovery
def test_a_client_killed_in_a_commit_is_followed_by_one_that_finishes_it(scene: Scene) -> None:
    """The server may or may not commit for the dead client: that commit and the successor's exclude each other."""
    client = scene.start(["run", 3])
    eventually(lambda: any(_is_busy(scene.home / "lake" / sink) for sink in SINKS), pause=0.005)
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    scene.run_well(["run", 3])
    scene.assert_golden()
    time.sleep(3)  # a command of the dead client would have landed by now
    scene.assert_golden()


def _is_busy(table: Path) -> bool:
    try:
        return bool(json.loads((table / "_drainmark" / "writer.lock").read_text()).get("busy"))
    except (OSError, ValueError):
        return False


@pytest.mark.recovery
@pytest.mark.parametrize("point", ["publish.before_commit", "checkpoint.before_commit"])
def test_a_client_woken_after_the_take_over_changes_nothing(scene: Scene, point: str) -> None:
    """H25: the stopped client holds the lock of the writer, and shares it with the other clients of its server."""
    zombie = scene.start(["run", 3], failpoints=f"{point}:stop:1", settings=SHORT_LEASE)
    zombie.await_stopped()
    scene.run_well(["sleep", 1.0], ["run", 3], settings=SHORT_LEASE)
    scene.assert_golden()
    zombie.signal(signal.SIGCONT)
    ended = zombie.wait()
    assert ended.code == FENCED, ended
    scene.assert_golden()


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("rewind_table.before_commit:kill:2", marks=pytest.mark.recovery),
        pytest.param("rewind_table.after_commit:kill:1", marks=pytest.mark.recovery),
        pytest.param("rewind_table.after_commit:kill:3", marks=pytest.mark.recovery),
    ],
)
def test_a_rewind_is_finished_by_whoever_comes_next(scene: Scene, point: str) -> None:
    scene.run_well()
    scene.run_killed(["rewind", 3], failpoints=point)
    scene.run_well(["own"])
    scene.assert_sinks(scene.files[:3])
    scene.run_well(["run"])
    scene.assert_golden()
