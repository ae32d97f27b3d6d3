"""The text of `status` for a region that never ran, and for a region after the death of its owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from by_hand import HandFed
from harness import LONG_AGO

from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.registry.queries import SqliteLooks
from drainmark.resources.settings import Settings

BEGUN = """
import sys, time; from pathlib import Path
from drainmark.orchestration.workplace.run_processes import on_its_way
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings
home = Path(sys.argv[1])
with on_its_way(Workplace(Settings(home=home, project_root=home.parent)), "copies/lines", "r"):
    print(flush=True)
    time.sleep(600)
"""
KILLED = """
import os, signal, sys; from pathlib import Path
from by_hand import HandFed
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings
home, inbox = map(Path, sys.argv[1:])
scene = HandFed(Workplace(Settings(home=home, project_root=home.parent)), inbox)
scene.write("a", ["1"]), scene.add("a")
with scene.owning():
    scene.process(1)
    os.kill(os.getpid(), signal.SIGKILL)
"""
APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="text"))
def lines(scanned):
    return scanned

dm.sink(lines, dm.DeltaAppend("copied"))
"""


@pytest.fixture
def never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project as `init` writes it, with its application in a subfolder."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "copies.py").write_text(APPLICATION)
    (tmp_path / "drainmark.toml").write_text('applications = ["code/copies.py"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAINMARK_HOME", raising=False)
    return tmp_path


def test_a_region_that_never_ran_has_one_name_for_all_verbs(
    never_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("history", "metrics", "report"):
        assert invoke([verb, "copies"]) == 0, (verb, capsys.readouterr().err)
    for name in ("copies", "copies/lines", "code/copies.py", "code/copies.py/lines"):
        assert invoke(["status", name]) == 0, capsys.readouterr().err
        assert "copies/lines  STARTED" in capsys.readouterr().out
        for verb in ("reset", "gc"):
            assert invoke([verb, name]) == 2
            assert "region 'copies/lines' has never run" in capsys.readouterr().err
    assert invoke(["halt", "copies", "--reason", "not yet"]) == 0
    assert capsys.readouterr().out.startswith("copies/lines is halted")


def test_a_name_that_nobody_knows_is_refused_with_those_that_are_known(
    never_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("status", "history"):
        assert invoke([verb, "nobody"]) == 2
        assert "copies" in capsys.readouterr().err
        assert invoke([verb, "copies/nobody"]) == 2
        assert "copies/lines" in capsys.readouterr().err
    (never_run / "code" / "copies.py").unlink()
    for verb in ("status", "history"):
        assert invoke([verb, "copies"]) == 2
        assert str(never_run / "code" / "copies.py") in capsys.readouterr().err


def test_a_registry_is_called_lost_only_where_there_was_one(
    never_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["status", "copies"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3, "a head, a row, and where it is"
    assert invoke(["halt", "copies", "--reason", "not yet"]) == 0
    (never_run / ".drainmark" / "registry.db").unlink()
    capsys.readouterr()
    assert invoke(["status", "copies"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == [
        "copies/lines waits for you: drainmark resume copies/lines",
        "the registry of copies/lines is lost: drainmark doctor --repair",
    ]


def test_a_region_whose_owner_was_killed_says_so_and_what_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "-c", KILLED, str(home), str(tmp_path / "inbox")]
    child = subprocess.Popen(command, cwd=Path(__file__).parents[1], stderr=subprocess.PIPE)
    _, error = child.communicate()
    assert child.returncode == -signal.SIGKILL, error
    opened = []
    looks = SqliteLooks.is_of_today
    monkeypatch.setattr(SqliteLooks, "is_of_today", lambda file: opened.append(file) or looks(file))
    assert invoke(["status", "--home", str(home)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"by_hand/files lost its owner, pid {child.pid} on ")
    assert last.endswith("; it recovers with the next run: drainmark run by_hand")
    assert len(opened) == 1, "all that is said is of one look at the registry"
    assert invoke(["status", "--json", "--home", str(home)]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["owner"], entry["lost_owner"]["pid"]) == (None, child.pid)

    place = Workplace(Settings(home=home, project_root=tmp_path))
    HandFed(place, tmp_path / "inbox").drain()
    place.registry.close()
    assert invoke(["status", "--home", str(home)]) == 0
    assert "recovers" not in capsys.readouterr().out
    assert invoke(["status", "--json", "--home", str(home)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["lost_owner"] is None


def test_a_region_whose_owner_left_it_unhealthy_says_what_recovers_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = HandFed(Workplace(Settings(home=tmp_path / "home", project_root=tmp_path)), tmp_path / "inbox")
    scene.write("a", ["1"])
    scene.add("a")
    scene.crash_after(1)
    scene.workplace.registry.close()
    assert invoke(["status", "--home", str(tmp_path / "home")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "by_hand/files recovers with the next run: drainmark run by_hand"


def test_a_check_of_a_home_that_is_not_there_fails_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the check of a misspelt home would always be green."""
    typo = tmp_path / "hmoe"
    assert invoke(["status", "--home", str(typo)]) == 0
    assert str(typo) in capsys.readouterr().out
    assert invoke(["status", "--check", "--home", str(typo)]) == 3
    assert str(typo) in capsys.readouterr().err
    assert invoke(["status", "--check", "--json", "--home", str(typo)]) == 3
    told = capsys.readouterr()
    assert (json.loads(told.out), json.loads(told.err)["error"]["id"]) == ([], "HOME_NOT_FOUND")
    typo.mkdir()
    assert invoke(["status", "--check", "--home", str(typo)]) == 0, "nothing has run there"


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_a_check_without_the_registry_fails(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = HandFed(place, tmp_path / "inbox")
    scene.write("a", ["1"])
    scene.add("a")
    scene.drain()
    place.registry.close()
    arguments = ["status", "--check", "--home", str(place.home)]
    assert invoke(arguments) == 0
    (place.home / "registry.db").unlink()
    if damage == "damaged":
        (place.home / "registry.db").write_text("no database " * 1000)
    assert invoke(arguments) == 3
    ended = capsys.readouterr()
    assert "drainmark doctor" in ended.out + ended.err


def test_a_run_that_has_not_claimed_yet_is_named_and_no_other_is_advised(
    never_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may start Spark for a minute: until then the region looks as if nobody were at work."""
    (never_run / "inbox").mkdir()
    (never_run / "inbox" / "a.txt").write_text("a\n")
    os.utime(never_run / "inbox" / "a.txt", (LONG_AGO, LONG_AGO))
    assert invoke(["scan", "copies"]) == 0
    run = "drainmark run"
    with subprocess.Popen(
        [sys.executable, "-c", BEGUN, str(never_run / ".drainmark")], stdout=subprocess.PIPE
    ) as begun:
        assert begun.stdout is not None
        begun.stdout.readline()
        capsys.readouterr()
        assert invoke(["status", "copies"]) == 0
        assert f"copies/lines waits for pid {begun.pid} on " in capsys.readouterr().out
        assert invoke(["status", "copies", "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)
        assert (told["begun"]["pid"], told["begun"]["run_id"], told["remedies"]) == (begun.pid, "r", [])
        begun.kill()
    assert invoke(["status", "copies", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["begun"] is None
    assert [remedy.startswith(run) for remedy in told["remedies"]] == [True]
