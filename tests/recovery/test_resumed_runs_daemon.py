"""A run in a container that is killed: Dagster's monitoring resumes it in another one, or fails it at last.

The launcher is Dagster's own for Docker, which asks `container_engine`; `make executors-check` installs it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator

import dagster as dg
import pytest
from container_engine import Engine, container_engine
from integration.dagster_scene import ROOT
from recovery.served_location import INSTANCE, Location, held_regions, served

INSTALLED = ROOT / "build" / "executors"
REGION = "one/rows"

pytestmark = [
    pytest.mark.recovery,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        importlib.util.find_spec("dagster_docker") is None and not INSTALLED.is_dir(),
        reason="make executors-check installs Dagster's executors for containers",
    ),
]

LOCATION = """
from pathlib import Path

from drainmark.dagster import definitions

defs = definitions(project=Path(__file__).parent)
"""
LAUNCHER = {"module": "dagster_docker", "class": "DockerRunLauncher", "config": {"image": "drainmark"}}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    path = (ROOT, ROOT / "tests", *([INSTALLED] if INSTALLED.is_dir() else []))
    with container_engine(folder, *path) as found, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", [*sys.path, str(INSTALLED)])
        patched.setenv("DOCKER_HOST", found.url.replace("http", "tcp"))
        yield found


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[Location]:
    root = tmp_path_factory.mktemp("resumed")
    (root / "in" / "rows").mkdir(parents=True)
    monitoring = {**INSTANCE["run_monitoring"], "max_resume_run_attempts": 1}
    with served(
        root,
        LOCATION,
        {"one": held_regions("rows", attempts=2)},
        instance={**INSTANCE, "run_launcher": LAUNCHER, "run_monitoring": monitoring},
        settings="linger_seconds = 0.0\n",
        path=[INSTALLED] if INSTALLED.is_dir() else [],
    ) as found:
        yield found


def kill_held(location: Location, before: int = 0) -> int:
    """Kill the container that is held in the middle of a group, another one than before; return its pid."""
    pid = location.wait_for(lambda: (found := location.held("rows")) != before and found, "a container in a group")
    os.kill(pid, signal.SIGKILL)
    return pid


def told(location: Location, run: dg.DagsterRun) -> str:
    events = location.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    return "\n".join(entry.message for entry in events)


def test_a_killed_run_is_resumed_and_commits_once(location: Location, engine: Engine) -> None:
    location.hold("rows")
    location.drop("in/rows/a.csv", "a,1\n")
    kill_held(location)
    location.wait_for(lambda: any("resume_run" in each.command for each in engine.made), "another worker")
    location.wait_for(lambda: location.history(REGION).epoch == 2, "its claim")
    assert location.history(REGION).attempts == 1, "the worker died behind its claim"
    location.let_go("rows")
    location.wait_for(lambda: location.values(REGION) == [1], "the file")
    location.wait_idle(REGION)
    (run,) = location.runs(REGION)
    assert run.status is dg.DagsterRunStatus.SUCCESS
    assert "Resuming run" in told(location, run)
    assert location.history(REGION).attempts == 0, "the state ends the count"


def test_a_run_that_is_killed_more_often_than_it_is_resumed_fails_and_its_retry_commits_once(
    location: Location,
) -> None:
    before = location.values(REGION)
    runs = len(location.runs(REGION))
    location.hold("rows")
    location.drop("in/rows/b.csv", "b,10\n")
    first = kill_held(location)
    kill_held(location, first)
    location.wait_for(lambda: location.runs(REGION)[runs].is_finished, "the end of the run")
    killed = location.runs(REGION)[runs]
    assert killed.status is dg.DagsterRunStatus.FAILURE
    assert "surpassed the configured maximum" in "\n".join(
        entry.message for entry in location.instance.all_logs(killed.run_id)
    )
    location.wait_for(lambda: location.history(REGION).attempts == 2, "the claim of the retry")
    location.let_go("rows")
    location.wait_for(lambda: location.values(REGION) == sorted([*before, 10]), "the file, once")
