"""The settings with which Spark's JVM starts."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

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
