"""Threads in Dagster's runs: a run stays for that of its start (V126, E21), and those of stages are observed (F1)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from integration.dagster_scene import JOB, REGION, definitions, drop, events, execute, instance_at
from waiting import SOON, eventually

from drainmark.orchestration.dagster_jobs.run_monitor import SENSOR_TAG
from drainmark.orchestration.inspection.status import statuses
from drainmark.orchestration.workplace.workplace import Workplace

pytestmark = pytest.mark.spark

LINGER = 0.5

APPLICATION = '''
"""Its thread submits a number and asks for a state for every file `go-N` beside it, until there is one `end`."""
from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import drainmark as dm

HERE = Path(__file__).parent


class Told(dm.StartHandler):
    def __init__(self):
        self.n = 0

    def run(self, context):
        (HERE / "running").touch()
        while not context.wait(0.02) and not (HERE / "end").exists():
            if not (HERE / f"go-{self.n}").exists():
                continue
            with context.permit(), self.lock:
                context.submit(pa.table({"n": pa.array([self.n], pa.int64())}))
                self.n += 1
            with context.permit():
                context.make_consistent()

    def checkpoint(self, checkpoint):
        checkpoint.write(self.n)

    def reset(self, checkpoint):
        self.n = checkpoint.read(int)

    def reset_to_initial_state(self):
        self.n = 0


@dm.consistent(trigger="operator-driven")
@dm.source(dm.ThreadedStart(handler=Told, schema="n bigint", seconds=600.0))
def rows(scanned):
    return scanned


dm.sink(rows, dm.DeltaAppend("little_ticks"))
'''


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with instance_at(tmp_path / "home" / "dagster") as opened:
        yield opened


def ticked(repository: dg.RepositoryDefinition, instance: dg.DagsterInstance) -> dg.SensorResult:
    sensor = next(sensor for sensor in repository.sensor_defs if sensor.name == f"{JOB}__sensor")
    with dg.build_sensor_context(instance=instance, repository_def=repository, sensor_name=sensor.name) as context:
        return sensor(context)


@pytest.mark.seed("V126", "E21", "V71")
def test_the_run_stays_while_the_thread_of_its_start_lives(
    tmp_path: Path, workplace: Workplace, instance: dg.DagsterInstance
) -> None:
    """Nothing is pending when the run begins, and nothing comes for longer than a run lingers for files."""
    workplace.settings = workplace.settings.model_copy(update={"linger_seconds": LINGER})
    path = tmp_path / "little.py"
    path.write_text(APPLICATION)
    repository = definitions(workplace, path)
    assert len(ticked(repository, instance).run_requests) == 1, "a run is wanted for the thread alone"
    ended: list[dg.ExecuteInProcessResult] = []
    run = threading.Thread(
        target=lambda: ended.append(execute(repository, instance, tags={SENSOR_TAG: f"{JOB}__sensor"})), daemon=True
    )
    run.start()
    try:
        eventually((tmp_path / "running").exists, "the thread")
        for number in (0, 1):
            run.join(3 * LINGER)
            assert run.is_alive(), "it ended under its thread"
            (tmp_path / f"go-{number}").touch()
            eventually(lambda number=number: workplace.history(REGION).committed_id == number + 1, "a state")
        eventually(lambda: statuses(workplace, REGION)[0]["state"] == "STARTED", "a region at rest")
    finally:
        (tmp_path / "end").touch()
        run.join(SOON)
    assert not run.is_alive(), "nothing lives in it any more"
    assert ended[0].success
    assert [row["n"] for row in workplace.store(REGION).table("lake/little_ticks").read(["n"]).to_pylist()] == [0, 1]


@pytest.mark.seed("V126")
def test_where_no_run_lingers_the_sensor_says_that_the_thread_has_none(
    tmp_path: Path, workplace: Workplace, instance: dg.DagsterInstance
) -> None:
    workplace.settings = workplace.settings.model_copy(update={"linger_seconds": 0.0})
    path = tmp_path / "little.py"
    path.write_text(APPLICATION)
    skipped = ticked(definitions(workplace, path), instance)
    assert not skipped.run_requests
    assert "linger_seconds" in skipped.skip_reason.skip_message


STAGED = """
import time
from pathlib import Path

import drainmark as dm

HOLD = Path(__file__).parent / "hold"


@dm.consistent(trigger="operator-driven", alignment="unaligned")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, v string", settle=0.0))
def rows(scanned):
    return scanned


@dm.functor(inputs=[dm.buffered(rows)])
def slow(rows):
    while HOLD.exists():
        time.sleep(0.05)
    return rows


dm.sink(slow, dm.DeltaAppend("little_numbers"))
"""


@pytest.mark.slow
@pytest.mark.seed("F1", "K6")
def test_what_is_in_flight_and_what_stages_finish_late_is_observed(
    workplace: Workplace, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    (tmp_path / "little.py").write_text(STAGED)
    drop(tmp_path, "0.csv", "a,1\n")
    hold = tmp_path / "hold"
    hold.touch()

    def let_go_when_committed() -> None:
        try:
            eventually(lambda: workplace.history(REGION).committed_id)
        finally:
            hold.unlink()

    watcher = threading.Thread(target=let_go_when_committed)
    watcher.start()
    result = execute(definitions(workplace, tmp_path / "little.py"), instance)
    watcher.join()
    assert result.success
    observed = [event.asset_observation_data.asset_observation for event in
                events(instance, result.run_id, dg.DagsterEventType.ASSET_OBSERVATION)]  # fmt: skip
    told = [{name: value.value for name, value in each.metadata.items()} for each in observed
            if "drainmark/through/slow" in each.metadata]  # fmt: skip
    assert {each.asset_key.path[1] for each in observed} == {"source", "checkpoints"}
    assert [(each["drainmark/through/rows"], each["drainmark/through/slow"]) for each in told] == [(1, 0), (1, 1)]
    assert [each["drainmark/inflight_batches"] > 0 for each in told] == [True, False]
