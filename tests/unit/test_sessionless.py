"""Modules of authors are loaded without a Spark session; each test uses a new process in which nothing is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HEAD = """
import drainmark as dm
from pyspark.sql import SparkSession, Window, functions as F
from pyspark.sql.types import StructType
"""
TAIL = """

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="in", pattern="*.txt", format="text"))
def lines(scanned):
    return scanned


dm.sink(lines, dm.DeltaAppend("lines"))
"""
LOADING = """
import json, sys
from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.graph.application import load_application
try:
    load_application(sys.argv[1])
    found = {}
except DrainmarkError as error:
    found = error.to_json()
context = sys.modules["pyspark.core.context"].SparkContext
print(json.dumps({**found, "jvm": context._gateway is not None}))
"""
CONNECTING = """
import threading
from drainmark.jobs.graph.sessionless import change_pyspark

def connect():
    from pyspark.sql.connect.session import SparkSession

change_pyspark()
connecting = threading.Thread(target=connect)
connecting.start()
while connecting.is_alive():
    change_pyspark()
from pyspark.core.context import SparkContext
from pyspark.sql.session import SparkSession
print(SparkSession.Builder.getOrCreate.__wrapped__.__module__, SparkContext.__init__.__wrapped__.__module__)
"""

pytestmark = pytest.mark.seed("AU2")


def loaded(folder: Path, line: str, **environment: str) -> dict[str, Any]:
    """Load an application with the given line at its top; return the error's fields, and whether a JVM exists."""
    (folder / "app.py").write_text(HEAD + line + TAIL)
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(folder / "app.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_functions_for_workers_need_no_session(tmp_path: Path) -> None:
    line = "\n".join(
        [
            'plain, typed = F.udf(lambda x: x), F.udf(lambda x: 1, "struct<a: int>")',
            'F.udf(returnType="array<decimal(3,1)>")(lambda x: [x]).asNondeterministic()',
            'pandas, arrow = F.pandas_udf("double")(lambda x: x), F.arrow_udf(lambda x: x, "int")',
            '@F.udtf(returnType="a: int")\nclass Rows:\n    def eval(self): yield 1,',
            'assert plain.func(3) == 3 and Rows.func.__name__ == "Rows"',
        ]
    )
    assert loaded(tmp_path, line) == {"jvm": False}
    assert loaded(tmp_path, line, SPARK_CONNECT_MODE_ENABLED="1") == {"jvm": False}


@pytest.mark.parametrize(
    "line",
    [
        'is_long = F.length("value") > 3',
        'by_user = Window.partitionBy("user")',
        'schema = StructType.fromDDL("a int")',
        'shout = F.udf(str.upper)("value")',
        "spark = SparkSession.builder.getOrCreate()",
        "import pyspark; sc = pyspark.SparkContext()",
    ],
)
def test_what_needs_a_session_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    found = loaded(tmp_path, line)
    assert found["id"] == "DECLARATION"
    assert [violation["id"] for violation in found["violations"]] == ["NEEDS_SESSION"]
    assert found["location"] == f"{tmp_path / 'app.py'}:{HEAD.count(chr(10)) + 1}"
    assert "frame.sparkSession" in found["remedy"]
    assert not found["jvm"]


def test_modules_are_loaded_while_another_thread_loads_pyspark() -> None:
    """A run of Dagster connects to Spark in a thread, and meanwhile loads the application."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CONNECTING], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["pyspark.sql.session", "pyspark.core.context"]


def test_pyspark_is_as_the_changes_expect_it() -> None:
    """If this fails, pyspark has changed its factories or its way to a session: adapt `jobs/graph/sessionless.py`."""
    code = """
import inspect
from pyspark.sql import functions, session, utils
from pyspark.core.context import SparkContext
made = sorted(name for name in functions.__all__ if name.endswith(("udf", "udtf")))
assert made == ["arrow_udf", "arrow_udtf", "call_udf", "pandas_udf", "udf", "udtf", "unwrap_udt"][:2] + made[2:], made
print(made)
assert "SPARK_CONNECT_MODE_ENABLED" in inspect.getsource(utils.is_remote)
assert list(inspect.signature(session.SparkSession.Builder.getOrCreate).parameters) == ["self"]
assert session.SparkSession._instantiatedSession is None and SparkContext._active_spark_context is None
for name in ("udf", "pandas_udf", "arrow_udf"):
    assert next(iter(inspect.signature(getattr(functions, name)).parameters)) == "f"
for name in ("udtf", "arrow_udtf"):
    assert next(iter(inspect.signature(getattr(functions, name)).parameters)) == "cls"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
