"""Ticks: a sensor's requests, waits and reasons; the reaper. Real instances and real runs, no Spark."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import yaml
from channel_parts import commit_in_flight
from dagster._core.test_utils import MockedRunLauncher
from dagster._daemon.monitoring.run_monitoring import RESUME_RUN_LOG_MESSAGE
from integration.dagster_scene import JOB, NODE, REGION, ROOT, definitions, drop, instance, place, write_application
from waiting import SOON, eventually

from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.protocol.claimed_code import Code
from drainmark.jobs.protocol.history import Outcome
from drainmark.orchestration.dagster_assets.metadata import NOTE_TAG, PROCESS_TAG, REGION_TAG
from drainmark.orchestration.dagster_jobs import run_monitor, sensors
from drainmark.orchestration.dagster_jobs.run_monitor import RegionRuns, counted_tag, tag_process
from drainmark.orchestration.dagster_jobs.sensors import Cursor, RegionTicks, one_run_sensor
from drainmark.orchestration.discovery.source_watch import SourceWatch
from drainmark.orchestration.runs.failures_before_claim import count_failure
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.registry.lease import Owner

HOLDER = """
import sys, time
from pathlib import Path
from drainmark.resources.registry.lease import LeaseHolder
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings
settings = Settings(home=Path(sys.argv[1]), project_root=Path(sys.argv[1]).parent)
LeaseHolder(Workplace(settings).registry, settings).acquire(sys.argv[2], sys.argv[3])
print("held", flush=True)
time.sleep(600)
"""

__all__ = ["instance", "place"]


class Ticker:
    """A ticker that ticks the region's sensor and keeps its cursor, as the daemon does."""

    def __init__(self, repository: dg.RepositoryDefinition, instance: dg.DagsterInstance) -> None:
        self.sensor = next(sensor for sensor in repository.sensor_defs if sensor.name == f"{JOB}__sensor")
        self.repository, self.instance, self.cursor = repository, instance, None

    def __call__(self) -> dg.SensorResult:
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, repository_def=self.repository, sensor_name=self.sensor.name
        )
        result = self.sensor(context)
        self.cursor = result.cursor
        return result

    def reason(self) -> str:
        result = self()
        assert not result.run_requests
        return result.skip_reason.skip_message

    def run(self, request: dg.RunRequest | None = None, retry_of: dg.DagsterRun | None = None) -> dg.DagsterRun:
        """Create the run that was requested, or its retry, as the daemon does."""
        job = self.repository.get_job(JOB)
        tags = {**(request.tags if request else job.tags)}
        if retry_of is None:
            return self.instance.create_run_for_job(job, tags=tags)
        parent = retry_of.run_id
        tags |= {"dagster/root_run_id": parent, "dagster/parent_run_id": parent, "dagster/retry_number": "1"}
        return self.instance.create_run_for_job(job, tags=tags, parent_run_id=parent, root_run_id=parent)

    def queue(self, requests: Sequence[dg.RunRequest]) -> None:
        """Store the requested runs, without a plan for each."""
        for request in requests:
            run = dg.DagsterRun(
                job_name=JOB, run_id=str(uuid.uuid4()), tags=dict(request.tags), status=dg.DagsterRunStatus.NOT_STARTED
            )
            self.instance.add_run(run)


@pytest.fixture
def ticker(place: Workplace, tmp_path: Path, instance: dg.DagsterInstance) -> Ticker:
    return Ticker(definitions(place, write_application(tmp_path)), instance)


