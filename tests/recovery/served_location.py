"""A code location of a user under a real `dagster dev`, with an ordinary `dagster.yaml` and Dagster's own launcher.

Its runs make their rows by hand, so that a run costs what Dagster costs.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import pytest
import yaml
from integration.dagster_scene import ROOT
from recovery.dev_server import dagster_dev

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.orchestration.inspection.desk_links import dagster_name
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import load_settings

WAIT_SECONDS = 600.0

INSTANCE: Mapping[str, Any] = {
    "telemetry": {"enabled": False},
    "run_coordinator": {
        "module": "dagster.core.run_coordinator",
        "class": "QueuedRunCoordinator",
        "config": {"dequeue_interval_seconds": 1},
    },
    "run_retries": {"enabled": True, "max_retries": 0},
    "run_monitoring": {"enabled": True, "poll_interval_seconds": 1, "free_slots_after_run_end_seconds": 1},
    "sensors": {"use_threads": True, "num_workers": 6},
}
"""An ordinary `dagster.yaml`, in which Dagster's daemon looks as often as it can."""

BY_HAND = f"""
import sys

sys.path.insert(0, {str(ROOT / "tests")!r})
from hand_runs import stay_by_hand

stay_by_hand()
"""

SETTINGS = """
spark = "in-process"
lease_seconds = 6.0
heartbeat_seconds = 1.0
sensor_interval_seconds = 1
retry_backoff_seconds = 0.0
"""

_HELD = '''
"""Regions; each stops in a group while a file `hold-NAME` lies beside them."""
from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import drainmark as dm

HERE = Path(__file__).parent


def region(name, attempts):
    def read(scanned):
        return scanned

    read.__name__ = name
    folder = dm.DirectoryScan(path=f"in/{name}", pattern="*.csv", format="csv", schema="k string, v string", settle=0.0)
    start = dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=attempts)(dm.source(folder)(read))

    def numbers(rows) -> "k string, v bigint":
        while (HERE / f"hold-{name}").exists() and threading.current_thread().name == "bounded":
            (HERE / f"held-{name}").write_text(str(os.getpid()))
            time.sleep(0.05)
        return [{"k": row["k"], "v": int(row["v"])} for row in rows]

    dm.sink(dm.functor(numbers, name=f"{name}_numbers", inputs=[start]), dm.DeltaAppend(f"{name}_numbers"))


'''


def held_regions(*names: str, attempts: int = 1) -> str:
    """Return an application with regions of these names, which a test can hold in the middle of a group."""
    return _HELD + "".join(f"region({name!r}, {attempts})\n" for name in names)


Found = TypeVar("Found")


@dataclass
class Location:
    """A project folder whose location is served."""

    root: Path
    instance: dg.DagsterInstance
    place: Workplace
    process: subprocess.Popen[bytes]
    port: int

    def history(self, region: str) -> RegionHistory:
        return self.place.history(region)

    def drop(self, name: str, text: str) -> Path:
        """Put a file below the project's folder, in one step."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}")
        hidden.write_text(text)
        return hidden.rename(path)

    def runs(self, region: str) -> list[dg.DagsterRun]:
        """Return the runs of a region's own job, oldest first."""
        return list(reversed(self.instance.get_runs(dg.RunsFilter(job_name=dagster_name(region)))))

    def rows(self, region: str, table: str) -> list[dict[str, Any]]:
        found = self.place.store(region).table(f"lake/{table}")
        return list(found.read().to_pylist()) if found.exists() else []

    def values(self, region: str) -> list[int]:
        """Return the values in the table of one of the `held_regions`, sorted."""
        return sorted(row["v"] for row in self.rows(region, f"{region.partition('/')[2]}_numbers"))

    def hold(self, name: str) -> None:
        (self.root / f"held-{name}").unlink(missing_ok=True)
        (self.root / f"hold-{name}").touch()

    def held(self, name: str) -> int:
        """Wait for a run that is held in the middle of a group; return the pid of its worker."""
        path = self.root / f"held-{name}"
        pid = self.wait_for(lambda: path.exists() and path.read_text(), f"a run of {name} in a group")
        path.unlink()
        return int(pid)

    def let_go(self, name: str) -> None:
        (self.root / f"hold-{name}").unlink()

    def graphql(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/graphql", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
            return json.load(answer)["data"]

    def wait_for(self, find: Callable[[], Found], what: str) -> Found:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if found := find():
                return found
            assert self.process.poll() is None, self._log()
            time.sleep(0.2)
        runs = [(run.job_name, run.status.value, run.tags.get("drainmark/note")) for run in self.instance.get_runs()]
        pytest.fail(f"waited in vain for {what}; {runs}; {self._log()}")

    def wait_idle(self, *regions: str) -> None:
        self.wait_for(
            lambda: all(run.is_finished for region in regions for run in self.runs(region)), f"the end of {regions}"
        )

    def _log(self) -> str:
        return (self.root / "dagster.log").read_text()[-5000:]


@contextmanager
def served(
    root: Path,
    location: str,
    applications: Mapping[str, str],
    *,
    instance: Mapping[str, Any] = INSTANCE,
    settings: str = "",
    has_pages: bool = False,
    path: Sequence[Path] = (),
) -> Iterator[Location]:
    """Serve a project.

    Args:
        location: the text of `location.py`.
        applications: text by name of the module.
        instance: what is in `dagster.yaml`.
        settings: more of `drainmark.toml`.
        has_pages: whether there is a web server besides the daemon.
        path: more folders of Python modules.
    """
    for name, text in applications.items():
        (root / f"{name}.py").write_text(text)
    named = ", ".join(f'"{name}.py"' for name in applications)
    (root / "drainmark.toml").write_text(f"applications = [{named}]\n{settings}{SETTINGS}")
    (root / "location.py").write_text(BY_HAND + location)
    home = root / ".drainmark" / "dagster"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text(yaml.safe_dump(dict(instance)))
    with (
        dg.DagsterInstance.from_config(str(home)) as opened,
        dagster_dev(root, has_pages=has_pages, location=("-f", str(root / "location.py")), path=path) as found,
    ):
        place = Workplace(load_settings(project=root))
        yield Location(root, opened, place, *found)
        place.registry.close()
