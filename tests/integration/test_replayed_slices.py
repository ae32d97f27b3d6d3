"""A slice that is read again after a rewind gives the bytes of its committed state (V144).

Slices with other bytes are refused: `tests/unit/runtime/test_slice_digests.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.test_cli import Project, fresh

from drainmark.jobs.errors import Halted, SliceLost
from drainmark.jobs.protocol.records.triggers import DIGESTS
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.resources.spark.session import SparkEngine

__all__ = ["fresh"]
pytestmark = [pytest.mark.spark, pytest.mark.seed("RT9")]

LINES = 60_000
"""So many that a position holds no mark of most bytes before it: else the scan finds the changed byte."""


APP = """\
import drainmark as dm


@dm.consistent({consistent})
@dm.source(dm.FileSource(path={log!r}, format="csv", schema="k string, v bigint", slice_bytes=10_000_000))
def rows(scanned):
    return scanned


dm.sink(rows, dm.DeltaAppend("rows"))
"""
CONSISTENT = {"operator-driven": 'trigger="operator-driven"', "periodic": 'trigger="periodic", period=0'}


PERIODIC = pytest.mark.parametrize(
    "result", [pytest.param("operator-driven", marks=pytest.mark.slow), "periodic"], indirect=True
)
"""The digests of a slice have the same effect for both triggers."""


@pytest.fixture
def result(request: pytest.FixtureRequest, run_app: Callable[..., Result], tmp_path: Path) -> Result:
    """Return a run that has committed two slices of a file."""
    log = tmp_path / "log.csv"
    log.write_text("".join(f"a,{1:09d}\n" for _ in range(LINES)))
    (tmp_path / "app.py").write_text(APP.format(consistent=CONSISTENT[request.param], log=str(log)))
    made = run_app(tmp_path / "app.py")
    made.run()
    with log.open("a") as file:
        file.write("".join(f"b,{2:09d}\n" for _ in range(LINES)))
    return made.run()


@PERIODIC
def test_the_same_bytes_are_read_again_and_again(result: Result) -> None:
    before = result.sink("rows")
    for last in (4, 6):
        result.rewind(1).run()
        assert result.sink("rows") == before
        assert [row["sequence_id"] for row in result.history] == [1, last]
    rows = [row for _, row in result.workplace.history(result.region.name).states.items()]
    assert all(list((row.trigger_identity or {})[DIGESTS]) == ["rows"] for row in rows)


def flip(result: Result, digit: bytes) -> None:
    """Change one byte of the second slice, in place."""
    log = result.home.parent / "log.csv"
    with log.open("r+b") as file:
        file.seek(750_005)
        file.write(digit)


@PERIODIC
def test_a_rewind_over_one_changed_byte_is_announced_and_halts_until_the_byte_is_back(result: Result) -> None:
    before, kept = result.sink("rows"), result.sink("rows", at=1)
    (_, second) = (row["trigger"] for row in result.history)
    flip(result, b"7")
    assert second in str(plan_reset(result.workplace, result.region.name, RewindTarget(to=1)).to_json())
    result.rewind(1)
    with pytest.raises(Halted) as halted:
        result.run()
    lost = halted.value.__cause__
    assert isinstance(lost, SliceLost)
    assert lost.facts["trigger"] == second
    assert lost.operator == "rows"
    assert result.status["state"] == "HALTED"
    assert result.sink("rows") == kept
    flip(result, b"0")
    with owning(region_owner(result.workplace, result.region.name)) as owner:
        owner.halts.resume("the byte is back")
    assert result.run().sink("rows") == before


FOLLOWED = """import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.FileSource(path={path!r}, on_lost="restart"))
def lines(scanned):
    return scanned

dm.sink(lines, dm.DeltaAppend("kept"))
"""


@pytest.mark.slow
@pytest.mark.seed("V144")
def test_slices_of_a_log_that_was_truncated_are_passed_when_their_loss_is_accepted(
    fresh: Project, engine: SparkEngine
) -> None:
    assert engine.session is not None  # the command line's own engine finds this session
    log, app = fresh.root / "app.log", fresh.root / "followed.py"
    app.write_text(FOLLOWED.format(path=str(log)))
    for text in ("a\nb\n", "a\nb\nc\n", "a\nb\nc\nd\n"):
        log.write_text(text)
        fresh.call("run", app)
    os.truncate(log, len("a\nb\n"))

    plan = fresh.call("reset", "followed", "--to", 1, code=2)
    assert [uri.rpartition("#")[2] for uri in plan["changed"]] == ["4..6", "6..8"]
    assert fresh.refused("reset", "followed", "--to", 1, "--yes")["id"] == "REWIND_REFUSED"
    assert fresh.call("reset", "followed", "--to", 1, "--yes", "--accept-loss")["pending_triggers"] == 0
    fresh.call("run", app)
    assert sorted(row["value"] for row in fresh.call("show", "kept")) == ["a", "a", "b", "b"], "the file from its start"
