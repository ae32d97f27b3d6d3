"""A start with its own thread in `drainmark run --for`, killed in its cuts and in the commits after them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

APP = '''
import pyarrow as pa

import drainmark as dm

LAST = 40


class Counter(dm.StartHandler):
    """Submits the numbers below LAST one by one and asks for a state after every fourth."""

    def __init__(self):
        self.n = 0

    def run(self, context):
        while not context.wait(0.02):
            if self.n == LAST:
                continue
            with context.permit(), self.lock:
                context.submit(pa.table({"n": pa.array([self.n], pa.int64())}))
                self.n += 1
            if self.n % 4 == 0:
                with context.permit():
                    context.make_consistent()

    def drain(self):
        pass

    def checkpoint(self, checkpoint):
        checkpoint.write(self.n)

    def reset(self, checkpoint):
        self.n = checkpoint.read(int)

    def reset_to_initial_state(self):
        self.n = 0


@dm.consistent(trigger="operator-driven")
@dm.source(dm.ThreadedStart(handler=Counter, schema="n bigint", seconds=600.0, purge="PURGE"))
def ticks(scanned):
    return scanned


dm.sink(ticks, dm.DeltaAppend("counted_ticks"))
'''
LAST = 40
PATIENCE = 120.0


def start(folder: Path, connect: str, failpoints: str = "") -> subprocess.Popen[str]:
    arguments = ["run", str(folder / "counted.py"), "--home", str(folder / "home"), "--for", "300", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "drainmark.orchestration.cli.main", *arguments],
        cwd=folder,
        env={**os.environ, "DRAINMARK_SPARK_MASTER": connect, "DRAINMARK_FAILPOINTS": failpoints},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def visible(folder: Path) -> list[int]:
    try:
        table = DeltaTable(folder / "home" / "lake" / "counted_ticks")
    except TableNotFoundError:
        return []
    return sorted(table.to_pyarrow_table(columns=["n"])["n"].to_pylist())


@pytest.mark.seed("V9", "V62", "V99")
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("segment.before_seal:kill:3", marks=pytest.mark.recovery),
        pytest.param("segment.after_seal:kill:3", marks=pytest.mark.recovery),
        pytest.param("checkpoint.before_commit:kill:2", marks=pytest.mark.recovery),
        pytest.param("checkpoint.after_commit:kill:2", marks=pytest.mark.recovery),
        pytest.param("publish.before_commit:kill:3", marks=pytest.mark.recovery),
        pytest.param("segment.before_purge:kill:1", marks=pytest.mark.recovery),
        pytest.param("segment.after_purge:kill:1", marks=pytest.mark.recovery),
    ],
)
def test_each_number_is_there_once_whatever_was_killed(tmp_path: Path, connect: str, point: str) -> None:
    # inside the horizon nothing is purged, so no run would reach these points
    purge = "checkpointed" if "purge" in point else "horizon"
    (tmp_path / "counted.py").write_text(APP.replace("PURGE", purge))
    (tmp_path / "drainmark.toml").write_text("")
    killed = start(tmp_path, connect, point)
    _, said = killed.communicate(timeout=PATIENCE)
    assert killed.returncode == -signal.SIGKILL, said
    seen = visible(tmp_path)
    assert seen == list(range(len(seen)))
    assert len(seen) < LAST, "it was killed too late to show anything"
    following = start(tmp_path, connect)
    until = time.monotonic() + PATIENCE
    while len(visible(tmp_path)) < LAST and following.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    following.terminate()
    _, said = following.communicate(timeout=PATIENCE)
    assert following.returncode in (0, 130), said
    assert visible(tmp_path) == list(range(LAST)), said
