"""What left the code of an application: `status` tells it, `plan` says what a run would refuse; without Spark."""

from __future__ import annotations

import json

import pytest
from followed import follow
from hand_runs import engine, without_spark
from test_deploys import APPLICATION, Project, project

from drainmark.orchestration.cli.main import invoke

__all__ = ["engine", "project", "without_spark"]

RENAMED = APPLICATION.replace("def rows", "def lines").replace("(rows)", "(lines)").replace("rows]", "lines]")
ONE = RENAMED.replace("settle=0", 'settle=0, on_bad="halt"')
BOTH = (
    ONE
    + """
@dm.consistent(trigger="operator-driven")
@dm.source(
    dm.DirectoryScan(path="inbox", format="csv", schema="item string, n bigint", pattern="*", settle=0, on_bad="halt")
)
def rows(scanned):
    return scanned

dm.sink(rows, dm.DeltaAppend("others"))
"""
)


@pytest.mark.seed("LC5")
def test_a_start_that_was_renamed_leaves_a_region_that_can_be_dropped(project: Project) -> None:
    project.run(APPLICATION, files=2)
    (project.root / "app.py").write_text(RENAMED)
    said = follow(project.said("run", "app.py", code=2), "tables", project.root / "home")
    assert "app/rows is dropped" in said
    project.run(RENAMED)
    assert [entry["region"] for entry in json.loads(project.said("status", "--json"))] == ["app/lines"]
    assert len(json.loads(project.said("show", "prices", "--json"))) == 3, "the files are read again"


@pytest.mark.seed("LC5")
def test_a_region_that_left_is_told_until_it_is_dropped(project: Project) -> None:
    project.run(BOTH)
    project.run(ONE)
    told = {entry["region"]: entry for entry in json.loads(project.said("status", "--json"))}
    assert {name: entry["has_left"] for name, entry in told.items()} == {"app/lines": False, "app/rows": True}
    assert "app/rows left the code" in project.said("status")
    assert [entry["sequence_id"] for entry in project.history()], "APP is the one region that the code has"
    refused = project.said("tables", "drop", "--region", "app/lines", "--yes", code=2)
    assert "app/lines is of the code" in refused
    left = {entry["table"] for entry in json.loads(project.said("tables", "--left", "--json"))}
    assert "lake/others" in left
    assert "lake/prices" not in left
    follow(project.said("plan", "app.py"), "tables", project.root / "home")
    assert [entry["region"] for entry in json.loads(project.said("status", "--json"))] == ["app/lines"]
    assert "lake/others" not in project.said("tables")


@pytest.mark.seed("LC5")
def test_regions_without_code_are_listed_also_if_no_run_came_since(project: Project) -> None:
    project.run(BOTH)
    assert json.loads(project.said("apps", "--left", "--json")) == []
    (project.root / "app.py").write_text(ONE)
    (found,) = json.loads(project.said("apps", "--left", "--json"))
    assert (found["region"], found["error"]) == ("app/rows", None)
    assert "lake/others" in found["tables"]
    (project.root / "app.py").write_text("1 / 0\n")
    assert all(each["error"] for each in json.loads(project.said("apps", "--left", "--json"))), "nobody can say"
    (project.root / "app.py").write_text(ONE)
    follow(project.said("apps", "--left"), "tables", project.root / "home")
    assert json.loads(project.said("apps", "--left", "--json")) == []


@pytest.mark.seed("LC5")
def test_a_region_that_comes_back_has_not_left(project: Project) -> None:
    for code in (BOTH, ONE, BOTH):
        project.run(code)
    assert not any(entry["has_left"] for entry in json.loads(project.said("status", "--json")))


@pytest.mark.seed("LC4", "LC5")
def test_nobody_drops_a_region_whose_code_cannot_be_opened(project: Project) -> None:
    project.run(APPLICATION)
    (project.root / "app.py").write_text("import drainmark as dm\nraise RuntimeError\n")
    refused = project.said("tables", "drop", "--region", "app/rows", "--yes", code=2)
    assert "cannot be opened" in refused
    (project.root / "app.py").unlink()
    (project.root / "drainmark.toml").write_text('home = "home"\n')
    assert invoke(["tables", "drop", "--region", "app/rows", "--yes"]) == 0


@pytest.mark.seed("LC7")
def test_plan_says_that_a_halted_region_waits(project: Project) -> None:
    project.run(APPLICATION)
    assert invoke(["halt", "app", "--reason", "prices are wrong"]) == 0
    for code in (APPLICATION, APPLICATION.replace("* 2", "* 3")):
        (project.root / "app.py").write_text(code)
        project.capsys.readouterr()
        assert invoke(["plan", "app.py"]) == 1
        said = project.capsys.readouterr().out
        assert "prices are wrong" in said
    follow(said, "resume", project.root / "home")
    assert invoke(["plan", "app.py"]) == 0


@pytest.mark.seed("LC7")
def test_plan_refuses_what_run_refuses_with_the_same_words(project: Project) -> None:
    project.run(APPLICATION)
    (project.root / "app.py").write_text(RENAMED)
    planned, ran = project.said("plan", "app.py", code=2), project.said("run", "app.py", code=2)
    assert planned == ran
    assert "FOREIGN_TABLE" in project.said("plan", "app.py", "--json", code=2)


@pytest.mark.seed("LC7")
def test_plan_says_that_the_registry_is_lost(project: Project) -> None:
    project.run(APPLICATION)
    for path in (project.root / "home").glob("registry.db*"):
        path.unlink()
    (project.root / "app.py").write_text(APPLICATION.replace("* 2", "* 3"))
    project.capsys.readouterr()
    assert invoke(["plan", "app.py"]) == 1
    said = project.capsys.readouterr().out
    assert "drainmark doctor --repair" in said
    assert "drainmark doctor --repair" in project.said("run", "app.py", code=1)
