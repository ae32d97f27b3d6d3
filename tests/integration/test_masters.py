"""What Spark's own processes make of the settings `spark` and `spark_conf`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCTOR = (sys.executable, "-m", "drainmark.orchestration.cli.main", "doctor", "--json")


@pytest.mark.parametrize(
    ("master", "said"),
    [
        ("yarn", "HADOOP_CONF_DIR"),
        pytest.param("k8s://https://127.0.0.1:1", "Connection refused", marks=pytest.mark.slow),  # it is tried again
    ],
)
def test_a_cluster_that_is_not_there_is_told_in_the_words_of_spark(tmp_path: Path, master: str, said: str) -> None:
    """Settings, Spark's reading of its arguments, and its choice of a scheduler; none of it needs a cluster."""
    (tmp_path / "drainmark.toml").write_text(f'spark = "{master}"\n')
    kept = {name: value for name, value in os.environ.items() if name not in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")}
    ended = subprocess.run(DOCTOR, cwd=tmp_path, env=kept, capture_output=True, text=True, check=False)
    found = {each["check"]: each for each in json.loads(ended.stdout)["checks"]}
    assert found["engine"]["verdict"] != "ok"
    assert said in found["engine"]["message"]


def test_the_python_of_workers_is_that_of_the_settings(tmp_path: Path) -> None:
    python, called = tmp_path / "python", tmp_path / "called"
    python.write_text(f'#!/bin/sh\ntouch "{called}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    code = (
        "import sys, pathlib\n"
        "from drainmark.resources.spark.session import SparkEngine\n"
        "engine = SparkEngine('local[1]', {'spark.pyspark.python': sys.argv[1]}, pathlib.Path(sys.argv[2]))\n"
        "print(engine.session.sparkContext.parallelize([1], 1).map(lambda each: each + 1).collect())\n"
        "engine.stop()\n"
    )
    command = [sys.executable, "-c", code, str(python), str(tmp_path / "spark")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == "[2]", ended.stderr
    assert called.exists()
