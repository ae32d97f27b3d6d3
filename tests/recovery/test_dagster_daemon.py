"""A real Dagster: daemon, code server and run workers in separate processes, killed with SIGKILL.

One `dagster dev` serves the whole module; each test drops its own files and waits for their commit. Dagster's default
launcher starts the runs; `test_warm_runs` has the runs that our launcher starts in a spare process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from recovery.held_region import REGION, Deployment, deployed, parent_of, terminate, wait_for

from drainmark.jobs.protocol.history import Outcome
from drainmark.orchestration.dagster_assets.metadata import PROCESS_TAG
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.resources.registry.lease import process_started

pytestmark = [pytest.mark.recovery, pytest.mark.spark, pytest.mark.timeout(900)]


def kill_code_server(worker: int) -> None:
    """Kill the server that started a worker, and the proxy before it: `dagster dev` restarts only the proxy."""
    server = parent_of(worker)
    proxy = parent_of(server)
    assert b"code-server" in Path(f"/proc/{proxy}/cmdline").read_bytes()
    for pid in (proxy, server):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("project"), default_launcher=True) as served:
        yield served


@pytest.mark.seed("V68", "K9")
def test_a_killed_run_worker_is_retried(deployment: Deployment) -> None:
    before = deployment.total()
    deployment.hold()
    deployment.drop("a,1", "a,2")
    worker = deployment.held_process()
    os.kill(worker, signal.SIGKILL)
    deployment.let_go()
    deployment.wait_committed(before + 3)
    killed, retry = deployment.runs()[-2:]
    assert killed.status is dg.DagsterRunStatus.FAILURE
    assert retry.parent_run_id == killed.run_id
    assert retry.tags[PROCESS_TAG].split(" ")[2] != str(worker)
    assert deployment.history().last_outcome is Outcome.CLEAN


@pytest.mark.seed("V68", "T4")
def test_our_reaper_recovers_when_the_code_server_is_killed_as_well(deployment: Deployment) -> None:
    before = deployment.total()
    deployment.hold()
    deployment.drop("a,10")
    worker = deployment.held_process()
    kill_code_server(worker)
    os.kill(worker, signal.SIGKILL)
    deployment.let_go()
    deployment.wait_committed(before + 10)
    messages = [record.message for run in deployment.runs() for record in deployment.instance.all_logs(run.run_id)]
    assert any("Drainmark's reaper" in message for message in messages)


def test_a_run_ends_by_itself_when_only_its_code_server_is_killed(deployment: Deployment) -> None:
    before = deployment.total()
    deployment.hold()
    deployment.drop("b,100")
    worker = deployment.held_process()
    epoch = deployment.history().epoch
    kill_code_server(worker)
    wait_for(lambda: process_started(worker) is None, "the end of the orphan", deployment)
    deployment.let_go()
    deployment.wait_committed(before + 100)
    rows = deployment.workplace.store(REGION).checkpoint.rows()
    claims = [row for row in rows if row.kind.value == "claim" and row.epoch == epoch + 1]
    assert claims[0].detail["previous"] == Outcome.INTERRUPTED.value, "no attempt was counted"


def test_terminate_costs_no_attempt(deployment: Deployment) -> None:
    before = deployment.total()
    deployment.hold()
    deployment.drop("c,1000")
    deployment.held_process()
    terminate(deployment, before + 1000)


def test_a_poison_file_halts_and_resume_continues(deployment: Deployment) -> None:
    before, runs = deployment.total(), len(deployment.runs())
    good, poison = deployment.drop("d,10000", "d,poison")
    wait_for(lambda: deployment.history().halt, "a halt", deployment)
    wait_for(lambda: "HALTED" in deployment.skip_reason(), "the sensor to say so", deployment)
    assert f"drainmark resume {REGION}" in deployment.skip_reason()
    wait_for(lambda: _is_alerted(deployment.instance), "the sensor drainmark_halted", deployment)
    assert deployment.history().halt.detail["trigger"] == str(poison)
    assert deployment.total() == before + 10000, f"{good} is committed"
    wait_for(lambda: all(run.is_finished for run in deployment.runs()[runs:]), "the runs to end", deployment)
    tried = deployment.runs()[runs:]
    assert [run.status for run in tried] == [dg.DagsterRunStatus.FAILURE] * 2
    assert tried[-1].tags["dagster/max_retries"] == "0"

    poison.write_text("d,20000\n")
    owner = region_owner(deployment.workplace, REGION)
    owner.claim()
    owner.halts.resume("mended")
    owner.release(Outcome.CLEAN)
    deployment.wait_committed(before + 30000)


def _is_alerted(instance: dg.DagsterInstance) -> bool:
    """Say whether the newest check of the region says that it is halted."""
    key = dg.AssetCheckKey(dg.AssetKey(["held", "checkpoints", "rows"]), "not_halted")
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    return bool(records) and not records[0].event.dagster_event.asset_check_evaluation_data.passed
