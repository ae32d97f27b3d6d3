"""A project of `dg` with assets, a check, a schedule and an executor of its own, and a project of Drainmark in it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from integration.dagster_scene import JOB, instance_at, write_application

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # Dagster warns of what it uses itself

COMPONENT = "drainmark.dagster.DrainmarkProjectComponent"

PYPROJECT = """
[project]
name = "shop"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
registry_modules = ["shop.components.*"]
"""

DEFINITIONS = """
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""

OWN = """
import os

import dagster as dg


@dg.asset
def prices() -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"pid": os.getpid(), "run": os.getppid()})


@dg.asset_check(asset=prices)
def has_prices() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True, metadata={"pid": os.getpid()})


nightly = dg.define_asset_job("nightly", selection=dg.AssetSelection.assets(prices))


@dg.schedule(job=nightly, cron_schedule="0 3 * * *")
def every_night():
    return dg.RunRequest(run_key="tonight")


@dg.definitions
def defs() -> dg.Definitions:
    two = dg.multiprocess_executor.configured({"max_concurrent": 2}, name="two_at_a_time")
    return dg.Definitions(
        assets=[prices], asset_checks=[has_prices], jobs=[nightly], schedules=[every_night], executor=two
    )
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the project as `create-dagster` does, its own definitions, and beside it two projects of Drainmark."""
    root = tmp_path_factory.mktemp("dg")
    package = root / "shop" / "src" / "shop"
    (package / "defs").mkdir(parents=True)
    (root / "shop" / "pyproject.toml").write_text(PYPROJECT)
    (package / "definitions.py").write_text(DEFINITIONS)
    (package / "defs" / "own.py").write_text(OWN)
    for folder in (package, package / "defs"):
        (folder / "__init__.py").touch()
    for name in ("little", "second"):
        (root / name / "inbox").mkdir(parents=True)
        write_application(root / name).rename(root / name / f"{name}.py")
        (root / name / "drainmark.toml").write_text(f'applications = ["{name}.py"]\n')
        called(root, "scaffold", "defs", COMPONENT, name, "--project", f"../../../../../{name}")
    return root


def called(root: Path, *arguments: str) -> None:
    """Call `dg` in the project's folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DRAINMARK_", "DAGSTER_"))}
    environment |= {"DAGSTER_HOME": str(root / "dagster"), "HOME": str(root), "PYTHONPATH": str(root / "shop" / "src")}
    command = [str(Path(sys.executable).parent / "dg"), *arguments]
    done = subprocess.run(command, check=False, cwd=root / "shop", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def repository(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.RepositoryDefinition]:
    monkeypatch.syspath_prepend(shop / "shop" / "src")
    yield importlib.import_module("shop.definitions").defs().get_repository_def()
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def test_what_dg_scaffolds_is_whole(shop: Path) -> None:
    scaffolded = shop / "shop" / "src" / "shop" / "defs" / "second" / "defs.yaml"
    assert "project: ../../../../../second" in scaffolded.read_text()
    called(shop, "check", "yaml")


def test_the_users_own_definitions_stay_what_they_were(repository: dg.RepositoryDefinition) -> None:
    """The regions of both projects are there beside them."""
    assert {JOB, "second__rows", "nightly"} <= set(repository.job_names)
    executors = {name: repository.get_job(name).executor_def.name for name in (JOB, "second__rows", "nightly")}
    assert executors == {JOB: "in_process", "second__rows": "in_process", "nightly": "two_at_a_time"}
    own = dg.AssetKey("prices")
    assert {key.name for key in repository.asset_graph.asset_check_keys if key.asset_key == own} == {"has_prices"}
    assert [schedule.name for schedule in repository.schedule_defs] == ["every_night"]
    with dg.build_schedule_context(repository_def=repository) as context:
        ticked = repository.get_schedule_def("every_night").evaluate_tick(context)
    assert [request.run_key for request in ticked.run_requests or ()] == ["tonight"]


def test_the_users_own_job_runs_in_processes_of_its_own_and_its_check_is_judged(shop: Path) -> None:
    with instance_at(shop / "dagster") as instance:
        called(shop, "launch", "--job", "nightly")
        made = instance.fetch_materializations(dg.AssetKey("prices"), limit=9).records
        key = dg.AssetCheckKey(dg.AssetKey("prices"), "has_prices")
        judged = instance.event_log_storage.get_asset_check_execution_history(key, limit=9)
    assert len(made) == 1
    facts = {name: value.value for name, value in made[0].asset_materialization.metadata.items()}
    assert facts["pid"] != facts["run"]
    assert [record.event.dagster_event.asset_check_evaluation_data.passed for record in judged] == [True]
    checked = judged[0].event.dagster_event.asset_check_evaluation_data.metadata["pid"].value
    assert checked not in (facts["pid"], facts["run"]), "each step has a process"
