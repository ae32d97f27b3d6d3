"""Periods in Dagster: a lingering run keeps short ones, the sensor keeps long ones (V40, E2). Real instances."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from integration.dagster_scene import JOB, REGION, definitions, drop, execute, instance_at, write_application
from integration.test_lingering import FOR_EVER, Running, committed, running
from waiting import eventually

from drainmark.jobs.protocol.history import Outcome
from drainmark.orchestration.dagster_jobs.sensors import LONG_SECONDS
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace

__all__ = ["running"]

pytestmark = pytest.mark.spark


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with instance_at(tmp_path / "home" / "dagster") as opened:
        yield opened


def periodic(folder: Path, seconds: float) -> Path:
    path = write_application(folder)
    text = path.read_text().replace('trigger="operator-driven"', f'trigger="periodic", period={seconds}')
    path.write_text(text)
    return path


def interval(place: Workplace, path: Path) -> int | None:
    repository = definitions(place, path)
    (sensor,) = (sensor for sensor in repository.sensor_defs if sensor.name == f"{JOB}__sensor")
    return sensor.minimum_interval_seconds


def test_a_long_period_is_that_of_the_sensor(workplace: Workplace, tmp_path: Path) -> None:
    assert interval(workplace, periodic(tmp_path, 2 * LONG_SECONDS)) == 2 * LONG_SECONDS
    assert interval(workplace, periodic(tmp_path, 2.0)) == workplace.settings.sensor_interval_seconds


@pytest.mark.seed("V70")
def test_a_run_that_stays_ticks_by_itself(
    workplace: Workplace, tmp_path: Path, running: Callable[[Path], Running]
) -> None:
    """One run makes a state for each period from the files that came since, and it ends for a rewind."""
    workplace.settings = workplace.settings.model_copy(update={"linger_seconds": FOR_EVER})
    drop(tmp_path, "0.csv", "a,1\n")
    run = running(periodic(tmp_path, 0.5))
    for number in (1, 2):
        eventually(lambda number=number: committed(workplace) == number, f"id {number}")
        for part in ("x", "y"):
            drop(tmp_path, f"{number}{part}.csv", "a,1\n")
    eventually(lambda: sum(state.rows_in or 0 for state in workplace.history(REGION).states.values()) == 5, "all rows")
    done = interventions.reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=1)))
    assert done["requeued"] >= 1
    assert run.end().success
    history = workplace.history(REGION)
    assert (history.last_outcome, history.attempts) == (Outcome.CLEAN, 0)
    states = [state.recorded_at.timestamp() for _, state in sorted(history.states.items())]
    assert all(later - earlier >= 0.5 for earlier, later in itertools.pairwise(states))


@pytest.mark.slow
def test_a_run_that_somebody_starts_takes_a_slice_at_once(
    workplace: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """The user who starts a run does not wait for a period; files that come later are another slice."""
    repository = definitions(workplace, periodic(tmp_path, 600.0))
    for number in (1, 2):
        drop(tmp_path, f"{number}.csv", "a,1\n")
        assert execute(repository, instance).success
        assert committed(workplace) == number
