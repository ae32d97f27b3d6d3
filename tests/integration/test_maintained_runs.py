"""Maintenance follows a number of groups, independent of the number of runs, when all tables are visible (H30)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hand_runs import engine, without_spark

import drainmark as dm
from drainmark.jobs.errors import StoreUnavailable
from drainmark.jobs.runtime.maintenance import housekeeping
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application

__all__ = ["engine", "without_spark"]
pytestmark = pytest.mark.seed("H30")

REGION = "kept/lines"
Write = Callable[[str, str], Path]


@pytest.fixture
def application(tmp_path: Path) -> Opened:
    with dm.application("kept") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(tmp_path / "inbox"), pattern="*.txt", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        dm.sink(lines, dm.DeltaAppend("lines"))
    return open_application(dm.build_application(declared))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "EVERY_GROUPS", 3)


def steps_of_run(place: Workplace, application: Opened, **options: Any) -> list[str]:
    """Run the pending triggers; return the steps `group` and `maintain` in their order."""
    told: list[str] = []

    def report(step: str, numbers: Mapping[str, Any]) -> None:
        if step in ("group", "maintain"):
            told.append(f"{step} failed" if "failed" in numbers else step)

    region = application.region()
    scan_region(place, region)
    run = region_run(place, application, region, report=report, **options)
    run.claim()
    error: BaseException | None = None
    try:
        for _ in run.groups():
            pass
    except BaseException as raised:
        error = raised
        raise
    finally:
        run.hand_over(error)
    return told


def test_runs_of_one_file_are_maintained_every_so_many(workplace: Workplace, application: Opened, write: Write) -> None:
    found = []
    for number in range(6):
        write(f"{number}.txt", "a\n")
        found.append(steps_of_run(workplace, application))
    assert found == [["group", "maintain"] if number in (2, 5) else ["group"] for number in range(6)]


def test_groups_of_one_run_count_one_by_one_and_files_do_not(
    workplace: Workplace, application: Opened, write: Write
) -> None:
    for number in range(5):
        write(f"{number}.txt", "a\n")
    assert steps_of_run(workplace, application, max_group=5) == ["group"], "one commit"
    for number in range(5, 10):
        write(f"{number}.txt", "a\n")
    steps = steps_of_run(workplace, application, max_group=1)
    assert steps == ["group", "group", "maintain", "group", "group", "group", "maintain"]


def test_what_is_due_is_done_by_a_run_that_has_nothing_else_to_do(
    workplace: Workplace, application: Opened, write: Write
) -> None:
    write("1.txt", "a\n")
    steps_of_run(workplace, application)
    workplace.registry.save_cursor(REGION, housekeeping.NOTE, "3")
    assert steps_of_run(workplace, application) == ["maintain"]
    assert steps_of_run(workplace, application) == []


def test_maintenance_that_fails_fails_nothing_and_is_tried_again_later(
    workplace: Workplace, application: Opened, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> int:
        raise StoreUnavailable("no answer", remedy="wait")

    for number in range(3):
        write(f"{number}.txt", "a\n")
    with monkeypatch.context() as patch:
        patch.setattr(housekeeping, "maintain_region", fails)
        assert steps_of_run(workplace, application, max_group=1) == ["group"] * 3 + ["maintain failed"]
    for number in range(3, 5):
        write(f"{number}.txt", "a\n")
    assert steps_of_run(workplace, application, max_group=1) == ["group", "group", "maintain"]
    assert len(workplace.history(REGION).states) == 5
