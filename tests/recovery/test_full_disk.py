"""A disk that is full, or fails, from the N-th durable call on: the next run continues without help (D11, A5)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import settle

from drainmark.jobs.protocol.history import Outcome
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

ROOT = Path(__file__).parents[2]
REGION = "word_count/lines"
FILES = {"1.txt": "a b\nb\n", "2.txt": "b c\n"}
COUNTS = {"a": 1, "b": 3, "c": 1}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


def run(folder: Path, *prefix: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "run", "word_count", "--attempts", "1"]
    places = ["--input", str(folder / "inbox"), "--home", str(folder / "home")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DRAINMARK_")}
    return subprocess.run(
        [*prefix, *command, *places], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("when", "error"),
    [(3, "ENOSPC"), (8, "ENOSPC"), (6, "EIO")],
)
@pytest.mark.parametrize("calls", ["fsync,fdatasync", "link,linkat,rename,renameat,renameat2"])
def test_a_disk_that_fails_from_some_call_on_costs_nothing_but_time(
    calls: str, when: int, error: str, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for name, text in FILES.items():
        (inbox / name).write_text(text)
    settle(inbox)
    inject = ("strace", "-f", "--seccomp-bpf", "-o", os.devnull, "-e", f"trace={calls}")
    failed = run(tmp_path, *inject, "-e", f"inject={calls}:error={error}:when={when}+")
    assert failed.returncode in (0, 1), failed.stderr
    assert "Traceback" not in failed.stderr
    again = run(tmp_path)
    assert again.returncode == 0, again.stderr
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    try:
        counts = place.store(REGION).table("lake/word_counts").read().to_pylist()
        history = place.history(REGION)
    finally:
        place.registry.close()
    assert {row["word"]: row["count"] for row in counts} == COUNTS
    assert len(history.states) == len(FILES)
    assert (history.last_outcome, history.halt) == (Outcome.CLEAN, None)
