"""Imports of modules have no side effects: no JVM, file, socket or look at the environment; no early heavy library."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from architecture.tree import PURE, ROOT, product_files, product_modules, relative

IMPORTING = Path(__file__).with_name("importing.py")
CODE_LOCATION = "drainmark.orchestration.definitions"
"""Dagster imports this module to get the definitions: its only purpose is to assemble them, with the settings."""

HEAVY_FREE = (
    "drainmark.api", *PURE, "drainmark.jobs.errors", "drainmark.jobs.failpoints",
    "drainmark.jobs.operators", "drainmark.jobs.apps", "drainmark.jobs.state", "drainmark.jobs.runtime",
    "drainmark.jobs.streams", "drainmark.orchestration.cli",
)  # fmt: skip
"""Packages that declare, compile, decide or explain: their modules load without Spark, Dagster and boto3."""

UNWANTED = {"pyspark", "py4j", "dagster", "boto3"}


def import_apart(*modules: str) -> dict[str, Any]:
    found = subprocess.run(
        [sys.executable, str(IMPORTING), *modules], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    parsed: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return parsed


def below(packages: tuple[str, ...]) -> list[str]:
    return [name for name in product_modules() if any(name == top or name.startswith(f"{top}.") for top in packages)]


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    """Return the facts of a process that imports all modules except the code location, in the order of their layers."""
    return import_apart(*(name for name in product_modules() if name != CODE_LOCATION))


def test_importing_any_module_does_nothing_besides(imported: dict[str, Any]) -> None:
    assert {name: what["acts"] for name, what in imported["modules"].items() if what["acts"]} == {}


def test_importing_all_modules_starts_no_thread_and_no_jvm(imported: dict[str, Any]) -> None:
    assert imported["threads"] == []
    assert not imported["spark_started"]


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_loads_no_library_that_touches_the_world(package: str) -> None:
    modules = import_apart(*below((package,)))["modules"]
    assert modules
    assert {name: what["loaded"] for name, what in modules.items() if what["loaded"]} == {}


def test_what_declares_decides_and_explains_loads_neither_spark_nor_dagster() -> None:
    modules = import_apart(*below(HEAVY_FREE))["modules"]
    early = {name: sorted(UNWANTED.intersection(what["loaded"])) for name, what in modules.items()}
    assert {name: found for name, found in early.items() if found} == {}


def test_adapters_load_no_dagster() -> None:
    modules = import_apart(*below(("drainmark.resources",)))["modules"]
    assert {name for name, what in modules.items() if "dagster" in what["loaded"]} == set()


def private_names_of_dagster(path: Path) -> list[str]:
    """Return the private modules of Dagster that a file imports, also those only for type checkers."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    named += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return [name for name in named if name.startswith("dagster._")]


def test_one_module_alone_knows_dagster_from_inside() -> None:
    """If a private name is missing, Dagster's launcher takes over: `tests/unit/test_run_launcher.py`."""
    knowing = {relative(path) for path in product_files() if private_names_of_dagster(path)}
    assert knowing == {"orchestration/dagster_jobs/dagster_internals.py"}


LOCATION = """
import json, sys
sys.path.insert(0, ".")
from drainmark.orchestration.definitions import defs
definitions = defs()
definitions.get_repository_def().get_all_jobs()
print(json.dumps(sorted(name for name in sys.modules if "." not in name)))
"""
LATER = {"pyspark", "py4j", "deltalake", "boto3", "botocore", "alembic", "sqlmodel", "pandas", "numpy", "psycopg"}
"""Libraries that a code location loads only when a tick or a run needs them: it restarts at each change of the code."""


def test_the_code_location_loads_no_library_that_only_runs_need(tmp_path: Path) -> None:
    applications = '["enron_ds", "log_watch", "word_count"]'
    environment = {
        **os.environ, "DRAINMARK_HOME": str(tmp_path / "home"), "DRAINMARK_APPLICATIONS": applications,
    }  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-c", LOCATION], cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )
    assert found.returncode == 0, found.stderr
    assert LATER.intersection(json.loads(found.stdout.splitlines()[-1])) == set()
