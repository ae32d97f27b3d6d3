"""Runs that fail before their claim, with a real Dagster daemon: three of them, then HALTED, and no fourth (AU1).

One `dagster dev` serves three applications, each broken in a different way, and a fourth that always works.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from integration.dagster_scene import instance_at
from recovery.dev_server import dagster_dev

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1800)]

ALLOWED = 2
WAIT_SECONDS = 600.0
TICKS_SECONDS = 15.0

APPLICATION = """
from __future__ import annotations

import sys
import time
from pathlib import Path

import drainmark as dm
from drainmark import F

sys.path.insert(0, str(Path(__file__).parent / ".installed"))
{imports}


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=2)
@dm.source(dm.DirectoryScan(path="{name}_in", pattern="*.csv", format="csv", schema="k string, v int", settle=0.0))
def rows(scanned):
    return scanned


@dm.functor
def numbers(rows):
    {first}
    return dm.select(rows, F.col("{column}").alias("v"))


dm.sink(numbers, dm.DeltaAppend("{name}_numbers"))
"""

SETTINGS = """
applications = ["misspelt.py", "missing.py", "hanging.py", "well.py"]
spark = "resident"
spark_master = "local[2]"
linger_seconds = 0.0
lease_seconds = 6.0
heartbeat_seconds = 1.0
sensor_interval_seconds = 1
retry_backoff_seconds = 0.0
analysis_timeout_seconds = 90.0
on_halt = [{command}]

[spark_conf]
"spark.driver.memory" = "512m"
"""


def write_application(root: Path, name: str, *, imports: str = "", first: str = "pass", column: str = "v") -> Path:
    path = root / f"{name}.py"
    path.write_text(APPLICATION.format(name=name, imports=imports, first=first, column=column))
    return path


@dataclass
class Served:
    """A project folder with a running `dagster dev`."""

    root: Path
    instance: dg.DagsterInstance
    workplace: Workplace
    dropped: int = 0

    def drop(self, name: str) -> None:
        self.dropped += 1
        hidden = self.root / f"{name}_in" / f".{self.dropped}.part"
        hidden.write_text("a,1\n")
        hidden.rename(hidden.with_name(f"{self.dropped}.csv"))

    def history(self, name: str) -> RegionHistory:
        return self.workplace.history(f"{name}/rows")

    def runs(self, name: str) -> list[dg.DagsterRun]:
        return list(reversed(self.instance.get_runs(dg.RunsFilter(job_name=f"{name}__rows"))))

    def last_tick(self, sensor: str) -> Any:
        for state in self.instance.all_instigator_state():
            if state.instigator_name == sensor:
                ticks = self.instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
                return ticks[0] if ticks else None
        return None

    def wait_for(self, find: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if found := find():
                return found
            time.sleep(0.5)
        notes = [(run.job_name, run.status.value, run.tags.get("drainmark/note")) for run in self.instance.get_runs()]
        pytest.fail(f"waited in vain for {what}; runs {notes}; {(self.root / 'dagster.log').read_text()[-4000:]}")

    def assert_halted_after(self, name: str, runs: int) -> dict[str, Any]:
        """Wait for the halt and some more ticks; check that no run follows; return the details of the halt."""
        self.wait_for(lambda: self.history(name).halt, f"the halt of {name}")
        self.wait_for(lambda: "HALTED" in (getattr(self.last_tick(f"{name}__rows__sensor"), "skip_reason", "") or ""),
                      f"a tick of {name} that says so")  # fmt: skip
        time.sleep(TICKS_SECONDS)
        tried = self.runs(name)[-(ALLOWED + 1) :]
        assert len(self.runs(name)) == runs, [run.tags.get("drainmark/note") for run in self.runs(name)]
        assert [run.status for run in tried] == [dg.DagsterRunStatus.FAILURE] * (ALLOWED + 1)
        history = self.history(name)
        assert history.attempts == ALLOWED
        assert f'"region": "{name}/rows"' in (self.root / "told.jsonl").read_text()
        assert invoke(["status", name, "--check", "--home", str(self.workplace.home)]) == 3
        assert history.halt is not None
        return dict(history.halt.detail)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("early")
    for name in ("misspelt", "missing", "hanging", "well"):
        (root / f"{name}_in").mkdir()
    (root / ".installed" / "vanishing").mkdir(parents=True)
    (root / ".installed" / "vanishing" / "__init__.py").write_text("")
    write_application(root, "misspelt", column="nosuch")
    write_application(root, "missing", imports="import vanishing")
    write_application(root, "hanging", first="time.sleep(3600)")
    write_application(root, "well")
    command = f"{sys.executable!r}, '-c', 'import sys; open(sys.argv[1], \"a\").write(sys.stdin.read() + chr(10))', "
    (root / "drainmark.toml").write_text(SETTINGS.format(command=command + repr(str(root / "told.jsonl"))))
    home = root / ".drainmark"
    with instance_at(home / "dagster") as instance, dagster_dev(root):
        workplace = Workplace(Settings(home=home, project_root=root, lease_seconds=6.0))
        found = Served(root=root, instance=instance, workplace=workplace)
        found.drop("well")
        found.wait_for(lambda: found.history("well").committed_id == 1, "the resident Spark, and a good run")
        yield found
        workplace.registry.close()


@pytest.mark.seed("AU1")
def test_a_misspelt_column(served: Served) -> None:
    served.drop("misspelt")
    halt = served.assert_halted_after("misspelt", ALLOWED + 1)
    assert halt["operator"] == "numbers"
    assert "nosuch" in halt["error"]["message"]
    assert f"{served.root / 'misspelt.py'}:" in halt["error"]["location"]

    write_application(served.root, "misspelt")
    served.wait_for(lambda: served.history("misspelt").committed_id == 1, "the changed code, without anybody's word")
    assert served.history("misspelt").halt is None


@pytest.mark.seed("AU1", "AU2")
def test_a_package_that_is_missing(served: Served) -> None:
    served.drop("missing")
    served.wait_for(lambda: served.history("missing").committed_id == 1, "a good run")
    served.wait_for(lambda: served.runs("missing")[-1].is_finished, "its end")
    shutil.rmtree(served.root / ".installed" / "vanishing")
    served.drop("missing")
    halt = served.assert_halted_after("missing", 1 + ALLOWED + 1)
    path = served.root / "missing.py"
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if text == "import vanishing")
    assert halt["error"]["id"] == "APPLICATION_BROKEN"
    assert halt["error"]["location"] == f"{path}:{line}"
    served.drop("well")
    served.wait_for(lambda: served.history("well").committed_id == 2, "the application that is well")

    (served.root / ".installed" / "vanishing").mkdir()
    (served.root / ".installed" / "vanishing" / "__init__.py").write_text("")
    interventions.resume(served.workplace, "missing/rows", "it is installed again")
    served.wait_for(lambda: served.history("missing").committed_id == 2, "a run with a fresh budget")


@pytest.mark.seed("AU1", "AU10")
def test_an_analysis_that_hangs(served: Served) -> None:
    served.drop("hanging")
    halt = served.assert_halted_after("hanging", ALLOWED + 1)
    path = served.root / "hanging.py"
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "sleep(3600)" in text)
    assert halt["error"]["id"] == "ANALYSIS_TIMEOUT"
    assert (halt["operator"], halt["error"]["location"]) == ("numbers", f"{path}:{line}")
