"""The applications that Dagster's code location loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.workplace.declaration import served_applications
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings, load_settings

APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="text"))
def lines(scanned):
    return scanned

dm.sink(lines, dm.DeltaAppend("copied"))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with two application files whose settings name no application."""
    (tmp_path / "inbox").mkdir()
    (tmp_path / "drainmark.toml").touch()
    for name in ("copies", "others"):
        (tmp_path / f"{name}.py").write_text(APPLICATION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAINMARK_HOME", raising=False)
    return tmp_path


def served(**changes: object) -> list[str]:
    settings = load_settings().model_copy(update=changes)
    return served_applications(settings, Workplace(settings))


def test_what_ran_is_served_where_no_application_is_named_and_no_example_ever(project: Path) -> None:
    assert served() == []
    assert invoke(["scan", "copies.py"]) == 0
    assert served() == [str(project / "copies.py")]
    named = ("others.py", "word_count")
    assert served(applications=named) == [str(project / "others.py"), "word_count"], "and not what was only tried"
    (project / "copies.py").unlink()
    assert served() == []


def test_a_registry_that_does_not_answer_takes_no_named_application_along(tmp_path: Path) -> None:
    nobody = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    settings = Settings(home=tmp_path, project_root=tmp_path, registry_url=nobody)
    assert served_applications(settings, Workplace(settings)) == []
    named = settings.model_copy(update={"applications": ("word_count",)})
    assert served_applications(named, Workplace(named)) == ["word_count"]
