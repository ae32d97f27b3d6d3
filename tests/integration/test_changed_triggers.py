"""A region whose triggers become others, such as files that become periods: refused before anything is claimed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from followed import follow
from hand_runs import engine, without_spark
from harness import settle

from drainmark.orchestration.cli.main import invoke

__all__ = ["engine", "without_spark"]

APP = """\
import drainmark as dm


@dm.consistent({trigger})
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, v bigint"))
def {start}(scanned):
    return scanned


dm.sink({start}, dm.DeltaAppend("kept"))
"""


@pytest.mark.usefixtures("engine")
def test_plan_says_what_run_says_and_the_remedy_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DRAINMARK_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("drainmark.toml").touch()
    Path("inbox").mkdir()
    Path("inbox/1.csv").write_text("tea,1\n")
    settle(Path("inbox"))
    Path("app.py").write_text(APP.format(trigger='trigger="operator-driven"', start="rows"))
    assert invoke(["run", "app.py"]) == 0
    periodic = 'trigger="periodic", period=0'
    Path("app.py").write_text(APP.format(trigger=periodic, start="rows"))
    capsys.readouterr()
    assert invoke(["run", "app.py", "--json"]) == 2
    refused = json.loads(capsys.readouterr().err.splitlines()[-1])["error"]
    assert invoke(["plan", "app.py", "--json"]) == 1
    (planned,) = json.loads(capsys.readouterr().out)["regions"]
    assert planned["refused"]["message"] == refused["message"]
    Path("app.py").write_text(APP.format(trigger=periodic, start="others"))
    follow(refused["remedy"], "tables", tmp_path / ".drainmark")
    assert invoke(["plan", "app.py"]) == 0
    assert invoke(["scan", "app.py", "--json"]) == 0
    assert '"app/others"' in capsys.readouterr().out
