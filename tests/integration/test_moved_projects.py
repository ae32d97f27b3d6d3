"""No committed file counts once more because its project was moved, or its folder has another name."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from followed import follow
from hand_runs import NoSpark, engine, without_spark
from harness import settle

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.doctor import repair
from drainmark.orchestration.workplace import moved_inputs
from drainmark.orchestration.workplace.declaration import remember
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.settings import Settings

__all__ = ["engine", "without_spark"]

pytestmark = pytest.mark.seed("I8")

APP = """\
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="{path}", pattern="*.csv", format="csv", schema="k string, v bigint"))
def rows(scanned):
    return scanned


totals = dm.aggregate(rows, keys=["k"], values={{"total": dm.sum("v")}}, name="totals")
dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))
"""


@pytest.fixture
def old(engine: NoSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with two committed files and a third one that no scan has seen."""
    root = tmp_path / "the old"
    (root / "inbox").mkdir(parents=True)
    (root / "app.py").write_text(APP.format(path="inbox"))
    (root / "drainmark.toml").write_text("")
    for name, value in (("1.csv", 1), ("2.csv", 10)):
        (root / "inbox" / name).write_text(f"tea,{value}\n")
    settle(root / "inbox")
    monkeypatch.delenv("DRAINMARK_HOME", raising=False)
    monkeypatch.chdir(root)
    assert invoke(["run", "app.py"]) == 0
    (root / "inbox" / "3.csv").write_text("tea,100\n")
    settle(root / "inbox")
    return root


