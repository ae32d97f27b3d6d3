"""The sensor `drainmark_halted` on a real instance: it reports regions that wait for an operator, and no others."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from integration.dagster_scene import JOB, REGION, definitions, instance, place, write_application

from drainmark.orchestration.dagster_assets.checks import NOT_HALTED
from drainmark.orchestration.dagster_assets.metadata import REGION_TAG
from drainmark.orchestration.dagster_jobs.alerts import NAME, halted_sensor
from drainmark.orchestration.inspection.status import statuses
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.workplace.workplace import Workplace, open_application

__all__ = ["instance", "place"]

CHECK = dg.AssetCheckKey(dg.AssetKey(["little", "checkpoints", "rows"]), NOT_HALTED)


def failed_run(instance: dg.DagsterInstance, tags: dict[str, str]) -> dg.RunFailureSensorContext:
    """Store a run that failed, and return the context that the daemon gives the sensor for it."""
    run = dg.DagsterRun(job_name=JOB, run_id=str(uuid.uuid4()), tags=tags, status=dg.DagsterRunStatus.STARTED)
    instance.add_run(run)
    event = instance.report_run_failed(run)
    stored = instance.get_run_by_id(run.run_id)
    assert stored is not None
    return dg.build_run_status_sensor_context(
        sensor_name=NAME, dagster_event=event, dagster_instance=instance, dagster_run=stored
    ).for_run_failure()


def passed(instance: dg.DagsterInstance) -> bool | None:
    """Return the verdict of the region's check; None if it was never evaluated."""
    records = instance.event_log_storage.get_asset_check_execution_history(CHECK, limit=1)
    return records[0].event.dagster_event.asset_check_evaluation_data.passed if records else None


def test_the_code_location_has_the_sensor_and_it_runs(place: Workplace, tmp_path: Path) -> None:
    repository = definitions(place, write_application(tmp_path))
    sensor = next(sensor for sensor in repository.sensor_defs if sensor.name == NAME)
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING


def test_a_halted_region_fails_its_check_and_is_told(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    region = open_application(str(write_application(tmp_path))).region(REGION)
    told: list[dict[str, Any]] = []
    sensor = halted_sensor(place, {REGION: region}, tell=told.append)
    interventions.halt(place, REGION, "the disk is full")

    context = failed_run(instance, {REGION_TAG: REGION})
    sensor(context)

    assert passed(instance) is False
    (record,) = instance.event_log_storage.get_asset_check_execution_history(CHECK, limit=1)
    judged = record.event.dagster_event.asset_check_evaluation_data  # type: ignore[union-attr]
    assert judged.metadata["drainmark/state"].value == statuses(place, REGION)[0]["state"] == "HALTED"
    (event,) = told
    assert (event["region"], event["reason"], event["dagster_run_id"]) == (
        REGION, "the disk is full", context.dagster_run.run_id,
    )  # fmt: skip
    assert event["remedies"] == [f"drainmark resume {REGION}"]


@pytest.mark.parametrize("tags", [{REGION_TAG: REGION}, {REGION_TAG: "other/start"}, {}], ids=["retry", "other", ""])
def test_a_run_that_failed_and_halted_nothing_is_no_alert(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path, tags: dict[str, str]
) -> None:
    region = open_application(str(write_application(tmp_path))).region(REGION)
    told: list[dict[str, Any]] = []
    result = halted_sensor(place, {REGION: region}, tell=told.append)(failed_run(instance, tags))
    assert isinstance(result, dg.SkipReason)
    assert (told, passed(instance)) == ([], None)
