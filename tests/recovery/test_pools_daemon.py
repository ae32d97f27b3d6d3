"""Two regions in a pool with one place, and run monitoring, under a real daemon with an ordinary `dagster.yaml`."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import dagster as dg
import pytest
from recovery.served_location import INSTANCE, Location, held_regions, served

from drainmark.jobs.protocol.history import Outcome
from drainmark.orchestration.verbs import interventions
from drainmark.resources.registry.lease import describe

pytestmark = [pytest.mark.recovery, pytest.mark.timeout(1800)]

LEFT, RIGHT = "two/left", "two/right"
SEEN_TICKS = 3

LOCATION = """
from pathlib import Path

from drainmark.dagster import DrainmarkTranslator, definitions
from drainmark.orchestration.dagster_jobs import run_monitor

run_monitor.SILENT_SECONDS = 3.0


class InPool(DrainmarkTranslator):
    def get_pool(self, region):
        return "one"


defs = definitions(project=Path(__file__).parent, translator=InPool())
"""


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Location]:
    root = tmp_path_factory.mktemp("pool")
    for name in ("left", "right"):
        (root / "in" / name).mkdir(parents=True)
    # The buffer lets a run begin that has to wait for its place: without it, it waits in the queue.
    pools = {"pools": {"default_limit": 1, "op_granularity_run_buffer": 1}}
    with served(
        root,
        LOCATION,
        {"two": held_regions("left", "right")},
        instance={**INSTANCE, "concurrency": pools},
        settings="linger_seconds = 3000.0\n",  # longer than this test waits
    ) as found:
        yield found


def ticks(location: Location, region: str) -> int:
    """Return how often a region's sensor has ticked."""
    (state,) = (
        state
        for state in location.instance.all_instigator_state()
        if state.instigator_name == f"{region.replace('/', '__')}__sensor"
    )
    return len(location.instance.get_ticks(state.instigator_origin_id, state.selector_id))


def wait_ticks(location: Location, region: str) -> None:
    before = ticks(location, region)
    location.wait_for(lambda: ticks(location, region) >= before + SEEN_TICKS, f"ticks of {region}")


def at_work(location: Location) -> list[tuple[float, float]]:
    """Return begin and end of the ops of all runs that have ended, by time."""
    stats = [
        step
        for run in location.instance.get_runs()
        for step in location.instance.get_run_step_stats(run.run_id)
        if step.start_time and step.end_time
    ]
    return sorted((step.start_time, step.end_time) for step in stats)


def test_regions_of_a_pool_work_one_after_the_other_and_none_waits_for_one_that_idles(location: Location) -> None:
    location.hold("left")
    location.drop("in/left/a.csv", "a,1\n")
    location.held("left")
    location.drop("in/right/a.csv", "a,2\n")

    def waits() -> bool:
        told = [
            entry.message
            for run in location.runs(RIGHT)
            for entry in location.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        ]
        return any("blocked by limit for pool" in each for each in told)

    location.wait_for(waits, "a run that waits for its place")
    wait_ticks(location, RIGHT)
    (run,) = location.runs(RIGHT)
    assert run.status is dg.DagsterRunStatus.STARTED, "it waits, and is not taken for dead"
    assert describe(location.place.registry, RIGHT, lease_seconds=6.0) is None
    assert interventions.halt(location.place, RIGHT, "a verb need not wait")["by"] != "owner"
    interventions.resume(location.place, RIGHT, "please")
    assert not location.values(RIGHT)
    location.let_go("left")
    location.wait_for(lambda: location.values(RIGHT) == [2], "the other region")
    assert location.values(LEFT) == [1]
    location.wait_for(lambda: location.runs(LEFT)[0].is_finished, "the end of the run that idled")
    told = [entry.user_message for entry in location.instance.all_logs(location.runs(LEFT)[0].run_id)]
    assert any("another run waits for its turn" in each for each in told)
    location.drop("in/left/b.csv", "b,10\n")
    location.wait_for(lambda: location.values(LEFT) == [1, 10], "the first one again")
    assert len(location.runs(RIGHT)) == 1
    spans = at_work(location)
    assert len(spans) >= 2
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans)), spans


def test_a_worker_that_is_killed_time_and_again_costs_an_attempt_each_until_the_region_halts(
    location: Location,
) -> None:
    """Its place in the pool is freed for the retry; no row comes twice."""
    before, runs = location.values(RIGHT), len(location.runs(RIGHT))
    location.hold("right")
    location.drop("in/right/b.csv", "b,100\n")
    first = location.held("right")
    os.kill(first, signal.SIGKILL)
    second = location.wait_for(lambda: (pid := location.held("right")) != first and pid, "the retry")
    os.kill(second, signal.SIGKILL)
    location.wait_for(lambda: location.history(RIGHT).halt, "the halt")
    location.wait_idle(RIGHT)
    wait_ticks(location, RIGHT)
    tried = location.runs(RIGHT)[runs:]
    killed = tried[-3:]
    assert [run.status for run in killed] == [dg.DagsterRunStatus.FAILURE] * 3
    assert killed[1].parent_run_id == killed[0].run_id
    assert location.values(RIGHT) == before
    location.let_go("right")
    interventions.resume(location.place, RIGHT, "it was killed by hand")
    location.wait_for(lambda: location.values(RIGHT) == sorted([*before, 100]), "the file")


def test_a_run_that_takes_longer_than_it_may_is_ended_by_dagster_and_costs_no_attempt(location: Location) -> None:
    before = location.values(LEFT)
    location.hold("left")
    location.drop("in/left/c.csv", "c,1000\n")
    first = location.held("left")
    run, epoch = location.runs(LEFT)[-1], location.history(LEFT).epoch
    location.instance.add_run_tags(run.run_id, {"dagster/max_runtime": "1"})
    location.wait_for(lambda: location.instance.get_run_by_id(run.run_id).is_finished, "the end of the run")
    assert location.instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.FAILURE
    location.wait_for(lambda: location.held("left") != first, "the next run, which claims the region")
    location.let_go("left")
    location.wait_for(lambda: location.values(LEFT) == sorted([*before, 1000]), "the file")
    claims = [row for row in location.place.store(LEFT).checkpoint.rows() if row.kind.value == "claim"]
    assert [row.detail["previous"] for row in claims if row.epoch == epoch + 1] == [Outcome.INTERRUPTED.value]
    assert location.history(LEFT).attempts == 0
