"""`drainmark tables drop` that is killed at any of its steps: the same command, or the next owner, goes on.

The command is a process of its own, killed by SIGKILL; the region before and after it is fed by hand.
"""

from __future__ import annotations

import pytest
from by_hand import Shown
from killed_commands import KILLED, killed_at
from left_sinks import fed, left, place, rows_up_to

from drainmark.jobs.failpoints import DropPoint, FailPoint
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.inspection.status import statuses
from drainmark.orchestration.workplace.declaration import LEFT

__all__ = ["fed", "left", "place"]

OF_TABLE = {
    FailPoint.CLAIM_BEFORE: 1,
    FailPoint.CLAIM_AFTER: 1,
    FailPoint.NOTE_BEFORE: 2,
    FailPoint.NOTE_AFTER: 2,
    DropPoint.NOTED: 1,
    DropPoint.LOG_GONE: 2,
    DropPoint.DELETED: 2,
    FailPoint.RELEASE_BEFORE: 1,
}
"""How often a drop of an overwritten table with its history passes each step; a note is before and behind the files."""

OF_REGION = {DropPoint.NOTED: 1, DropPoint.LOG_GONE: 7, DropPoint.DELETED: 7}
"""How often a drop of the region does: it has six tables in Delta, and its checkpoint table."""

SAMPLE = {(DropPoint.NOTED, 1), (DropPoint.LOG_GONE, 2), (DropPoint.DELETED, 7), (FailPoint.NOTE_AFTER, 2)}


def cases(points: dict[FailPoint | DropPoint, int]) -> list[object]:
    return [
        pytest.param(point, number, id=f"{point}-{number}", marks=() if (point, number) in SAMPLE else pytest.mark.slow)
        for point, times in points.items()
        for number in range(1, times + 1)
    ]


@pytest.fixture(autouse=True)
def shop(fed: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands know the database of the home."""
    monkeypatch.setenv("DRAINMARK_DATABASES__SHOP", fed.workplace.settings.databases["shop"])


@pytest.mark.seed("LC3")
@pytest.mark.parametrize("is_next", [False, True], ids=["again", "next owner"])
@pytest.mark.parametrize(("point", "number"), cases(OF_TABLE))
def test_a_drop_of_a_table_goes_on_after_a_kill(fed: Shown, point: str, number: int, is_next: bool) -> None:
    home = fed.workplace.home
    command = ["tables", "drop", "newest", "--yes", "--home", str(home)]
    assert killed_at(f"{point}:kill:{number}", *command) == KILLED
    history = fed.history()
    is_forgotten = "lake/newest" not in {table.name for table in history.former}
    if is_next and (history.dropping or is_forgotten):
        with fed.owning():
            pass
    else:  # nothing is left of what was forgotten: its name is known no more
        assert invoke(command) == (2 if is_forgotten else 0)
    history = fed.history()
    assert history.dropping == {}
    assert not {"lake/newest", "state/by_hand/newest"} & {table.name for table in history.former}
    assert not any((home / name).exists() for name in ("lake/newest", "state/by_hand/newest"))
    assert invoke(["reset", fed.region, "--to", "2", "--yes", "--home", str(home)]) == 0
    assert fed.values("kept") == rows_up_to(2)
    fed.drain()
    assert [value for _, value in fed.values("kept")] == [value for _, value in rows_up_to(6)]


@pytest.mark.seed("LC3")
@pytest.mark.parametrize(("point", "number"), cases(OF_REGION))
def test_a_drop_of_a_region_goes_on_after_a_kill(fed: Shown, point: str, number: int) -> None:
    place = fed.workplace
    place.registry.save_cursor(fed.region, LEFT, "left")
    command = ["tables", "drop", "--region", fed.region, "--yes", "--home", str(place.home)]
    assert killed_at(f"{point}:kill:{number}", *command) == KILLED
    assert invoke(command) == 0
    assert statuses(place) == []
    assert list((place.home / "lake").iterdir()) == []
    assert not (place.home / "checkpoints" / fed.region).exists()
    assert fed.shown("rows") == rows_up_to(4), "what is outside of Delta stays"
