"""Ten regions in a code location of somebody else, under a real daemon with nothing in its `dagster.yaml`.

The user's own sensor keeps its pace beside theirs, and an asset behind a table has seen the last file of each burst.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from recovery.dev_server import dagster_dev

pytestmark = [pytest.mark.recovery, pytest.mark.spark, pytest.mark.timeout(900)]

REGIONS = 10
PACE_SECONDS = 5
LONGEST_SECONDS = 3 * PACE_SECONDS
"""Between two ticks of the user's sensor: while a sensor of ours waits for files, they are 50 s apart and more."""

WATCHED_SECONDS = 60.0
WAIT_SECONDS = 300.0

APPLICATION = "import drainmark as dm\n"
REGION = """

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="in/{name}", pattern="*.csv", format="csv", schema="k string, v bigint", settle=0.0))
def {name}(scanned):
    return scanned


{name}_sums = dm.aggregate({name}, keys=["k"], values={{"total": dm.sum("v")}}, name="{name}_sums")
dm.sink({name}_sums, dm.DeltaUpsert("{name}_totals", keys=["k"]))
"""

LOCATION = """
from __future__ import annotations

import json
import time
from pathlib import Path

import dagster as dg
from deltalake import DeltaTable

from drainmark.dagster import definitions, eager

HERE = Path(__file__).parent


def note(file, value):
    with (HERE / file).open("a") as notes:
        notes.write(json.dumps(value) + "\\n")


@dg.job
def mine(): ...


@dg.sensor(job=mine, minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING)
def of_the_user(context):
    note("ticks.jsonl", time.time())
    return dg.SkipReason("nothing to do")


@dg.asset(deps=[["many", "r0_totals"]], automation_condition=eager())
def report():
    table = DeltaTable(HERE / ".drainmark" / "lake" / "r0_totals")
    note("report.jsonl", sum(table.to_pyarrow_table()["total"].to_pylist()))


follows = dg.AutomationConditionSensorDefinition(
    "follows", target=[report], minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING
)

defs = dg.Definitions.merge(
    definitions(project=HERE), dg.Definitions(assets=[report], jobs=[mine], sensors=[of_the_user, follows])
)
"""

SETTINGS = """
applications = ["many.py"]
spark = "in-process"
spark_master = "local[1]"
sensor_interval_seconds = 1

[spark_conf]
"spark.driver.memory" = "512m"
"""


@dataclass
class Neighbours:
    """The folder of a project and a location, with a daemon that serves both."""

    root: Path
    instance: dg.DagsterInstance

    def notes(self, file: str) -> list[Any]:
        path = self.root / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def drop(self, name: str, value: int) -> None:
        inbox = self.root / "in" / "r0"
        hidden = inbox / f".{name}"
        hidden.write_text(f"a,{value}\n")
        hidden.rename(inbox / name)

    def wait_for(self, find: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not find():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain for {what}: {(self.root / 'dagster.log').read_text()[-5000:]}")
            time.sleep(0.2)


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neighbours]:
    root = tmp_path_factory.mktemp("location")
    for number in range(REGIONS):
        (root / "in" / f"r{number}").mkdir(parents=True)
    regions = (REGION.format(name=f"r{number}") for number in range(REGIONS))
    (root / "many.py").write_text(APPLICATION + "".join(regions))
    (root / "location.py").write_text(LOCATION)
    (root / "drainmark.toml").write_text(SETTINGS)
    home = root / ".drainmark" / "dagster"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text("")
    with (
        dg.DagsterInstance.from_config(str(home)) as instance,
        dagster_dev(root, has_pages=False, location=("-f", "location.py")),
    ):
        found = Neighbours(root, instance)
        found.wait_for(lambda: found.notes("ticks.jsonl"), "the first tick of the user's sensor")
        yield found


def test_ten_idle_regions_leave_a_users_sensor_its_pace(neighbours: Neighbours) -> None:
    begin = time.time()
    time.sleep(WATCHED_SECONDS)
    ticks = [begin, *(tick for tick in neighbours.notes("ticks.jsonl") if tick > begin), time.time()]
    longest = max(later - earlier for earlier, later in itertools.pairwise(ticks))
    assert longest < LONGEST_SECONDS, [round(tick - begin, 1) for tick in ticks]
    sensors = {
        state.instigator_name for state in neighbours.instance.all_instigator_state() if ticked(neighbours, state)
    }
    assert len([name for name in sensors if name.startswith("many__r")]) == REGIONS, "all of them ticked as well"


def ticked(neighbours: Neighbours, state: Any) -> bool:
    return bool(neighbours.instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1))


@pytest.mark.parametrize("pause", [0.0, 0.7, 3.0])
def test_an_asset_behind_a_table_has_seen_the_last_file_of_a_burst(neighbours: Neighbours, pause: float) -> None:
    """The pauses put the last group before, within and behind the tick that asks for the asset."""
    before = sum(neighbours.notes("report.jsonl")[-1:])
    for number in range(6):
        neighbours.drop(f"{pause}_{number}.csv", 1)
        time.sleep(pause)
    neighbours.wait_for(lambda: neighbours.notes("report.jsonl")[-1:] == [before + 6], "the report of the last file")
