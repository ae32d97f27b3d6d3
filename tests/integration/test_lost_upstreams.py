"""A table that a region read is gone: the region, and those whose tables it reads, can still go back; without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hand_runs import NoSpark, engine, without_spark
from harness import settle

import drainmark as dm
from drainmark.orchestration.cli.main import invoke

__all__ = ["engine", "without_spark"]

UPSTREAM = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="NAME", format="csv", schema="item string", pattern="*.csv", settle=0))
def rows(scanned):
    return scanned

dm.sink(rows, dm.DeltaAppend("NAME_rows"))
"""
READER = """
import drainmark as dm

@dm.consistent(trigger="periodic", period=60)
@dm.source(dm.TableSource("one_rows"))
def of_one(scanned):
    return scanned

@dm.consistent(trigger="periodic", period=60)
@dm.source(dm.TableSource("two_rows"))
def of_two(scanned):
    return scanned

@dm.functor
def both(of_one, of_two):
    return [*of_one, *of_two]

dm.sink(both, dm.DeltaAppend("read"))
"""


def test_a_table_that_is_gone_is_accepted_as_lost(
    engine: NoSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "drainmark.toml").write_text('applications = ["one.py", "two.py", "reader.py"]\nhome = "home"\n')
    (tmp_path / "reader.py").write_text(READER)
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        for name in ("one", "two"):
            (tmp_path / f"{name}.py").write_text(UPSTREAM.replace("NAME", name))
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{number}.csv").write_text(f"{name}{number}\n")
            settle(tmp_path / name)
            assert invoke(["run", f"{name}.py"]) == 0
        assert invoke(["run", "reader.py"]) == 0
    shutil.rmtree(tmp_path / "home" / "lake" / "two_rows")

    capsys.readouterr()
    assert invoke(["reset", "one", "--to", "1", "--cascade", "--yes"]) == 2
    assert "repeat with --accept-loss" in capsys.readouterr().err
    assert invoke(["reset", "one", "--to", "1", "--cascade", "--accept-loss", "--yes"]) == 0
    assert sorted(dm.read("one", "one_rows")["item"].to_pylist()) == ["one1"]
    assert sorted(dm.read("reader", "read")["item"].to_pylist()) == ["one1", "two1"]
