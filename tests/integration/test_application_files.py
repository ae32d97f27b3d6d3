"""Two files with the same name are not one region: the second is refused, but a file that was moved is not (RT8)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from drainmark.jobs.graph.application import file_of
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.dagster_jobs.factory import build_definitions
from drainmark.orchestration.workplace.application_identity import PROJECT
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.registry.registry import Registry
from drainmark.resources.settings import Settings, load_settings

pytestmark = pytest.mark.seed("RT8")

APP = """\
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="{name}/inbox", pattern="*.csv", format="csv", schema="k string, v bigint"))
def rows(scanned):
    return scanned


totals = dm.aggregate(rows, keys=["k"], values={{"total": dm.sum("v")}}, name="totals")
dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project of two folders with an `app.py` each; only the first one was scanned."""
    root = tmp_path / "project"
    for name in ("shop", "bank"):
        (root / name / "inbox").mkdir(parents=True)
        (root / name / "app.py").write_text(APP.format(name=name))
    (root / "drainmark.toml").write_text("")
    monkeypatch.chdir(root)
    monkeypatch.delenv("DRAINMARK_HOME", raising=False)
    assert invoke(["scan", "shop/app.py"]) == 0
    return root


@pytest.mark.parametrize("verb", ["scan", "run", "plan"])
def test_a_second_file_of_a_name_is_refused(project: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused before anything is noted or started: no file of its inbox becomes pending in the other's region."""
    (project / "bank" / "inbox" / "1.csv").write_text("k,1\n")
    assert invoke([verb, "bank/app.py", "--json"]) == 2
    told = capsys.readouterr().err
    assert str(project / "shop" / "app.py") in told
    assert str(project / "bank" / "app.py") in told
    with_both = Workplace(load_settings())
    assert with_both.registry.pending_count("app/rows") == 0
    with_both.registry.close()
    assert invoke(["scan", "shop/app.py"]) == 0


def test_a_home_of_its_own_takes_it(project: Path, tmp_path: Path) -> None:
    assert invoke(["scan", "bank/app.py", "--home", str(tmp_path / "other")]) == 0


@pytest.mark.parametrize("kept", [True, False], ids=["today", "0.3.0"])
def test_who_ran_it_before_this_was_noted_keeps_it(project: Path, kept: bool) -> None:
    if not kept:
        forget_root(project)
    assert invoke(["scan", "bank/app.py"]) == 2


@pytest.mark.parametrize("kept", [True, False], ids=["today", "0.3.0"])
def test_a_moved_file_and_a_copied_project_go_on(
    project: Path, tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not kept:
        forget_root(project)
    shutil.copytree(project, tmp_path / "copied")
    monkeypatch.chdir(tmp_path / "copied")
    assert invoke(["scan", "shop/app.py"]) == 0
    assert not caplog.records
    monkeypatch.chdir(project)
    (project / "shop" / "app.py").rename(project / "app.py")
    assert invoke(["scan", "app.py"]) == 0
    assert [str(project / "shop" / "app.py") in record.getMessage() for record in caplog.records] == [True]
    assert invoke(["scan", "bank/app.py"]) == 2, "from here on it is that file's"


def forget_root(project: Path) -> None:
    registry = Registry(load_settings().registry_url)
    with registry.database.writing() as connection:
        connection.exec_driver_sql(f"DELETE FROM drainmark_cursor WHERE source = '{PROJECT}'")  # noqa: S608
    registry.close()


@pytest.mark.parametrize("first", ["shop", "bank"])
def test_a_code_location_with_both_has_the_first_and_says_so(project: Path, first: str) -> None:
    """The first wins even if the region was last run from the second, and its stand-in had a job of that name."""
    second = {"shop": "bank", "bank": "shop"}[first]
    settings = Settings(
        home=load_settings().home, project_root=project, applications=(f"{first}/app.py", f"{second}/app.py")
    )  # fmt: skip
    found = build_definitions(settings)
    told = [sensor.description or "" for sensor in found.sensors or ()]
    (said,) = (text for text in told if "cannot be loaded" in text)
    assert said.startswith(f"`{project / second / 'app.py'}")
    assert str(project / first / "app.py") in said


def test_only_what_names_a_file_is_one() -> None:
    """An application that was built by hand may have the name of a Python module of the standard library."""
    assert file_of("numbers") is None
    assert file_of("no.such.module") is None
    found = file_of("word_count")
    assert found is not None
    assert found.is_file()
    assert file_of("shop/app.py") == Path("shop/app.py")
