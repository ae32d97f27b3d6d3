"""A failed group: split, with a notice, if an input may be the cause; not split if the place is the cause (DX3)."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import Halted
from drainmark.jobs.errors.environment import EnvironmentFailed, WorkerDied
from drainmark.jobs.graph.application import Application
from drainmark.jobs.runtime.input.inbox import GroupInbox
from drainmark.orchestration.runs.interruption import Interruption
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.runs.run_loop import RunOptions, Watch, run_application
from drainmark.orchestration.testing.processing import drive, scan
from drainmark.orchestration.testing.running import Result

RunApp = Callable[..., Result]
pytestmark = [pytest.mark.spark, pytest.mark.seed("DX3")]
FILES = {f"{number}.json": json.dumps({"n": number}) + "\n" for number in range(3)}


def application(kind: str = "json") -> Application:
    with dm.application("divided") as declared:
        shape = {"format": kind, "schema": "n int", "pattern": f"*.{kind}"}

        @dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=3)
        @dm.source(dm.DirectoryScan(path="in", settle=0, **shape))
        def numbers(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def checked(numbers: Any) -> Any:
            wrong = F.raise_error(F.lit("a two is too much"))
            return dm.select(numbers, F.when(F.col("n") == 2, wrong).otherwise(F.col("n")).alias("n"))

        dm.sink(checked, dm.DeltaAppend("checked"))
    return dm.build_application(declared)


def test_a_split_is_told_once_with_its_reason(run_app: RunApp) -> None:
    result = run_app(application()).add(FILES)
    told: list[str] = []
    with Interruption() as interruption, pytest.raises(dm.DrainmarkError):
        run_application(
            result.workplace, result.opened, result.regions, options=RunOptions(attempts=1),
            watch=Watch(on_note=told.append), run_id="r", interruption=interruption,
        )  # fmt: skip
    said = [line for line in told if "file by file" in line]
    assert [line.partition(" files")[0].split()[-1] for line in said] == ["3"]
    assert all("a two is too much" in line for line in said)
    assert result.status["committed_sequence_id"] == 5  # the group of three had the ids 1 to 3


def test_status_tells_of_a_split_until_a_run_begins_behind_one_that_ended_well(run_app: RunApp) -> None:
    result = run_app(application()).add(FILES)
    scan(result.workplace, result.opened, result.region)
    run = region_run(result.workplace, result.opened, result.region)
    run.claim()
    next(groups := run.groups())
    found = result.status["split"]
    assert (found["triggers"], found["id"], found["operator"]) == (3, "OPERATOR_FAILED", "checked")
    assert "a two is too much" in found["message"]
    groups.close()  # type: ignore[attr-defined]
    run.hand_over()
    drive(region_run(result.workplace, result.opened, result.region, max_triggers=1))
    assert result.status["split"] is None


@pytest.mark.parametrize("kind", ["csv", pytest.param("json", marks=pytest.mark.slow)])
def test_a_link_of_ours_that_is_gone_splits_nothing_and_blames_nobody(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Somebody deletes the inbox of links while a group is read: in Python, and by Spark."""
    fill = GroupInbox.fill
    files = {f"{number}.{kind}": FILES[f"{number}.json"] if kind == "json" else f"{number}\n" for number in range(2)}
    result = run_app(application(kind), settings={"small_group_bytes": 0}).add(files)
    scan(result.workplace, result.opened, result.region)
    steps: list[str] = []
    run = region_run(result.workplace, result.opened, result.region, report=lambda step, numbers: steps.append(step))

    def filled(self: GroupInbox, **more: Any) -> None:
        fill(self, **more)
        shutil.rmtree(self.folder)

    with monkeypatch.context() as patched:
        patched.setattr(GroupInbox, "fill", filled)
        with pytest.raises(EnvironmentFailed) as failed:
            drive(run)
    assert "/inbox/divided/" in failed.value.message
    assert failed.value.operator is None
    assert "split" not in steps
    (group,) = drive(region_run(result.workplace, result.opened, result.region))
    assert group.triggers == 2, "whole again: no input is to blame"
    assert sorted(row["n"] for row in result.sink("checked")) == [0, 1]


def killing(allowed: int) -> Application:
    """Return an application with a function that kills its worker at a two, between two operators that do not."""
    with dm.application("killed") as declared:

        @dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=allowed)
        @dm.source(dm.DirectoryScan(path="in", settle=0, format="json", schema="n int", pattern="*.json"))
        def numbers(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def named(numbers: Any) -> Any:
            return dm.select(numbers, F.abs("n").alias("n"))

        @dm.functor
        def checked(named: Any) -> Any:
            deadly = F.udf(lambda n: n if n != 2 else os.kill(os.getpid(), signal.SIGKILL), "int")
            return dm.select(named, deadly(F.abs("n")).alias("n"))

        dm.sink(checked, dm.DeltaAppend("survived"))
    return dm.build_application(declared)


@pytest.mark.parametrize("allowed", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_file_that_kills_its_worker_each_time_ends_up_named(run_app: RunApp, allowed: int) -> None:
    """Independent of the cause, it ends in groups of one: the environment is not blamed for ever."""
    files = {**FILES, "3.json": json.dumps({"n": 3}) + "\n"}
    result = run_app(killing(allowed), settings={"retry_backoff_seconds": 0.0}).add(files)
    with Interruption() as interruption, pytest.raises(Halted) as raised:
        run_application(
            result.workplace, result.opened, result.regions, options=RunOptions(), watch=Watch(), run_id="r",
            interruption=interruption,
        )  # fmt: skip
    history = result.workplace.history("killed/numbers")
    assert history.halt is not None
    detail = history.halt.detail
    guilty = detail["trigger"]
    assert Path(guilty).name == "2.json"
    assert guilty in str(raised.value)
    assert (raised.value.operator, detail["operator"], detail["error"]["id"]) == ("checked", "checked", WorkerDied.id)
    assert "'checked'" in detail["error"]["message"], "whose function it ran"
    assert "'named'" not in detail["error"]["message"]
    assert guilty in detail["error"]["message"]
    assert sorted(row["n"] for row in result.sink("survived")) == [0, 1], "what came before it"
    assert history.attempts == allowed