def started(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun:
    for kind in (dg.DagsterEventType.RUN_STARTING, dg.DagsterEventType.RUN_START):
        event = dg.DagsterEvent(event_type_value=kind.value, job_name=run.job_name)
        instance.report_dagster_event(event, run_id=run.run_id)
    return instance.get_run_by_id(run.run_id)


def failed(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun:
    instance.report_run_failed(started(instance, run))
    return instance.get_run_by_id(run.run_id)


def as_daemon(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ticks be those of the daemon in the code server: each has a key for its logs."""
    monkeypatch.setattr(place, "is_service", True)
    monkeypatch.setattr(dg.SensorEvaluationContext, "log_key", ["little__rows__sensor", "1"])


def test_a_backlog_is_one_run(ticker: Ticker, tmp_path: Path) -> None:
    assert "nothing is pending" in ticker.reason()
    for number in range(3):
        drop(tmp_path, f"{number}.csv", "a,1\n")
    (request,) = ticker().run_requests
    assert request.run_key == f"{REGION}:0:0"
    assert request.tags[REGION_TAG] == REGION
    assert request.tags["dagster/max_retries"] == "1"
    assert request.run_config == {"ops": {NODE: {"config": {"scan": False}}}}


@pytest.mark.parametrize("comes", [False, True])
def test_a_tick_that_watches_requests_a_run_for_what_is_pending_only(
    place: Workplace, ticker: Ticker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """Every scan reports a committed file that changed; with `on_change="ignore"`, a run has nothing to do for it."""
    app = write_application(tmp_path)
    app.write_text(app.read_text().replace("settle=0.0", 'settle=0.0, on_change="ignore"'))
    ticker = Ticker(definitions(place, app), ticker.instance)
    monkeypatch.setattr(sensors, "WATCH_SECONDS", SOON if comes else 1.0)
    monkeypatch.setattr(RegionTicks, "_start_spark", lambda self, instance: None)
    path = drop(tmp_path, "0.csv", "a,1\n")
    assert ticker().run_requests
    ticker.cursor = None
    place.registry.progress.set_epoch(REGION, 1)
    place.registry.triggers.settle(
        REGION, 1, [(trigger.order_index, 1) for trigger in place.registry.triggers.pending(REGION, 2)]
    )
    path.write_text("another,2\n")
    looks = []
    look = SourceWatch.look

    def noting(watch: SourceWatch) -> int:
        if comes and looks:
            drop(tmp_path, "1.csv", "a,1\n")
        looks.append(look(watch))
        return looks[-1]

    monkeypatch.setattr(SourceWatch, "look", noting)
    as_daemon(place, monkeypatch)
    if comes:
        assert len(ticker().run_requests) == 1
    else:
        assert "nothing is pending" in ticker.reason()
    assert looks[0] == 1, "the changed file was seen"


@pytest.mark.parametrize("has_threads", [False, True])
def test_a_tick_watches_only_where_the_daemon_has_threads_for_others(
    place: Workplace, ticker: Ticker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_threads: bool
) -> None:
    """Dagster's daemon has one thread for all sensors by default: a tick that waits holds up those of other people."""
    monkeypatch.setattr("drainmark.orchestration.dagster_jobs.sensors.WATCH_SECONDS", 0.5)
    settings = ticker.instance.get_settings
    own = {"sensors": {"use_threads": True}} if has_threads else {}
    monkeypatch.setattr(
        ticker.instance, "get_settings", lambda name: own.get(name, {}) if name == "sensors" else settings(name)
    )
    looks: list[int] = []
    monkeypatch.setattr(SourceWatch, "look", lambda watch: looks.append(1) or 0)
    as_daemon(place, monkeypatch)
    assert "nothing is pending" in ticker.reason()
    assert bool(looks) is has_threads


@pytest.mark.parametrize("launcher", [dg.DefaultRunLauncher, object])
def test_a_tick_starts_spark_only_for_runs_of_its_own_machine(
    place: Workplace, ticker: Ticker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: type
) -> None:
    """The pod of a code server would have a JVM that no run on Kubernetes uses."""
    prepared: list[int] = []
    monkeypatch.setattr(place.engine, "prepare", lambda: prepared.append(1), raising=False)
    monkeypatch.setattr(type(ticker.instance), "run_launcher", launcher())
    as_daemon(place, monkeypatch)
    drop(tmp_path, "0.csv", "a,1\n")
    assert ticker().run_requests
    assert bool(prepared) is (launcher is dg.DefaultRunLauncher)


def test_a_preview_on_the_page_of_a_sensor_changes_nothing(
    place: Workplace, ticker: Ticker, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Preview tick` of Dagster's page calls the sensor as the daemon does, but has no key for its logs."""
    started_spark: list[dg.DagsterInstance] = []
    monkeypatch.setattr(RegionTicks, "_start_spark", lambda ticks, instance: started_spark.append(instance))
    drop(tmp_path, "0.csv", "a,1\n")
    monkeypatch.setattr(place, "is_service", True)
    assert "does not look for new input" in ticker.reason()
    assert place.registry.pending_count(REGION) == 0, "it was not scanned"
    monkeypatch.setattr(place, "is_service", False)
    (request,) = ticker().run_requests
    started_spark.clear()
    monkeypatch.setattr(place, "is_service", True)
    cursor = ticker.cursor
    (shown,) = ticker().run_requests
    assert shown.run_config == request.run_config
    assert (ticker.cursor, started_spark) == (cursor, [])
    run = ticker.run(request)
    instance.add_run_tags(run.run_id, tag_process(run.run_id, pid=1))
    monkeypatch.setattr(RegionRuns, "reap", lambda runs: pytest.fail("a preview reaps nothing"))
    assert run.run_id in ticker.reason()


@pytest.mark.seed("X13")
def test_a_queued_or_running_run_is_waited_for(ticker: Ticker, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    run = ticker.run(ticker().run_requests[0])
    assert run.run_id in ticker.reason()
    instance.add_run_tags(run.run_id, tag_process(run.run_id))
    started(instance, run)
    assert "STARTED" in ticker.reason()


def test_a_run_from_the_asset_page_counts_before_it_has_tagged_itself(
    ticker: Ticker, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    graph = ticker.repository.asset_graph
    keys = frozenset(key for key in graph.materializable_asset_keys if key.path[0] == "little")
    run = instance.create_run_for_job(ticker.repository.get_job("__ASSET_JOB"), asset_selection=keys)
    assert run.run_id in ticker.reason()


@pytest.mark.seed("V64", "V68", "K9")
def test_a_failed_run_that_waits_for_its_retry_is_active(
    ticker: Ticker, place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    run = failed(instance, ticker.run(ticker().run_requests[0]))
    assert run.is_complete_and_waiting_to_retry
    assert ticker.reason().endswith("waits for its retry")
    error = OperatorFailed("no such column", operator="numbers")
    count_failure(place, REGION, error, allowed=5, code="some", run_id=run.run_id)
    assert ticker.reason().endswith("waits for its retry; last error in numbers: no such column")


@pytest.mark.seed("V75", "X10")
def test_a_retry_that_dagster_never_begins_is_given_up(
    ticker: Ticker, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon may look at a failure before the run's tags say that it is to be retried, and it looks only once."""
    drop(tmp_path, "0.csv", "a,1\n")
    run = ticker.run(ticker().run_requests[0])
    instance.add_run_tags(run.run_id, counted_tag(run.run_id))
    failed(instance, run)
    assert ticker.reason().endswith("waits for its retry")
    monkeypatch.setattr(run_monitor, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(Cursor, "wait_seconds", lambda self, epoch, now: 0.0)
    (request,) = ticker().run_requests
    assert request.run_key == f"{REGION}:0:1"
    assert not instance.get_run_by_id(run.run_id).is_complete_and_waiting_to_retry, "nor does the daemon retry it now"


@pytest.mark.seed("V64")
def test_what_becomes_of_runs_of_other_regions_is_no_news(
    ticker: Ticker, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """The sensor reads all runs of the instance; a run that works or failed for another region delays nothing."""
    drop(tmp_path, "0.csv", "a,1\n")
    for status, more in ((dg.DagsterRunStatus.STARTED, {}), (dg.DagsterRunStatus.FAILURE, WAITS)):
        tags = {REGION_TAG: "other/rows", **more}
        run = dg.DagsterRun(job_name="other__rows", run_id=str(uuid.uuid4()), tags=tags, status=status)
        instance.add_run(run)
    assert instance.get_run_by_id(run.run_id).is_complete_and_waiting_to_retry
    assert len(ticker().run_requests) == 1


WAITS = {"dagster/max_retries": "1", "dagster/will_retry": "true"}
"""The tags of a failed run that waits for its retry."""


@pytest.mark.seed("X9", "X10")
def test_a_spent_lineage_is_followed_by_a_new_run(
    ticker: Ticker, instance: dg.DagsterInstance, place: Workplace, tmp_path: Path
) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    request = ticker().run_requests[0]
    first = failed(instance, ticker.run(request))
    second = failed(instance, ticker.run(request, first))
    instance.add_run_tags(first.run_id, {"dagster/auto_retry_run_id": second.run_id})
    assert not second.is_complete_and_waiting_to_retry
    for run in (first, second):  # both runs claimed, so there is a new epoch
        instance.add_run_tags(run.run_id, counted_tag(run.run_id))
    owner = region_owner(place, REGION)
    owner.claim()
    owner.release(Outcome.FAILED)
    (again,) = ticker().run_requests
    assert again.run_key == f"{REGION}:1:1"


def test_runs_that_never_claim_and_are_no_attempts_do_not_start_every_tick(
    ticker: Ticker, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A passing error, such as a store that does not answer, costs no attempt; so the sensor waits longer each time."""
    now = 1_800_000_000.0
    monkeypatch.setattr(sensors, "time", SimpleNamespace(time=lambda: now))
    drop(tmp_path, "0.csv", "a,1\n")
    run = ticker.run(ticker().run_requests[0])
    said = "the registry does not answer"
    instance.add_run_tags(run.run_id, {"dagster/max_retries": "0", **counted_tag(run.run_id), NOTE_TAG: said})
    failed(instance, instance.get_run_by_id(run.run_id))
    assert f"ended before it claimed {REGION}: {said}" in ticker.reason(), "what never counts is said where one looks"
    assert f"drainmark run {REGION}" in ticker.reason()
    now += 4.0
    assert ticker().run_requests


def test_the_wait_grows_and_ends_and_survives_a_clock_set_back() -> None:
    cursor = Cursor().with_request(3, 1000.0)
    assert cursor.wait_seconds(3, 1000.0) == 4.0
    assert cursor.wait_seconds(3, 1004.0) == 0.0
    assert cursor.wait_seconds(4, 1000.0) == 0.0
    assert cursor.wait_seconds(3, 10.0) == 0.0
    assert cursor.with_request(3, 1010.0).wait_seconds(3, 1010.0) == 8.0
    assert Cursor.from_text(cursor.to_text()) == cursor
    assert Cursor.from_text("something else") == Cursor()
    for _ in range(5000):
        cursor = cursor.with_request(3, 1010.0)
    assert cursor.wait_seconds(3, 1010.0) == 300.0
    assert cursor.wait_seconds(3, 1311.0) == 0.0


def test_a_job_whose_runs_fail_does_not_start_one_every_tick(
    place: Workplace, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dg.op
    def broken() -> None:
        raise ValueError("no driver")

    @dg.job
    def part() -> None:
        broken()

    clock = [time.time()]
    monkeypatch.setattr("drainmark.orchestration.dagster_jobs.sensors.time.time", lambda: clock[0])
    sensor = one_run_sensor(place, part, "a part", wanted=dg.RunRequest)
    begun: list[float] = []
    for _ in range(40):
        result = sensor(dg.build_sensor_context(instance=instance))
        if result.run_requests:
            begun.append(clock[0])
            part.execute_in_process(instance=instance, raise_on_error=False)
            clock[0] = max(clock[0], time.time())
        else:
            assert "the last run failed" in str(result.skip_reason)
        clock[0] += 5.0
    gaps = [later - first for first, later in itertools.pairwise(begun)]
    assert 4 <= len(begun) <= 8
    assert gaps == sorted(gaps), "each wait is as long as the one before, or longer"


def test_one_run_a_trigger_at_most_twenty_a_tick(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    ticker = Ticker(definitions(place, write_application(tmp_path, ', runs="per_trigger"')), instance)
    for number in range(25):
        drop(tmp_path, f"{number:02}.csv", "a,1\n")
    requests = ticker().run_requests
    assert len(requests) == 20
    assert len({request.run_key for request in requests}) == 20
    assert requests[0].run_config["ops"][NODE]["config"] == {"scan": False, "max_triggers": 1}
    assert requests[0].tags["drainmark/trigger"].endswith("00.csv")
    ticker.queue(requests)
    rest = ticker().run_requests
    assert [request.tags["drainmark/trigger"][-6:] for request in rest] == [f"{n}.csv" for n in range(20, 25)]
    ticker.queue(rest)
    assert "NOT_STARTED" in ticker.reason()


def test_a_run_that_ends_while_its_tick_watches_is_not_followed_by_an_empty_one(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticker = Ticker(definitions(place, write_application(tmp_path, ', runs="per_trigger"')), instance)
    run, owner = started(instance, ticker.run()), region_owner(place, REGION)
    owner.claim()

    def ends(*_: object) -> bool:
        owner.release(Outcome.CLEAN)
        instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.PIPELINE_SUCCESS.value, JOB), run.run_id)
        return False

    monkeypatch.setattr(RegionTicks, "_watch", ends)
    assert "nothing is pending" in ticker.reason()


def test_a_halted_region_waits_for_its_operator(ticker: Ticker, place: Workplace, tmp_path: Path) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    owner = region_owner(place, REGION)
    owner.claim()
    owner.halts.halt("too many attempts", trigger="inbox/0.csv", operator="numbers", error=None)
    owner.release(Outcome.CLEAN)
    reason = ticker.reason()
    assert "HALTED: too many attempts" in reason
    assert f"drainmark resume {REGION}" in reason
    assert f"drainmark skip {REGION} --file inbox/0.csv" in reason
    assert place.registry.pending_count(REGION) == 1, "new files are recorded all the same"


def test_an_owner_outside_dagster_is_named(ticker: Ticker, place: Workplace, tmp_path: Path) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    owner = region_owner(place, REGION)
    owner.claim()
    assert "owned by pid" in ticker.reason()
    owner.release(Outcome.CLEAN)
    assert ticker().run_requests


def test_an_owner_that_died_is_reason_enough(ticker: Ticker, place: Workplace, tmp_path: Path) -> None:
    owner = region_owner(place, REGION)
    owner.claim()
    owner.leave()  # without a row in the checkpoint table, as after SIGKILL
    assert ticker().run_requests


@pytest.mark.seed("K23")
def test_what_is_in_flight_is_reason_enough(ticker: Ticker, place: Workplace, tmp_path: Path) -> None:
    """All files are committed and the last owner ended well, but a stage still has a batch in its channel."""
    drop(tmp_path, "0.csv", "a,1\n")
    ticker()
    owner = region_owner(place, REGION)
    owner.claim(code=Code(operators={"numbers": "x"}, stages={"rows": (), "numbers": ("numbers",)}))
    (trigger,) = place.registry.triggers.pending(REGION, 2)
    commit_in_flight(owner, trigger, "rows->numbers", numbers=0)
    owner.release(Outcome.CLEAN)
    assert not place.registry.pending_count(REGION)
    assert len(ticker().run_requests) == 1


def test_a_missing_folder_is_said(ticker: Ticker, tmp_path: Path) -> None:
    (tmp_path / "inbox").rmdir()
    assert "does not exist" in ticker.reason()


def commit_first(ticker: Ticker, place: Workplace, root: Path) -> Path:
    """Drop a file and record it as committed; return its path."""
    path = drop(root, "0.csv", "a,1\n")
    ticker()
    owner = region_owner(place, REGION)
    owner.claim()
    trigger = place.registry.triggers.pending(REGION, 1)[0]
    number = owner.groups.skip(trigger, "for the test")
    place.registry.triggers.settle(REGION, owner.epoch, [(trigger.order_index, number)])
    owner.release(Outcome.CLEAN)
    return path


def test_a_changed_file_is_said(ticker: Ticker, place: Workplace, tmp_path: Path) -> None:
    path = commit_first(ticker, place, tmp_path)
    path.write_text("a,12345\n")
    reason = ticker.reason()
    assert "is another file now" in reason
    assert "drainmark reset" in reason
    halt = place.history(REGION).halt
    assert halt is not None  # as after a run that scans
    assert "is another file now" in halt.detail["reason"]
    assert "is another file now" in ticker.reason()
    assert place.history(REGION).halt == halt


def test_a_run_that_scans_halts_its_region_for_a_changed_file(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    repository = definitions(place, write_application(tmp_path))
    path = commit_first(Ticker(repository, instance), place, tmp_path)
    path.write_text("a,12345\n")
    config = {"ops": {NODE: {"config": {"scan": True}}}}
    ended = repository.get_job(JOB).execute_in_process(instance=instance, run_config=config, raise_on_error=False)
    assert not ended.success
    halt = place.history(REGION).halt
    assert halt is not None
    assert "is another file now" in halt.detail["reason"]
    assert instance.get_run_by_id(ended.run_id).tags["dagster/max_retries"] == "0"


def test_a_lost_registry_is_said(place: Workplace, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    ticker = Ticker(definitions(place, write_application(tmp_path)), instance)
    ticker()
    owner = region_owner(place, REGION)
    owner.claim()
    owner.groups.skip(place.registry.triggers.pending(REGION, 1)[0], "for the test")
    owner.release(Outcome.CLEAN)
    place.registry.close()
    for path in (tmp_path / "home").glob("registry.db*"):
        path.unlink()
    lost = Workplace(place.settings)
    ticker = Ticker(definitions(lost, tmp_path / "little.py"), instance)
    assert "doctor --repair" in ticker.reason()
    lost.registry.close()


def test_a_scan_that_takes_longer_than_its_box_goes_on(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        drop(tmp_path, f"{number}.csv", "a,1\n")
    said, scan = threading.Event(), sensors.scan_region

    def slowly(*region: Any, **how: Any) -> Any:
        assert said.wait(SOON)
        return scan(*region, **how)

    monkeypatch.setattr(sensors, "scan_region", slowly)
    place.settings = place.settings.model_copy(update={"sensor_time_box_seconds": 1e-6})
    ticker = Ticker(definitions(place, write_application(tmp_path)), instance)
    assert "the scan goes on" in ticker.reason()
    said.set()
    assert eventually(lambda: ticker().run_requests, "a request")
    assert place.registry.pending_count(REGION) == 200


def test_a_schedule_asks_for_a_scan(place: Workplace, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    repository = definitions(place, write_application(tmp_path, ', schedule="*/5 * * * *"'))
    schedule = next(schedule for schedule in repository.schedule_defs if schedule.name.startswith(JOB))
    context = dg.build_schedule_context(
        instance=instance,
        repository_def=repository,
        scheduled_execution_time=dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
    )
    request = schedule(context)
    assert request.run_config["ops"][NODE]["config"] == {"scan": True}
    owner = region_owner(place, REGION)
    owner.claim()
    owner.halts.halt("stop", trigger=None, operator=None, error=None)
    owner.release(Outcome.CLEAN)
    assert "HALTED" in schedule(context).skip_message


@pytest.mark.seed("V75")
@pytest.mark.recovery
def test_the_reaper_fails_a_run_whose_process_died_with_the_lease(
    ticker: Ticker, instance: dg.DagsterInstance, place: Workplace, tmp_path: Path
) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    run = ticker.run(ticker().run_requests[0])
    held = [sys.executable, "-c", HOLDER, str(place.home), REGION, run.run_id]
    process = subprocess.Popen(held, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout.readline() == b"held\n"
    started(instance, run)
    assert "STARTED" in ticker.reason(), "it lives"
    process.kill()
    process.wait()
    process.stdout.close()
    assert "waits for its retry" in ticker.reason()
    assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize("beats", [True, False], ids=["the registry was away", "the process hangs"])
def test_the_reaper_waits_a_lease_for_a_silent_process_of_this_host_that_is_there(
    ticker: Ticker, place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, beats: bool
) -> None:
    """While the registry or the whole machine was away, no run could say that it lives."""
    drop(tmp_path, "0.csv", "a,1\n")
    run = ticker.run(ticker().run_requests[0])
    ticker.instance.add_run_tags(run.run_id, tag_process(run.run_id))
    started(ticker.instance, run)
    silent = Owner(
        region=REGION, host="here", pid=1, run_id=run.run_id, acquired_at=dt.datetime.now(dt.UTC),
        heartbeat_at=dt.datetime.now(dt.UTC), heartbeat_age_seconds=16.0, is_alive=False,
    )  # fmt: skip
    owners, clock = [silent], [100.0]
    monkeypatch.setattr(run_monitor, "describe", lambda *args, **options: owners[0])
    monkeypatch.setattr(run_monitor.time, "monotonic", lambda: clock[0])
    assert "STARTED" in ticker.reason()
    clock[0] += place.settings.lease_seconds / 2
    assert "STARTED" in ticker.reason()
    if beats:
        owners[0] = replace(silent, heartbeat_at=silent.heartbeat_at + dt.timedelta(seconds=20))
    clock[0] += place.settings.lease_seconds / 2
    assert ("STARTED" if beats else "waits for its retry") in ticker.reason()


def test_the_reaper_fails_a_run_that_died_before_it_claimed(
    ticker: Ticker, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    run = ticker.run(ticker().run_requests[0])
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    living = tag_process(run.run_id)[PROCESS_TAG]
    host = living.split(" ")[1]
    instance.add_run_tags(run.run_id, {PROCESS_TAG: f"{run.run_id} {host} {done.pid} 12345"})
    started(instance, run)
    assert "waits for its retry" in ticker.reason()


class ResumingLauncher(MockedRunLauncher):
    """A launcher as those for containers: Dagster's monitoring asks it whether workers live, and for new ones."""

    supports_check_run_worker_health = True
    supports_resume_run = True


@pytest.mark.parametrize("resumed", [0, 1], ids=["not yet resumed", "resumed for the last time"])
def test_the_reaper_leaves_a_run_that_dagster_resumes_to_it(
    ticker: Ticker, tmp_path: Path, instance: dg.DagsterInstance, resumed: int
) -> None:
    """Its new worker has to start before it can say that it lives; if it dies, Dagster fails the run."""
    file = tmp_path / "home" / "dagster" / "dagster.yaml"
    config = yaml.safe_load(file.read_text())
    config["run_launcher"] = {"module": __name__, "class": "ResumingLauncher"}
    config["run_monitoring"]["max_resume_run_attempts"] = 1
    file.write_text(yaml.safe_dump(config))
    drop(tmp_path, "0.csv", "a,1\n")
    with dg.DagsterInstance.from_config(str(file.parent)) as ticker.instance:
        run = ticker.run(ticker().run_requests[0])
        host = tag_process(run.run_id)[PROCESS_TAG].split(" ")[1]
        started(ticker.instance, run)
        ticker.instance.add_run_tags(run.run_id, {PROCESS_TAG: f"{run.run_id} {host} 1 12345"})
        for _ in range(resumed):
            ticker.instance.report_engine_event(RESUME_RUN_LOG_MESSAGE, run)
        assert ticker.instance.count_resume_run_attempts(run.run_id) == resumed
        assert "STARTED" in ticker.reason()


def test_the_reaper_spares_a_retry_that_carries_its_parents_tag(
    ticker: Ticker, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    run = ticker.run(ticker().run_requests[0])
    host = tag_process(run.run_id)[PROCESS_TAG].split(" ")[1]
    instance.add_run_tags(run.run_id, {PROCESS_TAG: f"another-run {host} 1 12345"})
    started(instance, run)
    assert "STARTED" in ticker.reason()
    assert json.loads(ticker.cursor)["ticks"] == 1


def test_a_run_that_should_be_cancelled_and_died_is_cancelled(
    ticker: Ticker, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    run = started(instance, ticker.run(ticker().run_requests[0]))
    host = tag_process(run.run_id)[PROCESS_TAG].split(" ")[1]
    instance.add_run_tags(run.run_id, {PROCESS_TAG: f"{run.run_id} {host} 999999999 12345"})
    instance.report_run_canceling(instance.get_run_by_id(run.run_id))
    ticker()
    assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.CANCELED


@pytest.mark.seed("V75")
@pytest.mark.parametrize("is_heard_of", [True, False])
def test_a_run_on_another_host_is_lost_when_it_is_not_heard_of_for_long(
    ticker: Ticker, instance: dg.DagsterInstance, place: Workplace, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, *, is_heard_of: bool,
) -> None:  # fmt: skip
    """A run that worked for hours may have released its lease a moment before it ends."""
    drop(tmp_path, "0.csv", "a,1\n")
    run = ticker.run(ticker().run_requests[0])
    instance.add_run_tags(run.run_id, {PROCESS_TAG: f"{run.run_id} elsewhere 17 12345"})
    started(instance, run)
    if is_heard_of:
        owner = region_owner(place, REGION, run_id=run.run_id)
        owner.claim()
        owner.release(Outcome.CLEAN)
    an_hour_later = time.time() + 3600.0
    monkeypatch.setattr(run_monitor, "time", SimpleNamespace(time=lambda: an_hour_later))
    assert ("STARTED" in ticker.reason()) is is_heard_of
    assert instance.get_run_by_id(run.run_id).is_finished is not is_heard_of
