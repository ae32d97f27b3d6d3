"""Signals to a run and to the keeper of the resident Spark, in processes of their own: they end, and never hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import SOON

ROOT = Path(__file__).parents[2]
IN_THE_WAIT = """
import signal, sys, threading

def signal_in_a_wait(frame, event, argument):
    if frame.f_code is threading.Condition.wait.__code__:  # its caller holds the lock of an event
        sys.setprofile(None)
        signal.raise_signal(signal.SIGTERM)
"""
PAUSE = """
from drainmark.jobs.errors import Interrupted
from drainmark.orchestration.runs.interruption import Interruption

with Interruption() as interruption:
    sys.setprofile(signal_in_a_wait)
    try:
        interruption.pause(60)
    except Interrupted:
        print("interrupted")
"""
GRACE = """
from drainmark.orchestration.runs.interruption import ending_gracefully

asked = threading.Event()
with ending_gracefully(asked.set):
    sys.setprofile(signal_in_a_wait)
    print("interrupted" if asked.wait(60) else "late")
"""
KEEPER = """
from pathlib import Path
from drainmark.resources.spark.resident.files import Plan, ServerFiles
from drainmark.resources.spark.resident.keeper import Keeper

plan = Plan(settings={}, idle_seconds=60.0, python=sys.executable, path=())
keeper = Keeper(ServerFiles.of(Path(sys.argv[1]), plan), plan)
keeper._serve = lambda: (sys.setprofile(signal_in_a_wait), keeper._pause(60))
keeper.keep()
print("interrupted")
"""


@pytest.mark.parametrize("program", [PAUSE, GRACE, KEEPER], ids=["pause", "grace", "keeper"])
def test_a_signal_at_any_moment_of_a_wait_ends_it(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_WAIT + program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=SOON, check=False,
    )  # fmt: skip
    assert done.stdout == "interrupted\n", done.stderr
