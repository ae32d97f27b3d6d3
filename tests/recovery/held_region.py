"""A region that a test can hold in the middle of a group, served by a real `dagster dev`."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from integration.dagster_scene import instance_at
from recovery.dev_server import dagster_dev

from drainmark.jobs.protocol.history import Outcome, RegionHistory
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.registry.lease import process_started
from drainmark.resources.settings import Settings

REGION = "held/rows"
JOB = "held__rows"
WAIT_SECONDS = 240.0

APPLICATION = '''
"""Sums values; stops in the middle of a group while a file `hold` lies beside the inbox."""
from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import drainmark as dm
from drainmark import F

HERE = Path(__file__).parent


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=1)
@dm.source(dm.DirectoryScan(path="landing", pattern="*.csv", format="csv", schema="k string, v string", settle=0.0))
def rows(scanned):
    return scanned


@dm.functor
def numbers(rows):
    if threading.current_thread().name == "bounded":  # in a group, after the claim
        held = HERE / "held"
        while (HERE / "hold").exists():
            held.write_text(str(os.getpid()))
            time.sleep(0.05)
        held.unlink(missing_ok=True)
    return dm.select(rows, "k", F.col("v").cast("bigint").alias("v"))


totals = dm.aggregate(numbers, keys=["k"], values={"total": dm.sum("v")}, name="totals")
dm.sink(numbers, dm.DeltaAppend("held_numbers"))
dm.sink(totals, dm.DeltaUpsert("held_totals", keys=["k"]))
'''

SETTINGS = """
applications = ["held.py"]
spark = "in-process"
spark_master = "local[1]"
linger_seconds = 0.0
lease_seconds = 6.0
heartbeat_seconds = 1.0
sensor_interval_seconds = 1
retry_backoff_seconds = 0.0

[spark_conf]
"spark.driver.memory" = "512m"
"""


@dataclass
class Deployment:
    """A project folder with a running `dagster dev`, and the questions of a test about it."""

    root: Path
    instance: dg.DagsterInstance
    workplace: Workplace
    process: subprocess.Popen[bytes]
    port: int
    dropped: int = 0

    def history(self) -> RegionHistory:
        return self.workplace.history(REGION)

    def drop(self, *lines: str) -> list[Path]:
        """Put files of one line each into the landing folder."""
        paths = []
        for line in lines:
            self.dropped += 1
            hidden = self.root / "landing" / f".{self.dropped:04}.part"
            hidden.write_text(f"{line}\n")
            paths.append(hidden.rename(self.root / "landing" / f"{self.dropped:04}.csv"))
        return paths

    def hold(self) -> None:
        (self.root / "hold").touch()

    def let_go(self) -> None:
        (self.root / "hold").unlink()
        (self.root / "held").unlink(missing_ok=True)

    def held_process(self) -> int:
        """Wait for a run worker that is held in the middle of a group; return its pid."""

        def held() -> int | None:
            try:
                pid = int((self.root / "held").read_text() or 0)
            except FileNotFoundError:
                return None
            return pid if pid and process_started(pid) else None

        return wait_for(held, "a run in the middle of a group", self)

    def runs(self) -> list[dg.DagsterRun]:
        """Return the region's runs, oldest first."""
        return list(reversed(self.instance.get_runs(dg.RunsFilter(job_name=JOB))))

    def wait_committed(self, total: int) -> None:
        """Wait for a total of both sinks, with all groups published and no run active."""

        def done() -> bool:
            history = self.history()
            idle = all(run.is_finished and not run.is_complete_and_waiting_to_retry for run in self.runs())
            return idle and not history.unpublished and self.total() == total

        wait_for(done, f"a total of {total}", self)
        if total:
            assert sum(self.totals().values()) == total, "both sinks agree"

    def total(self) -> int:
        """Return the sum of the values in the append sink."""
        table = self.workplace.store(REGION).table("lake/held_numbers")
        if not table.exists():
            return 0
        return sum(row["v"] for row in table.read().to_pylist())

    def totals(self) -> dict[str, int]:
        table = self.workplace.store(REGION).table("lake/held_totals")
        return {row["k"]: row["total"] for row in table.read().to_pylist()}

    def graphql(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own server
            return json.load(answer)

    def skip_reason(self) -> str:
        """Return the skip reason of the last tick of the sensor."""
        for state in self.instance.all_instigator_state():
            if state.instigator_name == f"{JOB}__sensor":
                ticks = self.instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
                return (ticks[0].skip_reason or "") if ticks else ""
        return ""


def wait_for(find: Callable[[], Any], what: str, deployment: Deployment) -> Any:
    """Return the first true result of `find`; fail after a while."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if found := find():
            return found
        assert deployment.process.poll() is None, (deployment.root / "dagster.log").read_text()[-5000:]
        time.sleep(0.2)
    runs = [(run.run_id, run.status.value, run.tags.get("drainmark/note")) for run in deployment.runs()]
    log = (deployment.root / "dagster.log").read_text()[-5000:]
    pytest.fail(f"waited in vain for {what}; runs {runs}; sensor: {deployment.skip_reason()}; {log}")


def terminate(deployment: Deployment, total: int) -> None:
    """Terminate the run that is held; it is cancelled and counts as no attempt, and the next one commits a total."""
    run = deployment.runs()[-1]
    epoch = deployment.history().epoch
    answer = deployment.graphql(
        "mutation Terminate($id: String!) { terminateRun(runId: $id) { __typename } }", id=run.run_id
    )
    assert answer["data"]["terminateRun"]["__typename"] == "TerminateRunSuccess"
    wait_for(lambda: deployment.instance.get_run_by_id(run.run_id).is_finished, "the end of the run", deployment)
    assert deployment.instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.CANCELED
    deployment.let_go()
    deployment.wait_committed(total)
    rows = deployment.workplace.store(REGION).checkpoint.rows()
    claims = [row for row in rows if row.kind.value == "claim" and row.epoch == epoch + 1]
    assert claims[0].detail["previous"] == Outcome.INTERRUPTED.value


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def deployed(root: Path, *, default_launcher: bool = False, has_pages: bool = True) -> Iterator[Deployment]:
    """Serve the region from a folder, with `dagster dev`.

    Args:
        default_launcher: Dagster's own launcher starts runs, in the code server.
        has_pages: see `dagster_dev`.
    """
    (root / "landing").mkdir()
    (root / "held.py").write_text(APPLICATION)
    (root / "drainmark.toml").write_text(SETTINGS)
    home = root / ".drainmark"
    with instance_at(home / "dagster") as instance:
        if default_launcher:
            configuration = home / "dagster" / "dagster.yaml"
            text = configuration.read_text()
            assert "WarmRunLauncher" in text
            ours = "  module: drainmark.orchestration.dagster_jobs.run_launcher\n  class: WarmRunLauncher"
            configuration.write_text(text.replace(ours, "  module: dagster\n  class: DefaultRunLauncher"))
        with dagster_dev(root, has_pages=has_pages) as (process, port):
            workplace = Workplace(Settings(home=home, project_root=root, lease_seconds=6.0))
            yield Deployment(root=root, instance=instance, workplace=workplace, process=process, port=port)
            workplace.registry.close()
