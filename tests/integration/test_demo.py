"""`drainmark demo` as a whole: killed, recovered, equal to plain Python. Slow: a JVM for each run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drainmark.jobs.testing.syslog import write_syslog


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DRAINMARK_")}
    command = [
        sys.executable,
        "-m",
        "drainmark.orchestration.cli.main",
        "demo",
        "--home",
        str(folder / "home"),
        *arguments,
    ]
    return subprocess.run(
        command, cwd=folder, env={**environment, "PYTHONIOENCODING": "utf-8"}, capture_output=True, encoding="utf-8",
        check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_is_killed_recovers_and_equals_plain_python(tmp_path: Path) -> None:
    write_syslog(tmp_path / "logs", hosts=["web1"], files_per_host=3)
    found = run_demo(tmp_path, "--input", str(tmp_path / "logs"))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Killed by signal 9" in found.stdout
    assert "UNHEALTHY" in found.stdout
    assert "Exactly once: 3 files gave 3 consistent states" in found.stdout
    assert "drainmark dev" in found.stdout


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "home" / "demo" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    found = run_demo(tmp_path)
    assert found.returncode == 2, found.stderr
    assert mine.read_text() == "mine"
    assert "was not made by a demo" in found.stderr


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_demo_killed_at_random_equals_plain_python(tmp_path: Path) -> None:
    """It uses the same `compare` that the test below sees fail."""
    found = run_demo(tmp_path, "--chaos", "--kills", "3", "--seed", "5")
    assert found.returncode == 0, found.stdout + found.stderr
    lines = found.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("kill ")] == ["1", "2", "3"]
    assert any("recovered" in line and "after the restart" in line for line in lines)
    assert "Exactly once:" in found.stdout
    assert "3 kills in" in found.stdout


def test_chaos_takes_no_logs_of_the_users(tmp_path: Path) -> None:
    found = run_demo(tmp_path, "--chaos", "--input", str(tmp_path))
    assert found.returncode == 2, found.stderr
