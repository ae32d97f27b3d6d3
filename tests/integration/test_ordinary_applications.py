"""Ordinary PySpark gives the same tables in every kind of Spark: `tests/ordinary` holds the applications (AU2)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import ordinary_runs
import pytest

from drainmark.orchestration.testing.running import run_app
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.seed("AU2"), pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SAMPLE = ("own_module_late", "registered_udf", "session_by_builder")
"""Applications with objects that each kind of Spark binds, ships or finds in its own way."""
HERE = (*SAMPLE, "parameters", "whole_file_in_pandas")
"""The default run, which also has functions of a whole file, and of the author's parameters."""

MODES = (ordinary_runs.RESIDENT, ordinary_runs.CONNECT, "local-cluster[2,1,1024]")
EDITED = """
import drainmark as dm
from edited_module import marked
from pyspark.sql.functions import udf


@udf("string")  # noqa: F405
def late(text):
    from edited_later import marked as marked_later

    return marked_later(text)


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned):
    return scanned


@dm.functor
def words(lines):
    return dm.select(lines, udf(marked, "string")("value").alias("word"), late("value").alias("late"))


dm.sink(words, dm.DeltaAppend("words"))
"""
EDITING = """
import json, sys
from pathlib import Path
from ordinary_runs import engine_of
from integration.test_ordinary_applications import run_edited
with engine_of(sys.argv[1], Path(sys.argv[2]) / "spark") as engine:
    print(json.dumps([run_edited(Path(sys.argv[2]), mark, engine) for mark in "?!"]))
"""
LOADING = """
import sys
import ordinary_runs
from drainmark.jobs.regions.plan import compile_application
for name in ordinary_runs.APPLICATIONS:
    compile_application(ordinary_runs.loaded(name)[0])
context = sys.modules["pyspark.core.context"].SparkContext
print(len(ordinary_runs.APPLICATIONS), context._gateway)
"""


@pytest.fixture(autouse=True)
def path_restored() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


def sets_of(names: Sequence[str]) -> list[list[str]]:
    """Return sets of applications that can share groups: those with the same files and number of groups."""

    def shape(name: str) -> tuple[str, int]:
        module = ordinary_runs.loaded(name)[1]
        return repr(module.FILES), module.GROUPS

    return [list(found) for _, found in groupby(sorted(names, key=shape), key=shape)]


def assert_as_expected(found: dict[str, Any], names: Sequence[str]) -> None:
    modules = [ordinary_runs.loaded(name)[1] for name in names]
    expected = {table: rows for name in names for table, rows in ordinary_runs.expected_of(name).items()}
    assert found["tables"] == expected
    assert {found["groups"]} == {module.GROUPS for module in modules}


def in_mode(mode: str, folder: Path, sets: Sequence[Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Run sets of applications in a process of their own; yield the results."""
    paths = (ROOT, ROOT / "tests")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "ordinary_runs.py"), mode, str(folder), *map(",".join, sets)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    yield from (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))


def test_all_are_understood_without_a_session() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    count, gateway = done.stdout.split()
    assert int(count) >= 30
    assert gateway == "None"


@pytest.mark.spark
@pytest.mark.parametrize(
    "applications",
    [pytest.param(HERE, id="sample"), pytest.param(ordinary_runs.APPLICATIONS, id="all", marks=pytest.mark.slow)],
)
def test_they_give_their_rows_in_this_process(tmp_path: Path, engine: SparkEngine, applications: Sequence[str]) -> None:
    for number, names in enumerate(sets_of(applications)):
        found = ordinary_runs.run(names, tmp_path / str(number) / "home", engine)
        assert_as_expected(found, names)


@pytest.mark.slow  # in the default run the resident Spark has its own tests, and applications run in this process
@pytest.mark.parametrize("mode", MODES)
def test_a_sample_elsewhere(tmp_path: Path, mode: str) -> None:
    """They run on the resident Spark and on executors in other processes; `sc://` is a resident Spark, without us."""
    (found,) = in_mode(mode, tmp_path, [SAMPLE])
    assert_as_expected(found, SAMPLE)


@pytest.mark.slow
def test_all_as_large_groups_of_the_resident_spark(tmp_path: Path) -> None:
    sets = sets_of(ordinary_runs.APPLICATIONS)
    for found, names in zip(in_mode(ordinary_runs.RESIDENT + ordinary_runs.LARGE, tmp_path, sets), sets, strict=True):
        assert_as_expected(found, names)


def run_edited(folder: Path, mark: str, engine: SparkEngine) -> list[dict[str, Any]]:
    """Run an application after an edit of its modules that adds this mark."""
    for name in ("edited_module", "edited_later"):
        (folder / f"{name}.py").write_text(f"def marked(text):\n    return text + {mark!r}\n")
    (folder / "edited.py").write_text(EDITED)
    home = folder / str(ord(mark)) / "home"
    result = run_app(folder / "edited.py", {"1.txt": "word"}, home=home, engine=engine)
    found = result.sink("words")
    result.close()
    return found


@pytest.mark.spark
def test_what_was_edited_is_what_runs(tmp_path: Path, engine: SparkEngine) -> None:
    """This holds also in a session and in workers that ran the old code before."""
    assert [run_edited(tmp_path, mark, engine)[0]["word"] for mark in "?!"] == ["word?", "word!"]


@pytest.mark.slow
def test_what_was_edited_is_what_the_resident_spark_runs(tmp_path: Path) -> None:
    """This holds also for modules that a function imports on a worker."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", EDITING, ordinary_runs.RESIDENT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == [[{"word": f"word{mark}", "late": f"word{mark}"}] for mark in "?!"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_all_elsewhere(tmp_path: Path, mode: str) -> None:
    """Each runs in a home of its own, one after the other in the same session."""
    names = ordinary_runs.APPLICATIONS
    found = list(in_mode(mode, tmp_path, [[name] for name in names]))
    for each, name in zip(found, names, strict=True):
        assert_as_expected(each, [name])
