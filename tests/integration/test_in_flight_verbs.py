"""Batches in flight at the end of a run are work for the next run, no matter who starts it (K23, F28)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from followed import follow
from harness import settle, verbs

from drainmark.orchestration.testing.crash.invariants import unfinished
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

REGION = "flight/lines"
APPLICATION = '''
"""Two stages; the second one waits while a file `hold` lies beside it, and fails where there is one called `poison`."""
import threading
import time
from pathlib import Path

import drainmark as dm

HERE = Path(__file__).parent


@dm.consistent(trigger="operator-driven", alignment="unaligned", max_consecutive_reset_attempts=0)
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt"))
def lines(scanned):
    return scanned


@dm.functor(inputs=[dm.buffered(lines)])
def behind(lines):
    if threading.current_thread().name not in ("MainThread", "analysis"):  # in a group
        while (HERE / "hold").exists():
            time.sleep(0.02)
        if (HERE / "poison").exists():
            raise ValueError("poison")
    return dm.select(lines, "value")


dm.sink(behind, dm.DeltaAppend("flight_lines"))
'''

Call = Callable[..., Any]


@pytest.fixture
def call(engine: SparkEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs a verb with --json on a home of its own, and returns its output or its error."""
    assert engine.session is not None  # the command line's own engine finds this session
    (tmp_path / "inbox").mkdir()
    (tmp_path / "flight.py").write_text(APPLICATION)
    return verbs(tmp_path / "home", capsys)


def run(call: Call, folder: Path, code: int = 0) -> Any:
    return call("run", folder / "flight.py", "--input", folder / "inbox", code=code)


def halted_in_flight(call: Call, folder: Path) -> Workplace:
    """Leave a region in which all files are committed, one stage has processed none, and no operator is to blame."""
    for name in ("a", "b"):
        (folder / "inbox" / f"{name}.txt").write_text(name)
    settle(folder / "inbox")
    (folder / "hold").touch()
    (folder / "poison").touch()
    place = Workplace(Settings(home=folder / "home", project_root=folder))
    ended = threading.Event()

    def let_go() -> None:
        while not ended.wait(0.05) and place.history(REGION).committed_id < 2:
            pass
        (folder / "hold").unlink()

    letting = threading.Thread(target=let_go)
    letting.start()
    try:
        assert run(call, folder, code=3)["id"] == "HALTED"
    finally:
        ended.set()
        letting.join()
    (folder / "poison").unlink()
    return place


@pytest.mark.seed("K23", "E18")
def test_what_is_in_flight_after_a_halt_is_finished_by_the_next_run(call: Call, tmp_path: Path) -> None:
    place = halted_in_flight(call, tmp_path)
    call("resume", REGION)
    (status,) = call("status", REGION)
    assert (status["committed_sequence_id"], status["pending_triggers"]) == (2, 0)
    assert status["inflight_batches"] > 0
    assert any("in flight" in why for why in unfinished(place, REGION))

    outcome = run(call, tmp_path)["regions"][0]["outcome"]
    assert outcome == "recovered", "nothing is pending, and there is work all the same"
    assert call("status", REGION)[0]["inflight_batches"] == 0
    assert sorted(row["value"] for row in call("show", "flight_lines")) == ["a", "b"]
    assert run(call, tmp_path)["regions"][0]["outcome"] == "nothing to do"
    assert not list(unfinished(place, REGION))


@pytest.mark.seed("K23", "E18")
def test_a_halt_for_a_file_that_is_committed_says_how_it_is_skipped_all_the_same(call: Call, tmp_path: Path) -> None:
    halted_in_flight(call, tmp_path)
    poison = str(tmp_path / "inbox" / "a.txt")
    refused = call("skip", REGION, "--file", poison, "--reason", "it is poison", code=2)
    assert refused["remedy"] == f"drainmark reset {REGION} --to 0 makes it pending again"
    (_, remedy) = call("status", REGION)[0]["remedies"]
    follow(remedy, "skip", tmp_path / "home")
    run(call, tmp_path)
    assert [row["value"] for row in call("show", "flight_lines")] == ["b"]


@pytest.mark.seed("ER5")
def test_an_erasure_lets_what_is_in_flight_arrive_first(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drainmark.toml").write_text('applications = ["flight.py"]\n')
    monkeypatch.chdir(tmp_path)
    halted_in_flight(call, tmp_path)
    call("resume", REGION)
    refused = call("erase", "--where", "value = 'a'", "--yes", code=2)
    assert refused["id"] == "ERASE_REFUSED"
    assert call("status", REGION)[0]["inflight_batches"] > 0, "nothing was changed"
    follow(refused["remedy"], "run", tmp_path / "home")
    call("erase", "--where", "value = 'a'", "--yes")
    assert [row["value"] for row in call("show", "flight_lines")] == ["b"]
