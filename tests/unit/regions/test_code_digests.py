"""Digests of compiled functions, which show whether the code that merges values into a state has changed."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark import F
from drainmark.jobs.graph.code_digests import code_digest

SOURCE = """\
import functools
import helpers
from helpers import pick, CONFIG
from drainmark.jobs.graph.code_digests import code_digest
{imported}

LEVELS = {{"low", "high", "middle"}}

def largest(column):
    "{doc}"
    return lambda: {function}(column)  # {comment}

class Merge:
    def __init__(self, power):
        self.power, self.seen = power, object()
    def __call__(self, x):
        return x ** self.power

print(code_digest(
    largest("{column}"), lambda x: pick(x) in LEVELS, lambda: helpers.step(2), functools.partial(pick, {bound}),
    Merge({power}), lambda: CONFIG.name, {extra}
))
"""
HELPERS = """\
class Config:
    name = "{name}"
CONFIG = Config()
CONFIG.name = "{name}"
def pick(x):
    return x + {by}
def step(x):
    return x * {times}
"""
EACH_IN_A_FORK = """\
import os, runpy, sys
import pyspark.sql.functions
from drainmark.jobs.graph import code_digests
for folder in sys.argv[1:]:
    if not (child := os.fork()):
        sys.path.insert(0, folder)
        runpy.run_path(f"{folder}/code.py", run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
AS_IT_WAS = {
    "imported": "from drainmark import F", "function": "F.max", "doc": "Old.", "comment": "", "column": "p",
    "bound": "1", "power": "2", "extra": "lambda local: local", "name": "n", "by": "1", "times": "1",
}  # fmt: skip


def digest(folder: Path, seed: int = 0, **other: str) -> str:
    """Return the digest from a new process, which has its own order of sets and its own addresses of objects."""
    write(folder, **other)
    return run("code.py", folder=folder, seed=seed)


def write(folder: Path, **other: str) -> None:
    given = {**AS_IT_WAS, **other}
    (folder / "code.py").write_text(SOURCE.format(**given))
    (folder / "helpers.py").write_text(HELPERS.format(**given))


def run(*arguments: str, folder: Path | None = None, seed: int = 0) -> str:
    root = Path(__file__).parents[3]
    environment = {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.seed("RT3")
def test_every_process_gives_the_same_and_only_code_counts(tmp_path: Path) -> None:
    before = digest(tmp_path, 1)
    assert digest(tmp_path, 2) == before
    same = {"doc": "New.", "comment": "said", "extra": "lambda other: other", "imported": "\n\nfrom drainmark import F"}
    assert digest(tmp_path, 3, **same) == before
    assert digest(tmp_path, 3, imported="from pyspark.sql import functions as F") == before


@pytest.mark.seed("RT3")
def test_whatever_a_function_does_counts(tmp_path: Path) -> None:
    """This includes the names it uses: enclosing values, constants, functions and objects of the author's modules."""
    others = [
        {"function": "F.min"}, {"column": "q"}, {"bound": "2"}, {"power": "3"}, {"name": "m"}, {"by": "2"},
        {"times": "3"}, {"extra": "lambda local: -local"},
    ]  # fmt: skip
    folders = []
    for number, other in enumerate([{}, *others]):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        write(folders[-1], **other)
    found = run("-c", EACH_IN_A_FORK, *map(str, folders)).split()
    assert len({*found}) == len(found) == len(folders)


def of(column: str, *, label: str = "mine", identity: str = "", top: bool = True) -> dict[str, Any]:
    def choose(value: Any) -> Any:
        return F.max(value) if top else F.min(value)

    made = dm.Aggregation(partial=lambda: choose(column), merge=choose, label=label, identity=identity)
    return made.meaning.to_json()


@pytest.mark.seed("RT3")
def test_the_meaning_of_an_aggregation() -> None:
    assert dm.sum("p").meaning.to_json() == {"of": "sum(p)"}
    assert of("p") == of("p")
    assert of("p")["code"] != of("q")["code"]
    assert of("p", top=False)["code"] != of("p")["code"]
    by_part = dm.Aggregation(partial={"a": lambda: F.sum("p")}, merge={"a": F.sum})
    assert by_part.meaning.code
    assert by_part.fingerprint() != dm.Aggregation(
        partial=by_part.partial, merge=by_part.merge, finish=lambda parts: parts["a"]
    ).fingerprint()  # fmt: skip
    finished = dm.Aggregation(partial=by_part.partial, merge=by_part.merge, finish=lambda parts: parts["a"])
    assert finished.meaning == by_part.meaning  # a value is computed again from the parts
    bound = [code_digest(functools.partial(F.sum, name)) for name in ("p", "p", "q")]
    assert bound[0] == bound[1] != bound[2]
