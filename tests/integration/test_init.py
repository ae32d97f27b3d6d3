"""The project that `init` writes: its tests pass, and they fail if its application is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

BROKEN = {
    "counts wrong": ('{"count": dm.count()}', '{"count": dm.max("source_file")}'),
    "counts twice": ("    return scanned ", "    return scanned.unionByName(scanned) "),
    "differs from run to run": (
        'dm.select(lines, F.explode(F.regexp_extract_all(F.lower("value"), F.lit("[a-z]+"), 0)).alias("word"))',
        'dm.select(lines, F.expr("uuid()").alias("word"))',
    ),
}


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DRAINMARK_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("init")
    made = run(folder, "drainmark.orchestration.cli.main", "init", "project")
    assert made.returncode == 0, made.stderr
    return folder / "project"


def test_its_tests_pass(project: Path) -> None:
    found = run(project, "pytest", "-q", "-p", "no:cacheprovider")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "3 passed" in found.stdout


@pytest.mark.parametrize("how", BROKEN)
def test_its_tests_fail_when_the_application(project: Path, how: str) -> None:
    app = project / "app.py"
    good = app.read_text()
    before, after = BROKEN[how]
    assert before in good
    try:
        app.write_text(good.replace(before, after))
        found = run(project, "pytest", "-q", "-x", "-p", "no:cacheprovider")
    finally:
        app.write_text(good)
    assert found.returncode == 1, found.stdout + found.stderr
