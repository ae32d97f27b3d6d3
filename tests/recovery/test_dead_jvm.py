"""The JVM of a process is killed: the next session of the same process starts another one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys
from pathlib import Path

from pyspark import SparkContext

from drainmark.resources.spark.session import SparkEngine

engine = SparkEngine(master="local[1]", conf={"spark.ui.enabled": "false"}, scratch=Path(sys.argv[1]))
assert engine.session.range(3).count() == 3
killed = SparkContext._gateway.proc
os.kill(killed.pid, signal.SIGKILL)
killed.wait()
engine.discard()
assert engine.session.range(4).count() == 4
assert SparkContext._gateway.proc.pid != killed.pid
engine.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_session_after_a_killed_jvm_has_another_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr
