"""A little of `make simulate`: random histories of the protocol, and faults in the product that they must find."""

from __future__ import annotations

import os
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


def test_some_histories_find_nothing(tmp_path: Path) -> None:
    ended = simulated("--seed", "43", "--histories", "8", "--kept", str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("mutant", ["gc_a_day_too_early", "published_before_the_checkpoint", "ids_used_again"])
def test_a_fault_in_the_product_is_found(mutant: str) -> None:
    ended = simulated("--seed", "43", "--histories", "20", "--mutants", mutant)
    assert ended.returncode == 0, ended.stdout + ended.stderr