def test_what_came_along_is_refused_and_is_read_from_its_new_place(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    old.rename(new)
    monkeypatch.chdir(new)
    assert committed(capsys) == 2, "status finds the file of the application where it is now"
    for verb in ("scan", "run"):
        remedy = refused(verb, capsys, [old / "inbox", new / "inbox"])
    follow(remedy, "reset", new / ".drainmark")
    assert invoke(["run", "app.py"]) == 0
    assert total(capsys) == 111


def test_what_came_along_with_a_home_of_an_earlier_release_is_refused(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0.3.0 noted no root of the project."""
    with closing(sqlite3.connect(old / ".drainmark" / "registry.db")) as registry:
        assert registry.execute("DELETE FROM drainmark_cursor WHERE source = '@project'").rowcount == 1
        registry.commit()
    new = tmp_path / "new"
    old.rename(new)
    monkeypatch.chdir(new)
    refused("run", capsys, [old / "inbox", new / "inbox"])


def test_a_project_that_is_named_by_a_link_is_not_looked_through_at_each_scan(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may name it so; the settings of a command line never do."""
    link = old.parent / "link"
    link.symlink_to(old)
    place = Workplace(Settings(home=old.parent / "anew", project_root=link))
    app = open_application(str(link / "app.py"))
    remember(place, app, app.region("app/rows"))
    monkeypatch.setattr(moved_inputs, "_files", None)
    remember(place, app, app.region("app/rows"))
    place.registry.close()


def test_who_leads_to_the_old_place_keeps_the_states(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    old.rename(new)
    monkeypatch.chdir(new)
    remedy = refused("run", capsys, [old / "inbox"])
    assert f'path="{old / "inbox"}"' in remedy
    link = shlex.split(remedy.partition("lead there: ")[2])
    assert link[:2] == ["ln", "-s"]
    os.symlink(*link[2:])
    (new / "app.py").write_text(APP.format(path=old / "inbox"))
    assert invoke(["run", "app.py"]) == 0
    assert total(capsys) == 111
    assert committed(capsys) == 3


def test_a_copy_with_its_home_begins_anew(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(old, copy)
    monkeypatch.chdir(copy)
    assert "--home" in refused("run", capsys, [old / "inbox", copy / "inbox"])
    assert invoke(["run", "app.py", "--home", "anew"]) == 0
    assert total(capsys, "--home", "anew") == 111


def test_a_project_whose_files_did_not_come_along_goes_on(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    old.rename(new)
    for name in ("1.csv", "2.csv"):
        os.unlink(new / "inbox" / name)
    monkeypatch.chdir(new)
    assert invoke(["run", "app.py"]) == 0
    assert total(capsys) == 111


@pytest.mark.parametrize("name", ["sub/../inbox", "link"])
def test_another_name_of_the_folder_is_refused_and_the_one_of_before_is_told(
    old: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (old / "sub").mkdir()
    (old / "link").symlink_to(old / "inbox")
    remedy = refused("run", capsys, [old / name, old / "inbox"], "--input", name)
    told = re.search(r"--input (.+), or", remedy)
    assert told is not None
    assert invoke(["run", "app.py", "--input", *shlex.split(told[1])]) == 0
    assert total(capsys) == 111


def test_another_folder_with_files_of_the_same_names_is_read(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(old / "inbox", old / "second")
    assert invoke(["run", "app.py", "--input", "second"]) == 0
    assert invoke(["run", "app.py", "--input", "inbox"]) == 0
    assert total(capsys) == 222


def test_every_name_that_a_folder_ever_had_is_known(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not only the last one: another folder may have been read in between."""
    (old / "link").symlink_to(old / "inbox")
    (old / "second").mkdir()
    (old / "second" / "a.csv").write_text("tea,1000\n")
    settle(old / "second")
    assert invoke(["run", "app.py", "--input", "second"]) == 0
    refused("run", capsys, [old / "link", old / "inbox"], "--input", "link")
    for name in ("inbox", "second", "inbox"):
        assert invoke(["run", "app.py", "--input", name]) == 0
    refused("run", capsys, [old / "link", old / "inbox"], "--input", "link")
    assert total(capsys) == 1111


def test_a_folder_of_before_that_now_leads_to_a_later_one_is_refused(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (old / "second").mkdir()
    (old / "second" / "a.csv").write_text("tea,1000\n")
    settle(old / "second")
    assert invoke(["run", "app.py", "--input", "second"]) == 0
    (old / "inbox").rename(old / "away")
    (old / "inbox").symlink_to(old / "second")
    told = re.search(r"--input (.+), or", refused("run", capsys, [old / "inbox", old / "second"]))
    assert told is not None
    assert invoke(["run", "app.py", "--input", *shlex.split(told[1])]) == 0
    assert total(capsys) == 1011


def lose_registry(root: Path) -> Workplace:
    for part in (root / ".drainmark").glob("registry.db*"):
        part.unlink()
    return Workplace(Settings(home=root / ".drainmark", project_root=root))


@pytest.mark.parametrize("code", [("app.py",), ()])
@pytest.mark.parametrize("is_copy", [False, True])
def test_a_repair_of_a_lost_registry_knows_that_the_project_was_moved(
    old: Path, is_copy: bool, code: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = old.parent / "new"
    shutil.copytree(old, new) if is_copy else old.rename(new)
    place = lose_registry(new)
    monkeypatch.chdir(new)
    with pytest.raises(UsageError, match=re.escape(str(old / "inbox"))) if code else nullcontext():
        repair(place, applications=code)
    place.registry.close()
    remedies = {refused(verb, capsys, [old / "inbox", new / "inbox"]) for verb in ("scan", "run")}
    assert total(capsys) == 11
    if is_copy:
        assert invoke(["run", "app.py", "--home", "anew"]) == 0
        assert total(capsys, "--home", "anew") == 111
    else:
        follow(remedies.pop(), "reset", new / ".drainmark")
        assert invoke(["run", "app.py"]) == 0
        assert total(capsys) == 111


def test_a_former_place_that_nobody_can_look_at_ends_no_run(
    old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be below another user's folder, or on a mount that is gone; here the system refuses the name."""
    place = Workplace(Settings(home=old / ".drainmark", project_root=old))
    moved_inputs.note_folders(place, "app/rows", {"rows": [Path("/", "x" * 300), old / "inbox"]})
    place.registry.close()
    shutil.copytree(old / "inbox", old / "second")
    assert invoke(["run", "app.py", "--input", "second"]) == 0
    assert total(capsys) == 122
    new = old.parent / "new"
    old.rename(new)
    old.write_text("a file, below which nothing can be")
    lose_registry(new).registry.close()
    monkeypatch.chdir(new)
    repair(Workplace(Settings(home=new / ".drainmark", project_root=new)))
    refused("run", capsys, [old / "inbox", new / "inbox"])


@pytest.mark.parametrize("code", [("app.py",), ()])
def test_a_repair_of_a_lost_registry_takes_new_files_where_nothing_was_moved(
    old: Path, code: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    place = lose_registry(old)
    repair(place, applications=code)
    place.registry.close()
    (old / "link").symlink_to(old / "inbox")
    refused("run", capsys, [old / "link", old / "inbox"], "--input", "link")
    assert invoke(["run", "app.py"]) == 0
    assert total(capsys) == 111


def test_a_repair_of_a_lost_registry_knows_the_folder_above_those_of_its_files(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (old / "deep" / "day").mkdir(parents=True)
    (old / "deep" / "day" / "a.csv").write_text("tea,1000\n")
    settle(old / "deep" / "day")
    (old / "app.py").write_text(APP.format(path="deep").replace("pattern", "recursive=True, pattern"))
    assert invoke(["run", "app.py"]) == 0
    place = lose_registry(old)
    repair(place)
    place.registry.close()
    (old / "link").symlink_to(old / "deep")
    refused("run", capsys, [old / "link", old / "deep"], "--input", "link")
    assert invoke(["run", "app.py"]) == 0
    assert total(capsys) == 1011


@pytest.mark.parametrize("declared", ["../data", "link"])
@pytest.mark.parametrize("asked", ["../data/*.csv", "link/*.csv", "../data"])
def test_a_backfill_knows_the_files_by_the_names_of_the_scan(
    old: Path, declared: str, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (old / "inbox").rename(old.parent / "data")
    (old / "link").symlink_to(old.parent / "data")
    (old / "other.py").write_text(APP.format(path=declared).replace('"totals"', '"others"'))
    assert invoke(["run", "other.py"]) == 0
    capsys.readouterr()
    assert invoke(["backfill", "other", "--input", asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["committed"], found["queued"]) == (3, 0)


def refused(verb: str, capsys: pytest.CaptureFixture[str], named: list[Path], *options: str) -> str:
    capsys.readouterr()
    assert invoke([verb, "app.py", "--json", *options]) == 2
    error = json.loads(capsys.readouterr().err.splitlines()[-1])["error"]
    assert error["id"] == "USAGE"
    assert all(str(path) in error["message"] for path in named)
    remedy: str = error["remedy"]
    return remedy


def total(capsys: pytest.CaptureFixture[str], *options: str) -> int:
    capsys.readouterr()
    assert invoke(["show", "totals", "--json", *options]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    found: int = row["total"]
    return found


def committed(capsys: pytest.CaptureFixture[str]) -> int:
    capsys.readouterr()
    assert invoke(["status", "app", "--json"]) == 0
    found: int = json.loads(capsys.readouterr().out)[0]["committed_sequence_id"]
    return found
