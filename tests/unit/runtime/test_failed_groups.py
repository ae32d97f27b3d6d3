"""What a run says and does after a failed group, by hand: no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from by_hand import HandFed

from drainmark.jobs.errors import DrainmarkError, InputChanged, InputMissing, Location
from drainmark.jobs.errors.environment import FilesLost
from drainmark.jobs.graph.application import load_application
from drainmark.jobs.graph.blame import failure_of
from drainmark.jobs.protocol.failure_policy import GroupSize
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.runtime.failure_handling import FailureHandling
from drainmark.jobs.runtime.group.backlog import Backlog, Limits
from drainmark.jobs.runtime.group.group_report import trouble_of
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[HandFed]:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    region = HandFed(place, tmp_path / "in")
    for name in ("a", "b"):
        region.write(name, [name])
        region.add(name)
    yield region
    place.registry.close()


def failed(fed: HandFed, error: Exception) -> tuple[list[tuple[str, Any]], int, DrainmarkError | None]:
    """Return the steps that are told, the size of the next group, and the error that ends the run."""
    told: list[tuple[str, Any]] = []
    plan = compile_application(load_application("word_count")).regions[0]
    backlog = Backlog(registry=fed.workplace.registry, region=fed.region, limits=Limits(), size=GroupSize(2, 2))
    try:
        with fed.owning() as owner:
            owner.report = lambda step, numbers: told.append((step, numbers))
            handling = FailureHandling(region=plan, owner=owner, backlog=backlog)
            handling.after(error, backlog.next_group([], None), lambda: None)
    except DrainmarkError as ends:
        return told, backlog.size.current, ends
    return told, backlog.size.current, None


class _Operator:
    name, location = "f", Location("app.py", 3)


def test_a_group_that_is_done_file_by_file_asks_nobody_for_anything(fed: HandFed) -> None:
    error = failure_of(_Operator(), ValueError("ten is no number"))
    assert "fix the function" in str(error)
    told, size, ends = failed(fed, error)
    (said,) = [text for step, numbers in told if (text := trouble_of(step, numbers)) is not None]
    assert (size, ends) == (1, None)
    assert "ten is no number" in said
    assert "app.py:3" in said
    assert "fix the function" not in said, "nothing is halted"
    assert "drainmark resume" not in str(told)


def test_a_file_that_is_not_as_it_was_scanned_is_told_unless_the_halt_tells_it(fed: HandFed) -> None:
    triggers = fed.workplace.registry.triggers.pending(fed.region, 1)
    told, _, ends = failed(fed, InputChanged("a changed", remedy="write elsewhere", triggers=triggers))
    (said,) = [text for step, numbers in told if (text := trouble_of(step, numbers)) is not None]
    assert ends is None
    assert "a changed" in said
    assert "write elsewhere" in said
    triggers = fed.workplace.registry.triggers.pending(fed.region, 1)
    told, _, ends = failed(fed, InputMissing("b is gone", remedy="put it back", triggers=triggers))
    assert [trouble_of(step, numbers) for step, numbers in told if step == "input"] == [None]
    assert "b is gone" in str(ends)


def test_files_of_an_attempt_that_are_lost_blame_no_trigger_and_split_nothing(fed: HandFed) -> None:
    _, size, ends = failed(fed, FilesLost("tasks wrote 5 rows, and this process does not find them"))
    assert (size, type(ends)) == (2, FilesLost)
    assert ends is not None
    assert ends.facts["trigger"] is None
