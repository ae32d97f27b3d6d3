"""A table that is merged on read, in processes that are killed at the steps of its commits, and changed by others."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import Counting, HandFed
from deltalake import DeltaTable

from drainmark.jobs.errors import Halted
from drainmark.jobs.failpoints import FailPoint, FilePoint
from drainmark.jobs.protocol.records.deletion_vectors import encoded
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.orchestration.verbs import interventions, table_repair
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.health.store_check import facts_of
from drainmark.resources.delta.keyed import former_files
from drainmark.resources.delta.log import marked_files
from drainmark.resources.settings import Settings

TABLE = "lake/last"
MANY = [f"v{number}" for number in range(40_000)]
FILES = {"a": MANY, "b": MANY[10:12], "c": MANY[11:14], "d": [MANY[3999], "new"]}


class OnRead(Counting):
    """A counting region whose visible table is merged on read."""

    merge: str = "on-read"

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        options = {"merge": self.merge} if self.merge == "on-read" else {}
        return tuple(replace(each, options=options) if each.name == TABLE else each for each in super().tables)


def opened(root: Path) -> OnRead:
    return OnRead(Workplace(Settings(home=root / "home", project_root=root)), root / "inbox")


def expected(*names: str) -> dict[str, int]:
    """Return the place of the last file of each value."""
    return {value: place for place, name in enumerate(names) for value in FILES[name]}


def shown(fed: OnRead) -> dict[str, int]:
    """Return the same of the visible table, whose ids rise with the files."""
    states = [number for number, row in fed.history().states.items() if row.kind.value == "state"]
    rows = fed.values("last")
    found = {value: states.index(number) for number, value in rows}
    assert len(found) == len(rows)
    return found


def vectors(fed: OnRead) -> list[str]:
    files = fed.workplace.store(fed.region).table(TABLE).files.live()
    return [file.vector.path for file in files if file.vector is not None]


def take(fed: OnRead, *names: str) -> None:
    for name in names:
        fed.write(name, FILES[name])
        fed.add(name)
    fed.drain()


def rewind(fed: OnRead, place: int, undone: int = 200) -> None:
    """Go back to the state after so many files; former files come back if they left by at most `undone` commits."""
    to = [0, *fed.history().states][place]
    with pytest.MonkeyPatch.context() as patch, fed.owning() as owner:
        patch.setattr(former_files, "_MOST_COMMITS", undone)
        owner.rewind(to, 100)


@pytest.fixture
def fed(tmp_path: Path) -> OnRead:
    scene = opened(tmp_path)
    take(scene, "a", "b", "c")
    return scene


def killed(root: Path, act: str, point: str, number: int) -> None:
    """Let another process go on with the region, which is killed at a step."""
    armed = f"{point}:kill:{number}"
    code = (
        f"import pathlib, {__name__} as it; from drainmark.jobs import failpoints; failpoints.arm({armed!r});"
        f" fed = it.opened(pathlib.Path({str(root)!r})); {act}"
    )
    path = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1], *sys.path)))
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == -9, ended.stderr


def test_a_change_marks_rows_and_the_option_may_be_turned_off_and_on(fed: OnRead) -> None:
    (first, *_) = vectors(fed)
    assert shown(fed) == expected("a", "b", "c")
    assert facts_of(fed.workplace.store(fed.region).table(TABLE).folder, fed.region).unknown == ()
    fed.merge = "on-write"
    take(fed, "d")
    assert vectors(fed) == []
    assert shown(fed) == expected("a", "b", "c", "d")
    fed.merge = "on-read"
    rewind(fed, 1)
    assert shown(fed) == expected("a")
    fed.drain()
    assert shown(fed) == expected("a", "b", "c", "d")
    assert vectors(fed)
    assert first not in vectors(fed)


POINTS = [
    (FailPoint.PUBLISH_BEFORE, 3),
    (FailPoint.PUBLISH_AFTER, 3),
    *((FilePoint.WRITTEN, number) for number in (7, 10, 11)),
]
"""Among them the moments at which a file is whole and has no name yet: the checkpoint's entry, the vectors, and the
entry that names them."""


@pytest.mark.seed("RT1")
@pytest.mark.parametrize(("point", "number"), POINTS)
def test_a_merge_that_was_killed_is_made_once(fed: OnRead, tmp_path: Path, point: str, number: int) -> None:
    fed.write("d", FILES["d"])
    fed.add("d")
    killed(tmp_path, "fed.drain()", point, number)
    fed.drain()
    assert shown(fed) == expected("a", "b", "c", "d")
    assert vectors(fed)


@pytest.mark.seed("RT1")
@pytest.mark.parametrize("point", [FailPoint.REWIND_TABLE_BEFORE, FailPoint.REWIND_TABLE_AFTER])
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.recovery), 3])
@pytest.mark.parametrize("undone", [200, pytest.param(0, marks=pytest.mark.recovery)])
def test_a_rewind_that_was_killed_is_made_once(
    fed: OnRead, tmp_path: Path, point: str, number: int, undone: int
) -> None:
    """Former files come back, or if no commit may be undone, rows by a merge."""
    killed(tmp_path, f"it.rewind(fed, 1, undone={undone})", point, number)
    with fed.owning():
        pass
    assert shown(fed) == expected("a")
    fed.drain()
    assert shown(fed) == expected("a", "b", "c")


def test_what_others_did_to_it_is_noticed_and_put_right(fed: OnRead) -> None:
    before = shown(fed)
    DeltaTable(fed.workplace.home / TABLE).delete("value = 'v20'")
    assert shown(fed) != before
    with pytest.raises(Halted):
        take(fed, "d")
    table_repair.mend(fed.workplace, fed.region)
    assert table_repair.plan(fed.workplace) == []
    interventions.resume(fed.workplace, fed.region, "put right")
    assert shown(fed) == before
    fed.drain()
    assert shown(fed) == expected("a", "b", "c", "d")


@pytest.mark.parametrize("is_built_on", [False, True], ids=["at once", "after a commit"])
def test_rows_that_others_marked_in_a_table_of_rows_come_back(tmp_path: Path, *, is_built_on: bool) -> None:
    """Their file is still in the table, so it has to be shown again without the vector."""
    fed = HandFed(Workplace(Settings(home=tmp_path / "home", project_root=tmp_path)), tmp_path / "inbox")
    for name in ("a", "b"):
        fed.write(name, [f"{name}{number}" for number in range(5)])
        fed.add(name)
    fed.drain()
    before = fed.values()
    folder = fed.workplace.store(fed.region).table("lake/kept").folder
    commits.take_vectors(folder, fed.region, wanted=True, writer=None)
    opened = delta_tables.open_table(folder)
    file, _ = file_lists.live_files(opened, folder)
    (vector,) = marked_files.written(folder, [encoded([0, 2])], [2])
    marked = replace(file, rows=3, vector=vector)
    commits.transact(folder, opened, "somebody/else", 7, adds=[marked], removes=[file])
    if is_built_on:
        opened = delta_tables.open_table(folder)
        commits.transact(folder, opened, fed.region, commits.txn_version(opened, fed.region))
    assert len(fed.values()) == 8
    table_repair.mend(fed.workplace, fed.region)
    assert table_repair.plan(fed.workplace) == []
    assert fed.values() == before
    assert [file.vector for file in file_lists.live_files(delta_tables.open_table(folder), folder)] == [None, None]
