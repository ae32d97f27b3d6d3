"""Runs in the spare process of the daemon: they end, fail and are terminated like runs of the code server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from recovery.held_region import Deployment, deployed, parent_of, terminate, wait_for

from drainmark.jobs.protocol.history import Outcome
from drainmark.orchestration.dagster_assets.metadata import PROCESS_TAG
from drainmark.resources.registry.lease import process_started

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("project")) as served:
        served.drop("z,0")  # the code server starts the first run of a daemon
        wait_for(lambda: served.history().committed_id, "the first run", served)
        served.wait_committed(0)
        yield served


def await_spare(deployment: Deployment) -> int:
    """Wait for a child of the daemon that has made its imports; return its pid."""
    daemon = daemon_of(deployment)

    def waiting() -> int | None:
        for child in children_of(daemon):
            if b"spawn_main" in command_of(child) and b"libarrow" in Path(f"/proc/{child}/maps").read_bytes():
                return child
        return None

    def ready() -> int | None:
        child = waiting()
        return child if child is not None and is_asleep(child) else None

    return int(wait_for(ready, "a spare process", deployment))


def daemon_of(deployment: Deployment) -> int:
    return next(pid for pid in children_of(deployment.process.pid) if b"dagster._daemon" in command_of(pid))


def children_of(parent: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    found = []
    for pid in pids:
        try:
            if parent_of(pid) == parent:
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def is_asleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def held_in_spare(deployment: Deployment, *lines: str) -> int:
    """Hold a run in the middle of a group, in the spare process; return its pid."""
    await_spare(deployment)
    deployment.hold()
    deployment.drop(*lines)
    worker = deployment.held_process()
    assert parent_of(worker) == daemon_of(deployment)
    return worker


def test_the_daemon_runs_what_has_come(tmp_path: Path) -> None:
    """The sensor of the daemon sees the first file, our launcher begins the run, and it commits."""
    with deployed(tmp_path, has_pages=False) as served:
        served.drop("z,0")
        wait_for(lambda: served.history().committed_id, "the first run", served)
        served.wait_committed(0)
        (run,) = served.runs()
        assert run.status is dg.DagsterRunStatus.SUCCESS
        assert served.totals()["z"] == 0


@pytest.mark.recovery
def test_a_killed_run_is_retried(deployment: Deployment) -> None:
    before = deployment.total()
    worker = held_in_spare(deployment, "a,1", "a,2")
    os.kill(worker, signal.SIGKILL)
    deployment.let_go()
    deployment.wait_committed(before + 3)
    killed, retry = deployment.runs()[-2:]
    assert killed.status is dg.DagsterRunStatus.FAILURE
    assert retry.parent_run_id == killed.run_id
    assert retry.tags[PROCESS_TAG].split(" ")[2] != str(worker)


@pytest.mark.recovery
def test_terminate_costs_no_attempt(deployment: Deployment) -> None:
    before = deployment.total()
    held_in_spare(deployment, "c,1000")
    terminate(deployment, before + 1000)


@pytest.mark.recovery
def test_a_run_sees_code_that_was_changed_while_the_spare_waited(deployment: Deployment) -> None:
    before = deployment.total()
    await_spare(deployment)
    code = deployment.root / "held.py"
    code.write_text(code.read_text().replace('F.col("v").cast("bigint")', '(F.col("v").cast("bigint") * 2)'))
    deployment.drop("e,50")
    deployment.wait_committed(before + 100)


@pytest.mark.recovery
def test_a_run_ends_by_itself_when_the_daemon_is_killed(deployment: Deployment) -> None:
    """This is the last test of the module, because `dagster dev` ends with its daemon."""
    epoch = deployment.history().epoch
    worker = held_in_spare(deployment, "b,100")
    os.kill(daemon_of(deployment), signal.SIGKILL)
    deployment.process.wait(60)
    deployment.let_go()
    for _ in range(600):
        if process_started(worker) is None:
            break
        signal.sigtimedwait([], 0.1)
    assert process_started(worker) is None, "the orphan ends"
    assert deployment.history().epoch == epoch + 1
    assert deployment.history().last_outcome in (Outcome.INTERRUPTED, Outcome.CLEAN)
