"""Fingerprints of functions: equal in every process for the same code, and different for different code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = """\
from drainmark.jobs.graph.code_digests import UserFunction

LEVELS = {levels}

def helper(x):
    return x + {step}

def seen(found):
    return [{called}(x) for x in found if x in LEVELS]

pair = [
    UserFunction(
        streams=(),
        **{{"function": lambda f: [{called}(x) for x in f.{column} if x in {{"a", "b", "c"}} and x in LEVELS]}}
    ),
    UserFunction(streams=(), function=seen),
]
print(*(one.source_digest() for one in pair))
"""
AS_IT_WAS = {"levels": '{"low", "high", "middle"}', "step": "1", "called": "helper", "column": "n"}


def digests(folder: Path, seed: int = 0, **other: str) -> list[str]:
    """Return the digests from a new process, which has its own order of sets."""
    (folder / "code.py").write_text(SOURCE.format(**{**AS_IT_WAS, **other}))
    root = Path(__file__).parents[3]
    environment = {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "code.py"], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_every_process_gives_the_same(tmp_path: Path) -> None:
    assert digests(tmp_path, 1) == digests(tmp_path, 2) == digests(tmp_path, 3)


@pytest.mark.parametrize(
    "other",
    [
        {"levels": '{"low", "high"}'}, {"levels": '["low", "high"]'}, {"levels": '{"low": 1, "high": [2]}'},
        {"step": "2"}, {"called": "abs"},
    ],
    ids=str,
)  # fmt: skip
def test_other_code_and_other_constants_give_others(tmp_path: Path, other: dict[str, str]) -> None:
    """This includes the names that a comprehension inside the function uses."""
    before, after = digests(tmp_path), digests(tmp_path, **other)
    assert all(one != two for one, two in zip(before, after, strict=True))


def test_another_name_in_a_lambda_gives_another(tmp_path: Path) -> None:
    assert digests(tmp_path)[0] != digests(tmp_path, column="m")[0]


UDF_SOURCE = """\
import beside.numbers as numbers
from beside.functions import used
from pyspark.sql.functions import udf

@udf("int")
def added(x):
    return x + {step}

def seen(frame):
    return frame.select(added("n"))

def named(frame):
    return used(frame)

def reached(frame):
    return numbers.ONE

functions = (seen, named, reached)
"""
USING = (
    "from drainmark.jobs.graph.code_digests import UserFunction\n"
    "from drainmark.jobs.graph.sessionless import module_loading\n"
    + """\
with module_loading("code"):
    import written
print(*(UserFunction(streams=(), function=each).source_digest() for each in written.functions))
"""
)


def digests_of_udfs(folder: Path, step: int = 1, returned: str = "frame", one: int = 1) -> list[str]:
    (folder / "beside").mkdir(exist_ok=True)
    (folder / "beside" / "__init__.py").touch()
    (folder / "beside" / "functions.py").write_text(f"def used(frame):\n    return {returned}\n")
    (folder / "beside" / "numbers.py").write_text(f"ONE = {one}\n")
    (folder / "written.py").write_text(UDF_SOURCE.format(step=step))
    (folder / "using.py").write_text(USING)
    environment = {"PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, str(folder / "using.py")], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.seed("AU2")
def test_udfs_and_modules_beside_the_application_count(tmp_path: Path) -> None:
    before = digests_of_udfs(tmp_path)
    changes: list[dict[str, Any]] = [{"step": 2}, {"returned": "None"}, {"one": 2}]
    changed = [digests_of_udfs(tmp_path, **change) for change in changes]
    differs = [[one != two for one, two in zip(before, after, strict=True)] for after in changed]
    assert differs == [[True, False, False], [False, True, False], [False, False, True]]
