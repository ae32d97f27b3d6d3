"""A little of `make simulate`: random histories of the protocol, and faults in the product that they must find."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]


def simulated(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Return the end of `python -m simulation`. Histories are counted: a busy machine plays the same ones."""
    command = [sys.executable, "-m", "simulation", "--workers", "1", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, cwd=_TESTS, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.seed("V168", "V200", "V201")
def test_some_histories_find_nothing(tmp_path: Path) -> None:
    """Each has several failures, and readers meanwhile; at rest the tables are those of a model without failures."""
    histories = 3
    ended = simulated("--seed", "8", "--histories", str(histories), "--kept", str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    faults = {kind: int(number) for kind, number in re.findall(r"^  (\w+) +(\d+)", ended.stdout, re.MULTILINE)}
    assert min(faults[kind] for kind in ("crash_before", "crash_after", "error", "lost_reply")) > 0
    assert sum(faults[kind] for kind in ("crash_before", "crash_after", "error", "lost_reply")) > 2 * histories
    checks = dict(re.findall(r"(\w+):(\d+)", ended.stdout.partition("\nchecks ")[2]))
    assert min(int(checks[name]) for name in ("reader", "table")) > histories


def test_a_fault_in_the_product_is_found() -> None:
    mutants = ("gc_a_day_too_early", "published_before_the_checkpoint", "ids_used_again")
    ended = simulated("--seed", "3", "--histories", "20", "--mutants", *mutants)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 of 3 mutants found" in ended.stdout
