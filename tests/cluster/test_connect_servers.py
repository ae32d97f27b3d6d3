"""A Connect server that others run on this machine: it may have another disk and another Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusters import Project, connect_server, python_without_drainmark, why_not_isolated

slow = pytest.mark.slow
needs_namespaces = pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated())
pytestmark = pytest.mark.seed("DX1", "DX4")

APP = """
from dataclasses import dataclass

import drainmark as dm


@dataclass
class Seen:
    n: int = 0


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, n int", settle=0))
def events(scanned):
    return scanned


@dm.custom(keys=["k"], state=Seen, output="k string, total int", batch="arrow")
def totals(state, events):
    import pyarrow.compute as pc

    n = (state.n if state else 0) + pc.sum(events["n"]).as_py()
    return Seen(n), events.slice(0, 1).select(["k"]).append_column("total", pc.cast([n], "int32"))


dm.sink(totals, dm.DeltaAppend("totals"))
"""
"""An application with a function that workers call through a function of Drainmark."""
FILES = {"0.csv": "a,1\nb,2\n", "1.csv": "a,3\n"}

OTHER = {f"drainmark/{name}": "" for name in ("__init__.py", "jobs/__init__.py", "jobs/errors.py")}
"""Files of another Drainmark, which lacks the code that workers need."""


def project(folder: Path, master: str) -> Project:
    found = Project(folder, master)
    found.write(APP, FILES, small_group_bytes=0)
    return found


def require_whole(found: Project) -> None:
    ran = found.drainmark("run", "app.py")
    assert ran.code == 0, ran.told
    assert sorted((row["k"], row["total"]) for row in found.rows("totals")) == [("a", 1), ("a", 4), ("b", 2)]


@pytest.mark.slow
@needs_namespaces
def test_a_server_that_does_not_see_home_is_refused(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    with connect_server(tmp_path / "server", hidden=[hidden]) as master:
        found = project(hidden / "project", master)
        ran = found.drainmark("run", "app.py")
    assert (ran.code, ran.error["id"]) == (2, "CLUSTER_REFUSED"), ran.told
    assert str(found.folder / "home") in ran.error["message"]
    assert not list((found.folder / "home").glob("*/*/*/_delta_log"))


@slow
def test_workers_whose_python_has_no_drainmark_get_it(tmp_path: Path) -> None:
    python = python_without_drainmark(tmp_path / "env")
    with connect_server(tmp_path / "server", python=python) as master:
        require_whole(project(tmp_path / "project", master))


@slow
def test_workers_whose_python_has_another_drainmark_use_what_was_sent(tmp_path: Path) -> None:
    python = python_without_drainmark(tmp_path / "env", OTHER)
    with connect_server(tmp_path / "server", python=python) as master:
        require_whole(project(tmp_path / "project", master))


@slow
def test_workers_that_loaded_another_drainmark_before_are_refused(tmp_path: Path) -> None:
    python = python_without_drainmark(tmp_path / "env", {**OTHER, "sitecustomize.py": "import drainmark.jobs.errors"})
    with connect_server(tmp_path / "server", python=python) as master:
        ran = project(tmp_path / "project", master).drainmark("run", "app.py")
    assert (ran.code, ran.error["id"]) == (2, "CLUSTER_REFUSED"), ran.told
    assert str(tmp_path / "env") in ran.error["message"]


@slow
def test_workers_of_another_version_of_python_are_refused_by_it(tmp_path: Path) -> None:
    version = "namedtuple('V', 'major minor micro releaselevel serial')(3, 99, 0, 'final', 0)"
    other = f"import sys\nfrom collections import namedtuple\nsys.version_info = {version}\n"
    python = python_without_drainmark(tmp_path / "env", {"sitecustomize.py": other})
    with connect_server(tmp_path / "server", python=python) as master:
        ran = project(tmp_path / "project", master).drainmark("run", "app.py")
    assert (ran.code, ran.error["id"]) == (2, "CLUSTER_REFUSED"), ran.told
    assert "3.99" in ran.error["message"]
