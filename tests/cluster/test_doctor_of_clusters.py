"""`doctor` on executors that lack something: its findings; it continues after them."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusters import Project, Ran, connect_server, python_without_drainmark, standalone, why_not_isolated
from test_connect_servers import APP, FILES, project

needs_namespaces = pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated())
pytestmark = pytest.mark.seed("DX1", "DX4")


def examined(found: Project, code: int) -> dict[str, dict[str, str]]:
    """Return the findings of `doctor` about the engine, by check."""
    ran: Ran = found.drainmark("doctor")
    assert ran.code == code, ran.told
    assert not list((found.folder / "home").glob("_drainmark_probe*")), "it leaves nothing behind"
    assert not list((found.folder / "home").glob(".reach*"))
    return {entry["check"]: entry for entry in ran.printed["checks"] if entry["check"].startswith("engine")}


def verdicts(found: dict[str, dict[str, str]]) -> dict[str, str]:
    return {check: entry["verdict"] for check, entry in found.items()}


@pytest.mark.slow
@needs_namespaces
def test_executors_that_do_not_see_home_are_told_and_what_they_have_as_well(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    with connect_server(tmp_path / "server", hidden=[hidden]) as master:
        found = examined(project(hidden / "project", master), 1)
    assert verdicts(found) == {"engine": "ok", "engine_versions": "ok", "engine_reach": "fail"}
    assert str(hidden / "project" / "home") in found["engine_reach"]["message"]
    assert "spark_master" in found["engine_reach"]["remedy"]


@pytest.mark.slow
def test_executors_without_pandas_do_groups_and_that_is_told(tmp_path: Path) -> None:
    python = python_without_drainmark(tmp_path / "env", lacking=["pandas"])
    with connect_server(tmp_path / "server", python=python) as master:
        found = examined(project(tmp_path / "project", master), 0)
    assert verdicts(found) == {"engine": "ok", "engine_versions": "warn", "engine_reach": "ok", "engine_group": "ok"}
    assert "no pandas" in found["engine_versions"]["message"]


@pytest.mark.slow
def test_executors_that_run_no_functions_are_told(tmp_path: Path) -> None:
    python = python_without_drainmark(tmp_path / "env", lacking=["pyarrow"])
    with connect_server(tmp_path / "server", python=python) as master:
        found = examined(project(tmp_path / "project", master), 1)
    assert verdicts(found) == {"engine": "ok", "engine_versions": "fail"}
    assert "pyarrow" in found["engine_versions"]["message"]


SECRET = {"spark.authenticate": "true", "spark.authenticate.secret": "of-this-cluster"}


@pytest.mark.slow
@pytest.mark.parametrize("conf", [{}, SECRET], ids=["open", "secret"])
def test_a_cluster_that_asks_for_no_secret_is_told_and_the_remedy_works(tmp_path: Path, conf: dict[str, str]) -> None:
    with standalone(tmp_path / "cluster", defaults=conf) as master:
        own = Project(tmp_path / "project", master, conf)
        own.write(APP, FILES)
        found = examined(own, 0)
    assert found["engine_group"]["verdict"] == "ok"
    assert "engine_ports" not in found if conf else "spark.authenticate.secret" in found["engine_ports"]["remedy"]
