"""A user id that the password file does not know: `drainmark` and Spark work as for any other."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from nobody import UID, as_nobody, needs_root

from drainmark.resources.spark.session_settings import delta_settings

pytestmark = needs_root

DRAINMARK = (sys.executable, "-m", "drainmark.orchestration.cli.main")
JARS = Path(pyspark.__file__).parent / "jars"
APP = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="in", pattern="*.csv", format="csv", schema="k string, v bigint", settle=0))
def rows(scanned):
    return scanned


dm.sink(rows, dm.DeltaAppend("rows"))
"""


@pytest.fixture
def project() -> Iterator[Path]:
    """Yield a project of that user; the folders of pytest are for root alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        (folder / "app.py").write_text(APP)
        (folder / "drainmark.toml").write_text('applications = ["app.py"]\nspark_master = "local[1]"\n')
        (folder / "in").mkdir()
        (folder / "in" / "1.csv").write_text("a,1\n")
        yield folder


def test_java_has_a_name_for_it(project: Path) -> None:
    """Hadoop, which opens all files of Spark, refuses to work for a user without a name."""
    code = (
        "import pathlib, shlex, subprocess, sys\n"
        "from drainmark.resources.spark.unnamed_user import java_options\n"
        "options = shlex.split(java_options(pathlib.Path('scratch')))\n"
        "who = 'org.apache.hadoop.security.UserGroupInformation'\n"
        "sys.exit(subprocess.run(['java', *options, '-cp', sys.argv[1], who]).returncode)"
    )
    ended = as_nobody([sys.executable, "-c", code, f"{JARS}/*"], project)
    assert f"User: {UID}" in ended.stdout, ended.stderr


def test_a_path_from_a_home_that_it_does_not_have_is_refused(project: Path) -> None:
    ended = as_nobody([*DRAINMARK, "status", "--home", "~/home", "--json"], project)
    assert ended.returncode == 2
    error = json.loads(ended.stderr.splitlines()[-1])["error"]
    assert error["id"] == "USAGE"
    assert "HOME" in error["remedy"]
    assert as_nobody([*DRAINMARK, "status"], project, DRAINMARK_HOME="~/home", HOME=str(project)).returncode == 0


def test_a_spark_of_another_user_is_left_and_named(project: Path) -> None:
    code = (
        "import sys\n"
        "from drainmark.jobs.errors import UsageError\n"
        "from drainmark.orchestration.verbs.residents import stop\n"
        "try: stop([{'keeper': int(pid)} for pid in sys.argv[1:]])\n"
        "except UsageError as error: print(error, error.remedy)"
    )
    with subprocess.Popen(["sleep", "100"]) as keeper:
        ended = as_nobody([sys.executable, "-c", code, str(keeper.pid)], project)
        assert keeper.poll() is None
        keeper.kill()
    assert str(keeper.pid) in ended.stdout, ended.stderr
    assert "as root" in ended.stdout


@pytest.mark.slow
def test_it_runs_an_application_on_spark(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("home")  # of root, as `/` is
    cache = Path(delta_settings()["spark.jars"].split(",")[0]).parents[1]
    (home / cache.name).symlink_to(cache)
    ran = as_nobody([*DRAINMARK, "run", "app.py"], project, HOME=str(home))
    assert ran.returncode == 0, ran.stderr
    shown = as_nobody([*DRAINMARK, "show", "rows", "--json"], project, HOME=str(home))
    assert shown.returncode == 0, shown.stderr
    assert [(row["k"], row["v"]) for row in json.loads(shown.stdout)] == [("a", 1)]
    found = as_nobody([*DRAINMARK, "doctor", "--json"], project, HOME=str(home))
    assert found.returncode == 0, found.stdout
