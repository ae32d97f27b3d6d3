"""The errors of a type checker for a wrong name, keyword or value; it gives none for right ones."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import subprocess
import sys

import pytest
from architecture.tree import ROOT

import drainmark as dm
from drainmark.jobs.graph.annotations import Consistent

RIGHT = """
import datetime as dt
import drainmark as dm

@dm.consistent(trigger="operator-driven", group_timeout=5.0, linger=dt.timedelta(seconds=2), channels="durable")
@dm.source(dm.DirectoryScan(path="in", pattern="*.txt"))
def lines(scanned: object) -> object:
    return scanned

@dm.consistent(trigger="periodic", period=10, schedule=None, max_inflight_bytes="64 MB", drain_timeout=7)
@dm.source(dm.DirectoryScan(path="in", pattern="*.csv"))
def numbers(scanned: object) -> object:
    return scanned

dm.sink(dm.functor(lambda lines: lines, name="same", inputs=[lines]), dm.DeltaAppend("t"))
dm.testing.assert_exactly_once("app.py", {"a.txt": "to be"})
"""

WRONG = {
    'dm.consistent(trigger="operator-driven", group_timeuot=5.0)': 'Unexpected keyword argument "group_timeuot"',
    'dm.consistent(trigger="sometimes")': 'Argument "trigger" to "consistent"',
    'dm.consistent(trigger="operator-driven", rewind_horizon="many")': 'Argument "rewind_horizon" to "consistent"',
    'dm.consistent(trigger="operator-driven", linger="2 s")': 'Argument "linger" to "consistent"',
    "dm.consistent()": 'Missing named argument "trigger"',
    "dm.functr": 'Module has no attribute "functr"',
    "dm.testing.nothing": 'Module has no attribute "nothing"',
    "dm.functor(3)": "No overload variant",
}


_CACHE = ROOT / "build" / "typing-cache"
"""What mypy knows of modules that are as they were in the last run."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the errors of mypy by file, each after the number of its line and a space."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text("\n".join(["import drainmark as dm", *WRONG]))
    found = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(_CACHE), "--config-file", ""),
            *("--follow-imports=silent", "--ignore-missing-imports", "right.py", "wrong.py"),
        ],
        cwd=folder, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    errors: dict[str, list[str]] = {"right.py": [], "wrong.py": []}
    for line in found.stdout.splitlines():
        if match := re.fullmatch(r"(\w+\.py):(\d+): error: (.*)", line):
            errors[match[1]].append(f"{match[2]} {match[3]}")
    assert found.returncode == 1, found.stdout + found.stderr
    return errors


def test_what_is_right_passes(said: dict[str, list[str]]) -> None:
    assert said["right.py"] == []


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_an_error_in_its_line(said: dict[str, list[str]], line: str) -> None:
    number = list(WRONG).index(line) + 2
    (error,) = [error for error in said["wrong.py"] if error.startswith(f"{number} ")]
    assert WRONG[line] in error


def test_the_decorator_takes_what_a_region_has_with_the_same_defaults() -> None:
    taken = {name: each.default for name, each in inspect.signature(dm.consistent).parameters.items()}
    known = {field.name: field.default for field in dataclasses.fields(Consistent)}
    assert taken.pop("drain_timeout") == known["group_timeout"]
    del taken["trigger"], known["trigger"]  # it has no default
    assert taken == known


def test_the_decorator_s_text_names_each_argument() -> None:
    text = inspect.getdoc(dm.consistent) or ""
    assert [name for name in inspect.signature(dm.consistent).parameters if f"\n    {name}: " not in text] == []


def test_a_wrong_keyword_is_an_error_when_it_runs_too() -> None:
    with pytest.raises(TypeError, match="group_timeuot"):
        dm.consistent(trigger="operator-driven", group_timeuot=5.0)
