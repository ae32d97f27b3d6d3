"""Regions in a pool of Dagster: what waits for a place is not dead, and what idles in one makes way."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from hand_runs import engine, without_spark
from integration.dagster_scene import JOB, REGION, drop, instance, write_application
from waiting import SOON, eventually

from drainmark.dagster import DrainmarkTranslator
from drainmark.orchestration.dagster_assets.metadata import PROCESS_TAG
from drainmark.orchestration.dagster_jobs import run_monitor
from drainmark.orchestration.dagster_jobs.factory import build_definitions
from drainmark.orchestration.dagster_jobs.run_monitor import POOL_SECONDS, SILENT_SECONDS, RegionRuns
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.registry.lease import describe
from drainmark.resources.settings import Settings

__all__ = ["engine", "instance", "without_spark"]


class InPool(DrainmarkTranslator):
    def get_pool(self, region: str) -> str | None:
        return "one"


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    (tmp_path / "inbox").mkdir()
    application = str(write_application(tmp_path))
    return Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, applications=(application,)))


@pytest.fixture
def repository(place: Workplace, instance: dg.DagsterInstance, without_spark: None) -> dg.RepositoryDefinition:
    """Return the code location with its region in a pool that has one place."""
    instance.event_log_storage.set_concurrency_slots("one", 1)
    return build_definitions(place.settings, place, translator=InPool()).get_repository_def()


def reason(repository: dg.RepositoryDefinition, instance: dg.DagsterInstance) -> str:
    """Return the skip reason of a tick."""
    sensor = repository.get_sensor_def(f"{JOB}__sensor")
    with dg.build_sensor_context(instance=instance, repository_def=repository, sensor_name=sensor.name) as context:
        result = sensor(context)
    return str(result.skip_reason.skip_message)


def test_a_run_that_waits_for_its_pool_is_not_taken_for_dead(
    repository: dg.RepositoryDefinition,
    instance: dg.DagsterInstance,
    place: Workplace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its op has not begun, so it has told us nothing; Dagster lets it say every five minutes that it waits."""
    slots = instance.event_log_storage
    assert slots.claim_concurrency_slot("one", "another run", "its step").is_claimed
    drop(tmp_path, "0.csv", "a,1\n")
    run_id, ended = str(uuid.uuid4()), list[bool]()

    def work() -> None:
        job = repository.get_job(JOB)
        ended.append(job.execute_in_process(instance=instance, run_id=run_id, raise_on_error=False).success)

    waits = threading.Thread(target=work)

    def says_so() -> bool:
        told = instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        return any("blocked by limit for pool" in entry.message for entry in told)

    waits.start()
    try:
        eventually(says_so, "a run that waits")
        now = time.time()
        monkeypatch.setattr(run_monitor, "time", SimpleNamespace(time=lambda: now + 2 * SILENT_SECONDS))
        assert f"run {run_id} is STARTED" in reason(repository, instance)
        assert describe(place.registry, REGION, lease_seconds=60.0) is None, "it holds nothing that a verb could need"
        monkeypatch.setattr(run_monitor, "time", SimpleNamespace(time=lambda: now + 2 * POOL_SECONDS))
        assert not run_monitor._waits_for_pool(instance, run_id), "it would have said so again"
    finally:
        slots.free_concurrency_slots_for_run("another run")
        waits.join(SOON)
    assert ended == [True]
    assert place.history(REGION).committed_id == 1
    assert instance.get_run_by_id(run_id).tags[PROCESS_TAG].startswith(run_id)


@pytest.mark.parametrize("is_queued", [True, False])
def test_a_run_that_lingers_makes_way_for_one_that_waits_for_its_pool(
    repository: dg.RepositoryDefinition,
    place: Workplace,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    *,
    is_queued: bool,
) -> None:
    """The other one waits in Dagster's queue, or, without the queue, at work."""
    region = open_application(str(tmp_path / "little.py")).region(REGION)
    slots = instance.event_log_storage

    @dg.asset(pool="one")
    def of_others() -> None: ...

    job = dg.Definitions(assets=[of_others], jobs=[dg.define_asset_job("other", [of_others])]).resolve_job_def("other")

    def is_wanted(pool: str | None) -> bool:
        return RegionRuns(instance=instance, workplace=place, region=region, pool=pool).is_wanted_place()

    if is_queued:
        origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("others"), "theirs").get_job_origin(job.name)
        instance.create_run_for_job(job, status=dg.DagsterRunStatus.QUEUED, remote_job_origin=origin)
        assert not is_wanted("one"), "the pool has a place for it"
    assert slots.claim_concurrency_slot("one", "this run", "its step").is_claimed
    if not is_queued:
        assert not is_wanted("one"), "nobody waits"
        assert not slots.claim_concurrency_slot("one", "another run", "its step").is_claimed
    assert is_wanted("one")
    assert not is_wanted("two")
    assert not is_wanted(None)
