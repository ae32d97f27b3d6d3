"""If Dagster's internals have changed, its default launcher takes over, and the daemon's log says so."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.code_pointer import ModuleCodePointer

from drainmark.orchestration.dagster_jobs import run_launcher
from drainmark.orchestration.dagster_jobs.run_launcher import Spares, WarmRunLauncher

ORDERS = "drainmark.orchestration.dagster_jobs.dagster_internals"


class Counted(Spares):
    """Spares that create no process, and count the requests for one."""

    wanted = 0

    def make_soon(self) -> None:
        self.wanted += 1


@dataclass(frozen=True)
class Scene:
    """A launcher of an instance in memory; `defaulted`: ids of the runs given to Dagster's default launcher."""

    launcher: WarmRunLauncher
    spares: Counted
    defaulted: list[str]

    def launch(self, run: Any = None) -> None:
        context: Any = SimpleNamespace(dagster_run=run or dg.DagsterRun(job_name="any", run_id="a-run"))
        self.launcher.launch_run(context)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with dg.DagsterInstance.ephemeral() as instance:
        scene = Scene(WarmRunLauncher(), Counted(), [])
        scene.launcher.register_instance(instance)
        monkeypatch.setattr(WarmRunLauncher, "_spares", scene.spares)
        monkeypatch.setattr(
            dg.DefaultRunLauncher, "launch_run", lambda _, context: scene.defaulted.append(context.dagster_run.run_id)
        )
        yield scene


def test_a_run_of_other_code_goes_the_default_way_in_silence(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.launch()
    assert (scene.defaulted, scene.spares.wanted, caplog.records) == (["a-run"], 1, [])


@pytest.mark.parametrize("moved", ["dagster._grpc.types", "dagster._cli.api", "dagster._core.remote_origin"])
def test_a_module_of_dagster_that_has_moved(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    monkeypatch.delitem(sys.modules, ORDERS, raising=False)
    monkeypatch.setitem(sys.modules, moved, None)
    scene.launch()
    assert (scene.defaulted, scene.spares.wanted) == (["a-run"], 0)
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert moved in said.getMessage()


def run_of(orders: Any, working_directory: str | None) -> Any:
    """Return a run of a code server at a port, which was started in a folder; None if it is in that of the daemon."""
    pointer = ModuleCodePointer(orders.DEFINITIONS, "defs", working_directory)
    python = SimpleNamespace(executable_path=sys.executable, container_image=None, code_pointer=pointer)
    near = orders.GrpcServerCodeLocationOrigin(host="localhost", port=1)
    return SimpleNamespace(
        run_id="ours",
        job_code_origin=SimpleNamespace(repository_origin=python),
        remote_job_origin=SimpleNamespace(repository_origin=SimpleNamespace(code_location_origin=near)),
    )


def test_a_run_of_a_project_in_another_folder_goes_the_default_way(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Settings are those of the folder: here it would be a run of this project, perhaps of a region of that name."""
    orders = importlib.import_module(ORDERS)
    monkeypatch.setattr(orders, "ExecuteRunArgs", lambda **given: dg.MetadataValue.text("order"))
    scene.launch(run_of(orders, str(tmp_path)))
    assert (scene.defaulted, caplog.records) == (["ours"], [])
    instance = SimpleNamespace(get_ref=lambda: None)
    assert orders.order_for(run_of(orders, str(tmp_path)), instance) is None
    for ours in (None, str(Path.cwd())):
        assert orders.order_for(run_of(orders, ours), instance) is not None


def test_an_order_of_dagster_that_takes_other_arguments(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = importlib.import_module(ORDERS)
    monkeypatch.setattr(orders, "ExecuteRunArgs", lambda *, run: run)
    run = run_of(orders, None)
    scene.launch(run)
    assert (scene.defaulted, scene.spares.wanted, len(caplog.records)) == (["ours"], 0, 1)


def test_a_spare_that_is_not_ready_yet_is_kept_for_a_later_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each launch while it imports would leave a process behind."""
    made: list[Any] = []

    class Slow:
        def __init__(self) -> None:
            self.is_done, self.process = False, SimpleNamespace(is_alive=lambda: True, terminate=lambda: None)
            made.append(self)

        def is_ready(self) -> bool:
            return self.is_done

    monkeypatch.setattr(run_launcher.Spare, "start", Slow)
    monkeypatch.setattr(run_launcher, "Finalize", lambda *args, **options: None)
    spares = Spares()
    for _ in range(3):
        spares._make()
        assert spares.take() is None
    made[0].is_done = True
    assert spares.take() is made[0]
    assert len(made) == 1
    spares._make()
    assert len(made) == 2
