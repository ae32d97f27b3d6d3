"""The settings with which Spark's JVM starts."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark import SparkContext

from drainmark.resources.spark import session
from drainmark.resources.spark.session_settings import SessionSettings
from drainmark.resources.spark.unnamed_user import java_program

OPTIONS = "spark.driver.extraJavaOptions"


@pytest.mark.parametrize(
    ("conf", "limit"), [({}, "50000"), ({OPTIONS: "-XX:Tier4InvocationThreshold=5000 -Dsaid='a b'"}, "5000")]
)
def test_java_has_our_limits_of_its_second_compiler_or_those_of_the_user(
    conf: Mapping[str, str], limit: str, tmp_path: Path
) -> None:
    java = java_program()
    assert java is not None
    options = SessionSettings(master="local[*]", conf=conf, scratch=tmp_path).of_start()[OPTIONS]
    command = [java, *shlex.split(options), "-XX:+PrintFlagsFinal", "-XshowSettings:properties", "-version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    flags = dict(re.findall(r"(\w+) += (\S+)", told.stdout + told.stderr))
    assert flags["Tier4InvocationThreshold"] == limit
    assert flags["Tier4BackEdgeThreshold"] == "400000"
    assert "user.timezone = UTC" in told.stderr


def test_drivers_of_containers_with_equal_pids_start_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors for containers start an op in each, with one home: the first program of every container has pid 1."""
    read: list[str] = []

    def starts(context: type[SparkContext]) -> None:
        mine = Path(shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])[1])
        assert mine.stat().st_mode & 0o077 == 0
        if not read:
            read.append("begun")
            session._launch({"spark.app.name": "second"}, tmp_path)
        read.append(mine.read_text())

    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", classmethod(starts))
    session._launch({"spark.app.name": "first"}, tmp_path)
    assert [text.strip() for text in read[1:]] == ["spark.app.name=second", "spark.app.name=first"]
    assert list(tmp_path.iterdir()) == []
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ
