"""Input files are moved or deleted after their states are established, or when no rewind reaches them (V153, E24)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hand_runs import engine, without_spark
from harness import LONG_AGO, rows, run_once

import drainmark as dm
from drainmark.jobs.errors import RewindRefused, StoreUnavailable
from drainmark.jobs.graph.application import build_application
from drainmark.jobs.runtime.maintenance import housekeeping
from drainmark.jobs.scan.folder import identity_of
from drainmark.orchestration.testing.processing import rewind
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.inputs.disposal import dispose

__all__ = ["engine", "without_spark"]
pytestmark = pytest.mark.seed("V153")

REGION = "disposing/lines"


def add(inbox: Path, *names: str, text: str = "x\n") -> None:
    for name in names:
        path = inbox / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (LONG_AGO, LONG_AGO))


def opened(inbox: Path, *, horizon: int = 10_000, **scan: Any) -> Opened:
    with dm.application("disposing") as declared:

        @dm.consistent(trigger="operator-driven", rewind_horizon=horizon)
        @dm.source(dm.DirectoryScan(path=str(inbox), settle=0, recursive=True, **scan))
        def lines(scanned: Any) -> Any:
            return scanned

        dm.sink(lines, dm.DeltaAppend("lines"))
    return open_application(build_application(declared))


def left(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_files_are_moved_once_the_region_is_checkpointed(tmp_path: Path, workplace: Workplace) -> None:
    inbox, done = tmp_path / "inbox", tmp_path / "done"
    add(inbox, "a.txt", "deep/b.txt")
    add(done, "a.txt", text="of last year\n")
    application = opened(inbox, after="move", move_to=str(done), after_when="checkpointed")
    run_once(workplace, application, max_group=1)
    assert (left(inbox), left(done)) == ([], ["a.txt", "a.txt.1", "deep/b.txt"])
    assert len(rows(workplace, REGION, "lines")) == 2
    with pytest.raises(RewindRefused):
        reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=0)))


def test_a_file_is_not_moved_through_a_link_below_the_place(tmp_path: Path) -> None:
    inbox, done, elsewhere = (tmp_path / name for name in ("inbox", "done", "elsewhere"))
    add(inbox, "a.txt", "deep/b.txt")
    elsewhere.mkdir()
    done.mkdir()
    (done / "deep").symlink_to(elsewhere)
    (done / "a.txt").symlink_to(elsewhere / "a.txt")
    files = [
        (str(path), identity_of(path.stat()), number)
        for number, path in enumerate((inbox / "a.txt", inbox / "deep/b.txt"))
    ]

    def moved() -> int:
        return dispose(files, objects=None, location=str(inbox), move_to=str(done))  # type: ignore[arg-type]

    with pytest.raises(StoreUnavailable, match="deep is a symbolic link"):
        moved()
    assert (left(inbox), left(elsewhere), left(done)) == (["deep/b.txt"], [], ["a.txt.0"])
    (done / "deep").unlink()
    assert moved() == 1
    assert left(done) == ["a.txt.0", "deep/b.txt"]


def test_files_are_deleted_when_no_rewind_reaches_them(
    tmp_path: Path, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = tmp_path / "inbox"
    names = [f"{number}.txt" for number in range(5)]
    add(inbox, *names)
    application = opened(inbox, horizon=2, after="delete")
    run_once(workplace, application, max_group=1)
    run_once(workplace, application, max_group=1)  # the next claim catches up at the latest
    assert left(inbox) == names[3:]
    rewind(workplace, REGION, 3, 2)
    run_once(workplace, application, max_group=1)
    assert len(rows(workplace, REGION, "lines")) == 5


def test_what_a_crash_left_is_done_later_and_once(
    tmp_path: Path, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note and the files may disagree: a file that is gone, or is another file by now, is left alone."""
    inbox, done = tmp_path / "inbox", tmp_path / "done"
    add(inbox, "a.txt", "b.txt", "c.txt")
    run_once(workplace, opened(inbox), max_group=1)
    assert left(inbox) == ["a.txt", "b.txt", "c.txt"], "they are kept by default"
    (inbox / "a.txt").unlink()
    add(inbox, "b.txt", text="another one\n")
    application = opened(inbox, after="move", move_to=str(done), after_when="checkpointed", on_change="ignore")
    run_once(workplace, application)
    assert (left(inbox), left(done)) == (["b.txt"], ["c.txt"])
    workplace.registry.save_cursor(REGION, housekeeping.DISPOSED, "0")
    run_once(workplace, application)
    assert (left(inbox), left(done)) == (["b.txt"], ["c.txt"])


def test_a_folder_that_takes_nothing_costs_no_attempt(tmp_path: Path, workplace: Workplace) -> None:
    inbox, done = tmp_path / "inbox", tmp_path / "done"
    add(inbox, "a.txt")
    done.write_text("no folder")
    application = opened(inbox, after="move", move_to=str(done), after_when="checkpointed")
    run_once(workplace, application)
    assert left(inbox) == ["a.txt"]
    assert len(rows(workplace, REGION, "lines")) == 1
    done.unlink()
    run_once(workplace, application)
    assert (left(inbox), left(done)) == ([], ["a.txt"])


@pytest.mark.parametrize(
    "scan",
    [
        {"after": "move"},
        {"after": "delete", "move_to": "done"},
        {"after": "move", "move_to": "s3://bucket/done"},
        {"after": "move", "move_to": "INBOX/done"},
        {"after": "burn"},
    ],
    ids=str,
)
def test_places_that_do_not_fit_are_refused(tmp_path: Path, scan: dict[str, Any]) -> None:
    scan = {name: value.replace("INBOX", str(tmp_path)) for name, value in scan.items()}
    assert list(dm.DirectoryScan(path=str(tmp_path), **scan).problems())
    assert not list(dm.DirectoryScan(path=str(tmp_path), after="move", move_to=str(tmp_path) + "-done").problems())
