"""A region's op in a fresh process, as executors for containers run it: from the arguments that they put into one.

`docker` and `k8s` are Dagster's own executors, which ask `container_engine`; `make executors-check` installs them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
import yaml
from container_engine import KUBECONFIG, Engine, container_engine
from harness import rows
from integration.dagster_scene import ROOT, drop, instance_at
from waiting import eventually

from drainmark.jobs.protocol.history import Outcome
from drainmark.orchestration.dagster_assets.metadata import IDS_TAG, PROCESS_TAG, REGION_TAG
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import load_settings

REGION, STEP = "little/rows", "little__rows__run"
TABLES = ("checkpoints/rows", "state/totals", "little_numbers", "little_totals", "little_quarantine")
INSTALLED = ROOT / "build" / "executors"

APPLICATION = '''
"""Says in which process it works; stops in a group while a file `hold` lies beside it."""
from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import drainmark as dm

HERE = Path(__file__).parent


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=1)
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, v string", settle=0.0))
def rows(scanned):
    return scanned


@dm.functor
def numbers(rows) -> "k string, v bigint":
    while (HERE / "hold").exists() and threading.current_thread().name == "bounded":
        (HERE / "held").write_text(str(os.getpid()))
        time.sleep(0.05)
    seen = {"pid": os.getpid(), "zone": time.tzname, "folder": os.getcwd()}
    (HERE / "seen.json").write_text(json.dumps(seen))
    if isinstance(rows, list):
        return [{"k": row["k"], "v": int(row["v"])} for row in rows]
    return dm.select(rows, "k", rows["v"].cast("bigint").alias("v"))


totals = dm.aggregate(numbers, keys=["k"], values={"total": dm.sum("v")}, name="totals")
dm.sink(numbers, dm.DeltaAppend("little_numbers"))
dm.sink(totals, dm.DeltaUpsert("little_totals", keys=["k"]))
'''

LOCATION = """
import os
from pathlib import Path

import dagster as dg

from drainmark.dagster import definitions
from drainmark.orchestration.dagster_jobs.run_monitor import RegionRuns
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.settings import load_settings

HERE = Path(__file__).parent


@dg.asset(deps=[["little", "little_totals"]])
def report(context):
    # As the region's sensor does at every tick, while the process of the region's op is gone.
    region = open_application(str(HERE / "little.py")).region()
    runs = RegionRuns(instance=context.instance, workplace=Workplace(load_settings(project=HERE)), region=region)
    return dg.MaterializeResult(metadata={"reaped": len(runs.reap()), "pid": os.getpid()})


defs = dg.Definitions.merge(definitions(project=HERE), dg.Definitions(assets=[report], executor=EXECUTOR))
"""

BY_HAND = """
from hand_runs import stay_by_hand

stay_by_hand()
"""

EXECUTORS = {
    "multiprocess": "from dagster import multiprocess_executor as EXECUTOR\n",
    "processes": """
import subprocess
import dagster as dg
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.step_delegating import CheckStepHealthResult, StepDelegatingExecutor, StepHandler


class Processes(StepHandler):
    name = "Processes"

    def __init__(self):
        super().__init__()
        self.started = {}

    def launch_step(self, context):
        arguments = context.execute_step_args
        self.started[tuple(arguments.step_keys_to_execute)] = subprocess.Popen(arguments.get_command_args(), cwd="/")
        return iter(())

    def check_step_health(self, context):
        code = self.started[tuple(context.execute_step_args.step_keys_to_execute)].poll()
        return CheckStepHealthResult.unhealthy(f"exit code {code}") if code else CheckStepHealthResult.healthy()

    def terminate_step(self, context):
        return iter(())


@dg.executor(name="processes", requirements=dg.multiple_process_executor_requirements())
def EXECUTOR(context):
    return StepDelegatingExecutor(
        Processes(), retries=RetryMode.DISABLED, sleep_seconds=0.1, check_step_health_interval_seconds=1
    )
""",
    "docker": """
