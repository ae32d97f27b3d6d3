"""Common steps of integration tests: open an application, run it, read its sinks."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.region_run import GroupReport
from drainmark.jobs.world import World, entered
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.inspection.metrics import as_json, region_metrics
from drainmark.orchestration.inspection.status import statuses
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.testing.processing import drive
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings

LONG_AGO = 1_000_000_000


class At(World):
    """The world at a moment: its clock stands still."""

    def __init__(self, moment: float) -> None:
        self.moment = moment

    def now(self) -> float:
        return self.moment


class _Passing(World):
    def __init__(self, reached: Callable[[str], object]) -> None:
        self.reached = reached
        self.own = threading.local()

    def pass_point(self, point: str) -> None:
        if getattr(self.own, "is_called", False):
            return
        self.own.is_called = True
        try:
            self.reached(str(point))
        finally:
            self.own.is_called = False


def passing(reached: Callable[[str], object]) -> AbstractContextManager[None]:
    """Call a function with each fail point that is passed inside the block, except by the function itself."""
    return entered(_Passing(reached))


def settle(folder: Path) -> None:
    """Backdate every file, so that no scan waits until it settles."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (LONG_AGO, LONG_AGO))


def write(inbox: Path, *files: str) -> None:
    """Write texts to the next files of a folder, as if long ago."""
    for text in files:
        (inbox / f"{len(list(inbox.iterdir()))}.csv").write_text(text)
    settle(inbox)


def opened(reference: str | Path, inbox: Path, **params: Any) -> Opened:
    """Open an application with a folder as its input."""
    return open_application(str(reference), params=params, inputs=[str(inbox)])


def verbs(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a verb with --json on a home, in this process; it returns the output or the error."""
    from drainmark.orchestration.cli.main import invoke

    def invoked(*arguments: Any, code: int = 0) -> Any:
        capsys.readouterr()
        found = invoke([*map(str, arguments), "--home", str(home), "--json"])
        captured = capsys.readouterr()
        assert found == code, captured.err
        return json.loads(captured.out) if captured.out else json.loads(captured.err.splitlines()[-1])["error"]

    return invoked


def done(*arguments: str, code: int = 0) -> None:
    """Let the command line do a verb, without asking, in the working directory."""
    from drainmark.orchestration.cli.main import invoke

    assert invoke([*arguments, "--yes"]) == code, arguments


def ids(root: Path, region: str = "app/rows") -> list[int]:
    """Return 0, and the ids in force of a region in the home of a project."""
    place = Workplace(Settings(home=root / "home", project_root=root))
    with closing(place.registry):
        return [0, *place.history(region).states]


def starts_of_spark(workplace: Workplace) -> list[str]:
    """Return a list that gets the message to users at each start of a session from now on."""
    told: list[str] = []
    workplace.engine.tell = told.append
    return told


def run_once(
    workplace: Workplace,
    application: Opened,
    *,
    region: str | None = None,
    max_group: int | None = None,
    scan: bool = True,
    max_triggers: int | None = None,
) -> list[GroupReport]:
    """Scan, claim, process the pending triggers, release; an error that ends the run is raised."""
    plan = application.region(region)
    if scan:
        scan_region(workplace, plan)
    return drive(region_run(workplace, application, plan, max_group=max_group, max_triggers=max_triggers))


def rows(workplace: Workplace, region: str, table: str, *, ids: bool = True) -> list[dict[str, Any]]:
    """Return the rows of a visible table, in no order."""
    found = workplace.store(region).table(f"lake/{table}").read().to_pylist()
    return found if ids else without_ids(found)


def without_ids(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without their sequence ids, to compare them with those of a golden run."""
    return [{name: value for name, value in row.items() if name != "_sequence_id"} for row in found]


def sinks(workplace: Workplace, region: str, tables: Sequence[str], *, ids: bool = False) -> dict[str, list[Any]]:
    """Return the rows of the sinks as sorted multisets, comparable between runs."""
    return {table: multiset(rows(workplace, region, table, ids=ids)) for table in tables}


def multiset(found: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return rows as sorted tuples, to compare them as multisets."""
    return sorted((tuple(sorted(row.items(), key=lambda item: item[0])) for row in found), key=repr)


def state_shown(place: Workplace, plan: RegionPlan) -> str:
    """Return the state of a region; require that `status`, the metrics and Dagster's check show the same one."""
    from drainmark.orchestration.dagster_assets.checks import NOT_HALTED, judgements  # loads Dagster

    check = next(judgement for judgement in judgements(place, plan) if judgement.name == NOT_HALTED)
    shown = {
        "status": statuses(place, plan.name)[0]["state"],
        "metrics": as_json(plan.name, region_metrics(place, plan.name))["drainmark_state"],
        "check": check.metadata["drainmark/state"],
    }
    assert len(set(shown.values())) == 1, shown
    assert check.passed == (shown["check"] != "HALTED")
    return str(shown["status"])
