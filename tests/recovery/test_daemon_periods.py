"""Periods under a real daemon: a run that stays keeps 2 s, the sensor keeps 60 s; dropped ticks (V40, E2, E15, K7)."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from integration.dagster_scene import ROOT, instance_at
from recovery.dev_server import dagster_dev

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

WAIT_SECONDS = 300.0
SHORT, LONG = 2.0, 60.0

APPLICATION = f'''
"""Two regions of two starts each: a short period and a long one; a state of the short one is slow if it is told so."""
from __future__ import annotations

import threading
import time
from pathlib import Path

import drainmark as dm

HERE = Path(__file__).parent


def region(name, period, **more):
    starts = []
    for side in ("left", "right"):
        def read(scanned):
            return scanned

        read.__name__ = f"{{name}}_{{side}}"
        folder = dm.DirectoryScan(
            path=f"{{name}}/{{side}}", pattern="*.csv", format="csv", schema="v bigint", settle=0.0
        )
        starts.append(dm.consistent(trigger="periodic", period=period, **more)(dm.source(folder)(read)))

    def both(first, second):
        while (HERE / "hold").exists() and threading.current_thread().name == "bounded":
            time.sleep(0.05)
        return dm.select(first, "v").unionByName(dm.select(second, "v"))

    dm.sink(dm.functor(both, name=f"{{name}}_both", inputs=starts), dm.DeltaAppend(f"{{name}}_rows"))


region("short", {SHORT})
region("long", {LONG}, linger=0)
'''

SETTINGS = """
applications = ["paced.py"]
spark = "in-process"
spark_master = "local[1]"
linger_seconds = 300.0
sensor_interval_seconds = 1

[spark_conf]
"spark.driver.memory" = "512m"
"""


@dataclass
class Scene:
    root: Path
    instance: dg.DagsterInstance
    workplace: Workplace
    process: subprocess.Popen[bytes]
    dropped: dict[str, int] = field(default_factory=dict)

    def drop(self, name: str, side: str) -> None:
        number = self.dropped[name] = self.dropped.get(name, 0) + 1
        hidden = self.root / name / side / f".{number:04}"
        hidden.write_text(f"{number}\n")
        hidden.rename(self.root / name / side / f"{number:04}.csv")

    def history(self, name: str) -> RegionHistory:
        return self.workplace.history(f"paced/{name}_left")

    def rows(self, name: str) -> int:
        return sum(state.rows_in or 0 for state in self.history(name).states.values())

    def wait_for(self, find: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if find():
                return
            assert self.process.poll() is None, (self.root / "dagster.log").read_text()[-5000:]
            time.sleep(0.1)
        pytest.fail(f"waited in vain for {what}: {(self.root / 'dagster.log').read_text()[-5000:]}")

    def wait_read(self, name: str) -> None:
        self.wait_for(lambda: self.rows(name) == self.dropped[name], f"all rows of {name}")

    def runs(self, name: str) -> int:
        return len(self.instance.get_runs(dg.RunsFilter(job_name=f"paced__{name}_left")))

    def ends(self, name: str) -> list[float]:
        """Return the commit times of the states, in order."""
        return [state.recorded_at.timestamp() for _, state in sorted(self.history(name).states.items())]

    def told(self, *verb: str) -> Any:
        command = [
            sys.executable,
            "-m",
            "drainmark.orchestration.cli.main",
            *verb,
            "--home",
            str(self.workplace.home),
            "--json",
        ]
        done = subprocess.run(
            command, cwd=self.root, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("project")
    for name, side in itertools.product(("short", "long"), ("left", "right")):
        (root / name / side).mkdir(parents=True)
    (root / "paced.py").write_text(APPLICATION)
    (root / "drainmark.toml").write_text(SETTINGS)
    home = root / ".drainmark"
    with instance_at(home / "dagster") as instance, dagster_dev(root) as (process, _):
        workplace = Workplace(Settings(home=home, project_root=root))
        yield Scene(root=root, instance=instance, workplace=workplace, process=process)
        workplace.registry.close()


@pytest.mark.seed("V40", "E2")
def test_a_long_period_costs_a_run_a_state(scene: Scene) -> None:
    """The first state does not wait. The files of all starts in the period after it are one more state."""
    scene.drop("long", "left")
    scene.wait_read("long")
    for side in ("left", "right", "left"):
        scene.drop("long", side)
        time.sleep(1)
    assert len(scene.ends("long")) == 1
    scene.wait_read("long")
    first, second = scene.ends("long")
    assert second - first >= LONG
    assert scene.runs("long") == 2


@pytest.mark.seed("V40", "E2", "E15", "K7")
def test_a_short_period_is_kept_by_the_run_that_stays(scene: Scene) -> None:
    scene.drop("short", "left")
    scene.wait_read("short")
    for number in range(24):
        scene.drop("short", ("left", "right")[number % 2])
        time.sleep(0.25)
    scene.wait_read("short")
    ends = scene.ends("short")
    assert 3 <= len(ends) < 25, "a state is what came in a period"
    assert all(later - earlier >= SHORT for earlier, later in itertools.pairwise(ends))

    (scene.root / "hold").touch()
    scene.drop("short", "right")
    time.sleep(4 * SHORT)
    (scene.root / "hold").unlink()
    scene.wait_read("short")
    slow = len(scene.ends("short"))
    for side in ("left", "right"):
        scene.drop("short", side)
        scene.wait_read("short")
    ends = scene.ends("short")
    assert len(ends) <= slow + 2, "ticks that passed are no queue"
    assert all(later - earlier >= SHORT for earlier, later in itertools.pairwise(ends))
    history = scene.told("history", "paced/short_left")
    dropped = [state["dropped_ticks"] for state in history]
    assert dropped[slow] >= 1, "the state after the slow one says what passed meanwhile"
    (status,) = [region for region in scene.told("status") if region["region"] == "paced/short_left"]
    assert status["dropped_ticks"] == dropped[-1]
    metrics = scene.told("metrics", "paced/short_left")
    assert _total(metrics) == sum(dropped)
    assert scene.runs("short") == 1


def _total(metrics: Any) -> float:
    found = metrics[0] if isinstance(metrics, list) else metrics
    return float(found["drainmark_dropped_ticks_total"])
