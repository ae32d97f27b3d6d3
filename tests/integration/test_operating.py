"""Functions for the people who keep regions running, on real runs: reprocessing, halt notices, metrics, traces."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import settle, verbs

from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

APPLICATION = """
import drainmark as dm
from drainmark import F

@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=0)
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt"))
def lines(scanned):
    return scanned

@dm.functor
def numbers(lines):
    value = F.col("value")
    return dm.select(lines, F.when(value == "bad", F.raise_error("poison")).otherwise(value).alias("n"))

@dm.filter
def short(numbers):
    return F.length("n") < 3

dm.sink(numbers, dm.DeltaAppend("operating_numbers"))
dm.sink(short, dm.DeltaAppend("operating_short"))
"""

Call = Callable[..., Any]


@pytest.fixture
def call(engine: SparkEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs a verb with --json on a home of its own, and returns its output or its error."""
    assert engine.session is not None  # the command line's own engine finds this session
    (tmp_path / "inbox").mkdir()
    (tmp_path / "operating.py").write_text(APPLICATION)
    return verbs(tmp_path / "home", capsys)


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / "inbox" / f"{name}.txt").write_text(text)
    settle(folder / "inbox")


def run(call: Call, folder: Path, code: int = 0) -> Any:
    return call("run", folder / "operating.py", "--input", folder / "inbox", code=code)


def shown(call: Call, table: str, *more: Any) -> list[str]:
    return sorted(row["n"] for row in call("show", table, *more))


def test_a_file_is_processed_anew_by_code_that_was_mended(call: Call, tmp_path: Path) -> None:
    write(tmp_path, a="1\n22\n333", b="4444")
    run(call, tmp_path)
    application = tmp_path / "operating.py"
    application.write_text(APPLICATION.replace("< 3", "< 4").replace("otherwise(value)", "otherwise(F.reverse(value))"))

    queued = call("backfill", "operating", "--input", tmp_path / "inbox" / "a.txt", "--again")
    assert (queued["replaced"], queued["committed"]) == (1, 0)
    assert run(call, tmp_path)["regions"][0]["triggers"] == 1

    assert shown(call, "operating_numbers") == ["1", "22", "333", "4444"]
    assert shown(call, "operating_short") == ["1", "22", "333"]
    assert shown(call, "operating_short", "--at", 2) == ["1", "22"], "as it was"
    assert run(call, tmp_path)["regions"][0]["outcome"] == "nothing to do", "the scan does not call it changed"
    assert [entry["replaced_by"] for entry in call("history", "operating")] == [3, None, None]
    traced = call("trace", "operating", "--file", "a.txt")
    assert [(entry["sequence_id"], entry["status"]) for entry in traced["ids"]] == [(1, "replaced"), (3, "committed")]

    call("reset", "operating", "--to", 2, "--yes")
    assert shown(call, "operating_short") == ["1", "22"]
    run(call, tmp_path)
    assert shown(call, "operating_short") == ["1", "22", "333"]


def test_a_region_with_an_aggregate_refuses_and_names_the_rewind(call: Call, tmp_path: Path) -> None:
    write(tmp_path, a="to be", b="or not")
    call("run", "word_count", "--input", tmp_path / "inbox")
    refused = call("backfill", "word_count", "--input", tmp_path / "inbox" / "b.txt", "--again", code=2)
    assert refused["id"] == "REPLACE_REFUSED"
    assert "reset word_count/lines --to 1" in refused["remedy"]
    assert call("status", "word_count")[0]["pending_triggers"] == 0


@pytest.mark.seed("E14", "E23")
def test_a_halt_is_told_once_and_counted(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "told.jsonl"
    script = "import json, sys; open(sys.argv[1], 'a').write(json.dumps(json.load(sys.stdin)) + '\\n')"
    monkeypatch.setenv("DRAINMARK_ON_HALT", json.dumps([sys.executable, "-c", script, str(told)]))
    monkeypatch.setenv("DRAINMARK_RETRY_BACKOFF_SECONDS", "0.05")
    write(tmp_path, a="1", b="bad", c="3")

    for _ in range(2):
        assert run(call, tmp_path, code=3)["id"] == "HALTED"

    (event,) = [json.loads(line) for line in told.read_text().splitlines()]
    assert (Path(event["trigger"]).name, event["operator"]) == ("b.txt", "numbers")
    assert event["remedies"][0] == "drainmark resume operating/lines"
    assert "drainmark_halted{" in (tmp_path / "home" / "metrics" / "operating__lines.prom").read_text()
    (found,) = call("metrics", "operating")
    assert (found["drainmark_state"], found["drainmark_halted"], found["drainmark_halts_total"]) == ("HALTED", 1, 1)
    assert (found["drainmark_states_total"], found["drainmark_pending_triggers"]) == (1, 2)


SLOW = """
import time

import drainmark as dm
from pyspark.sql.functions import udf

@udf("string")
def slowly(text):
    time.sleep(2)
    return text

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt"))
def lines(scanned):
    return scanned

@dm.functor
def slow(lines):
    return dm.select(lines, slowly("value").alias("v"))

dm.sink(slow, dm.DeltaAppend("operating_slow"))
"""


@pytest.mark.seed("AU3")
@pytest.mark.parametrize(
    "small",
    [pytest.param(True, id="rows come back"), pytest.param(False, id="Spark writes", marks=pytest.mark.slow)],
)
def test_computing_is_no_draining(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    """The time of an operator before a sink counts as processing, although Spark is lazy."""
    if not small:
        monkeypatch.setenv("DRAINMARK_SMALL_GROUP_BYTES", "0")
    (tmp_path / "operating.py").write_text(SLOW)
    write(tmp_path, one="a\n")
    run(call, tmp_path)
    (entry,) = call("history", "operating")
    assert entry["process_seconds"] >= 2.0, "what the function slept"
    assert entry["process_seconds"] > entry["drain_seconds"] > 0.0