from dagster_docker import docker_executor

EXECUTOR = docker_executor.configured({"image": "drainmark"})
""",
    "k8s": """
from dagster_k8s import k8s_job_executor

EXECUTOR = k8s_job_executor.configured({"job_image": "drainmark", "job_namespace": "here"})
""",
}


def has(executor: str) -> bool:
    module = {"docker": "dagster_docker", "k8s": "dagster_k8s"}.get(executor)
    return module is None or importlib.util.find_spec(module) is not None or (INSTALLED / module).is_dir()


def each_executor(**marked: str) -> list[object]:
    """Return the executors as parameters; those that are named get a further mark."""
    absent = "make executors-check installs Dagster's executors for containers"
    return [
        pytest.param(
            name,
            marks=[
                pytest.mark.skipif(not has(name), reason=absent),
                *([getattr(pytest.mark, marked[name])] if name in marked else []),
            ],
        )
        for name in EXECUTORS
    ]


@dataclass
class Shop:
    """A project and a code location with an executor."""

    root: Path
    instance: dg.DagsterInstance
    engine: Engine
    place: Workplace

    def materialize(self) -> subprocess.Popen[str]:
        """Start the run of all tables and of the asset behind them, in a process with a zone of its own."""
        keys = ",".join([*(f"little/{name}" for name in TABLES), "report"])
        command = [Path(sys.executable).parent / "dagster", "asset", "materialize", "-f", self.root / "location.py"]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DRAINMARK_", "DAGSTER_"))},
            **self.engine.variables,
            "DAGSTER_HOME": str(self.root / ".drainmark" / "dagster"),
            "DOCKER_HOST": self.engine.url.replace("http", "tcp"),
        }
        return subprocess.Popen(
            [*command, "--select", keys], cwd=self.root, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self) -> dg.DagsterRun:
        return self.instance.get_runs(limit=1)[0]

    def said(self, text: str) -> str:
        return f"{text[-5000:]}\n{self.engine.output()}"


@contextmanager
def shop(root: Path, executor: str, *, by_hand: bool = True) -> Iterator[Shop]:
    (root / "inbox").mkdir(parents=True)
    (root / "little.py").write_text(APPLICATION)
    settings = (
        'applications = ["little.py"]\nlease_seconds = 6.0\nheartbeat_seconds = 1.0\nretry_backoff_seconds = 0.0\n'
    )
    (root / "drainmark.toml").write_text(f'{settings}spark = "in-process"\nspark_master = "local[1]"\n')
    (root / "location.py").write_text((BY_HAND if by_hand else "") + EXECUTORS[executor] + LOCATION)
    home = root / ".drainmark" / "dagster"
    path = (ROOT, ROOT / "tests", *([INSTALLED] if INSTALLED.is_dir() else []))
    with container_engine(root, *path, TZ="America/New_York") as engine, instance_at(home) as instance:
        if executor == "k8s":
            (root / "kubeconfig").write_text(KUBECONFIG.format(url=engine.url))
            launcher = {
                "module": "dagster_k8s",
                "class": "K8sRunLauncher",
                "config": {
                    "dagster_home": str(home),
                    "instance_config_map": "none",
                    "job_image": "drainmark",
                    "kubeconfig_file": str(root / "kubeconfig"),
                    "load_incluster_config": False,
                    "service_account_name": "none",
                },
            }
            (home / "dagster.yaml").write_text(yaml.safe_dump({"run_launcher": launcher}))
        place = Workplace(load_settings(project=root))
        yield Shop(root, instance, engine, place)
        place.registry.close()


def made_by(found: Shop, run: dg.DagsterRun) -> dict[str, int]:
    """Return how many events of a run make each table."""
    events = found.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    keys = [entry.dagster_event.asset_key.to_user_string() for entry in events if entry.dagster_event]
    return {key: keys.count(key) for key in keys}


def materialized(found: Shop, executor: str) -> None:
    """Check a run of two files by the processes that an executor started."""
    for name in "ab":
        drop(found.root, f"{name}.csv", f"{name},1\nall,2\n")
    started = found.materialize()
    text, _ = started.communicate()
    assert started.returncode == 0, found.said(text)
    run = found.run()
    assert run.status is dg.DagsterRunStatus.SUCCESS
    assert {row["k"]: row["total"] for row in rows(found.place, REGION, "little_totals")} == {"a": 1, "b": 1, "all": 4}
    assert len(rows(found.place, REGION, "little_numbers")) == 4
    assert (run.tags[REGION_TAG], run.tags[IDS_TAG]) == (REGION, "1..2")
    assert set(made_by(found, run)) == {*(f"little/{name}" for name in TABLES), "report"}
    workers = found.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED)
    assert {entry.step_key for entry in workers} == {STEP, "little__rows__checks", "report"}
    seen = json.loads((found.root / "seen.json").read_text())
    assert seen["zone"] == ["UTC", "UTC"], "whatever the zone of the container"
    assert seen["pid"] != started.pid
    told = found.instance.fetch_materializations(dg.AssetKey("report"), limit=1).records[0].asset_materialization
    assert told is not None
    assert told.metadata["reaped"].value == 0, "the op has ended, and its run goes on"
    assert told.metadata["pid"].value != seen["pid"]
    tag = run.tags[PROCESS_TAG].split(" ")
    assert tag[2:3] == ([str(started.pid)] if executor == "multiprocess" else [])
    history = found.place.history(REGION)
    assert (history.last_outcome, history.attempts) == (Outcome.CLEAN, 0)
    if executor in ("docker", "k8s"):
        assert ["execute_step" in container.command for container in found.engine.made] == [True] * len(workers)
        assert seen["folder"].startswith(str(found.engine.folder))


@pytest.mark.parametrize("executor", each_executor(multiprocess="slow"))
def test_the_op_of_a_region_runs_in_a_process_made_for_it(executor: str, tmp_path: Path) -> None:
    with shop(tmp_path / "shop", executor) as found:
        materialized(found, executor)


@pytest.mark.slow
@pytest.mark.parametrize("executor", each_executor())
def test_spark_starts_in_the_process_of_the_op(executor: str, tmp_path: Path) -> None:
    with shop(tmp_path / "shop", executor, by_hand=False) as found:
        materialized(found, executor)


def killed(found: Shop) -> str:
    """Kill the process of an op in the middle of a group; return what the run said."""
    (found.root / "hold").touch()
    started = found.materialize()
    held = found.root / "held"
    pid = int(eventually(lambda: held.exists() and held.read_text(), lambda: found.said("")))
    held.unlink()
    os.kill(pid, signal.SIGKILL)
    text, _ = started.communicate()
    (found.root / "hold").unlink()
    held.unlink(missing_ok=True)
    assert started.returncode, found.said(text)
    return text


def unhealthy(found: Shop, run: dg.DagsterRun) -> bool:
    events = found.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    return [entry.step_key for entry in events] == [STEP]


@pytest.mark.slow
@pytest.mark.parametrize("executor", each_executor())
def test_a_killed_process_of_the_op_fails_its_run_and_the_next_one_recovers(executor: str, tmp_path: Path) -> None:
    """The executor notices it, as it notices a container that is gone; no row comes twice."""
    with shop(tmp_path / "shop", executor) as found:
        drop(found.root, "a.csv", "a,1\n")
        text = killed(found)
        run = found.run()
        assert run.status is dg.DagsterRunStatus.FAILURE, found.said(text)
        assert unhealthy(found, run)
        assert found.place.history(REGION).committed_id == 0
        again = found.materialize()
        text, _ = again.communicate()
        assert again.returncode == 0, found.said(text)
        assert [row["v"] for row in rows(found.place, REGION, "little_numbers")] == [1]
        history = found.place.history(REGION)
        assert (len(history.states), history.last_outcome) == (1, Outcome.CLEAN)
        assert history.committed_id == 2, "the attempt that was killed had taken an id"
