"""Which files a name or a pattern in a command means, also if they are no UTF-8."""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_hand import HandFed

from drainmark.jobs import world
from drainmark.jobs.errors import UsageError
from drainmark.jobs.scan.folder import uri_of
from drainmark.orchestration.verbs import orders
from drainmark.orchestration.verbs.file_names import files_named, require_one_file
from drainmark.orchestration.verbs.inputs import backfill
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

RAW = os.fsdecode(b"/in/day/a\xff.csv")


@pytest.mark.parametrize(
    "name", [RAW, os.fsdecode(b"a\xff.csv"), os.fsdecode(b"day/a\xff.csv"), uri_of(RAW), "a%FF.csv"]
)
def test_a_name_that_is_no_utf8_names_its_file(name: str) -> None:
    assert files_named(name, [uri_of(RAW), None]) == [uri_of(RAW)]


@pytest.mark.parametrize("name", [os.fsdecode(b"\xff.csv"), os.fsdecode(b"a\xfe.csv"), "a.csv"])
def test_another_name_does_not(name: str) -> None:
    assert files_named(name, [uri_of(RAW), None]) == []


SEVERAL = (
    "/data/landing/a.csv",
    "/backup/data/landing/a.csv",
    "s3://b/data/landing/a.csv",
    uri_of(f"/backup{RAW}"),
    uri_of(RAW),
)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_whole_path_names_one_file_although_others_end_so(name: str) -> None:
    assert files_named(name, SEVERAL) == [name]


@pytest.mark.parametrize("name", ["a.csv", "landing/a.csv", os.fsdecode(b"day/a\xff.csv")])
def test_the_remedy_for_a_name_of_several_files_names_one(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        require_one_file(name, files_named(name, SEVERAL))
    (told,) = shlex.split(str(raised.value.remedy).partition("e.g. ")[2])
    assert files_named(told, SEVERAL) == [told]


def test_a_path_from_here_names_one_file(here: Path) -> None:
    known = [str(here / "b2.csv"), str(here / "in1" / "b2.csv")]
    assert files_named("b2.csv", known) == known[:1]
    assert files_named("in1/../b2.csv", known) == known[:1]


def meant(pattern: str) -> tuple[list[str], list[str]]:
    """Return the files that a pattern of `backfill` means, from here, and the folders that it could not list."""
    found = backfill._files(backfill.Wanted(pattern=pattern), None, None)
    names = [(os.path.relpath(uri), isinstance(trigger, str)) for uri, trigger in found]
    return [name for name, is_refused in names if not is_refused], [name for name, is_refused in names if is_refused]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder, with a bracket in its name, of files and folders whose names are globs of others."""
    folder = tmp_path / "h[1]"
    for name in ("in[1]/a.csv", "in[1]/deep/.b.csv", "in1/c.csv", "b[2].csv", "b2.csv", "c3.csv", "d*/e", "dd/f"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("in[1]", ["in[1]/a.csv", "in[1]/deep/.b.csv"]),
        ("in[1]/", ["in[1]/a.csv", "in[1]/deep/.b.csv"]),
        ("./d*", ["d*/e"]),
        ("b[2].csv", ["b[2].csv"]),
        ("c[3].csv", ["c3.csv"]),
        ("in[1]/*.csv", ["in1/c.csv"]),
        ("?[0-9].csv", ["b2.csv", "c3.csv"]),
        ("in[[]1]/**", ["in[1]/a.csv", "in[1]/deep/.b.csv"]),
        ("nothing[1]", []),
    ],
)
def test_a_pattern_is_first_the_name_of_what_is_there(here: Path, pattern: str, files: list[str]) -> None:
    assert meant(pattern) == (files, [])


@pytest.mark.parametrize(
    ("pattern", "files", "refused"),
    [
        ("in[1]", ["in[1]/a.csv"], ["in[1]/deep"]),
        ("**/*.csv", ["b2.csv", "b[2].csv", "c3.csv", "in1/c.csv", "in[1]/a.csv"], ["in[1]/deep"]),
        ("in[[]1]/**", ["in[1]/a.csv"], ["in[1]/deep"]),
        ("in[[]1]/*/*.csv", [], ["in[1]/deep"]),
        ("in[1]/deep", [], ["in[1]/deep"]),
        ("in[1]/deep/*", [], []),
        ("in[[]1]/deep/*", [], ["in[1]/deep"]),
        ("in[[]1]/*", ["in[1]/a.csv"], []),
    ],
)
def test_a_folder_that_cannot_be_listed_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, files: list[str], refused: list[str]
) -> None:
    scandir = os.scandir

    def closed(path: Any = ".") -> Any:
        if os.path.abspath(path) == str(here / "in[1]" / "deep"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert meant(pattern) == (files, refused)


def test_links_are_allowed_in_a_folder_that_is_named_by_a_path_with_wildcards(here: Path) -> None:
    (here / "to").symlink_to(here / "in1")
    (here / "to" / "b[2].csv").write_text("x")
    assert meant("to/b[2].csv") == (["to/b[2].csv"], [])
    assert meant("to/*.csv") == (["to/b[2].csv", "to/c.csv"], [])
    found = backfill._files(backfill.Wanted(pattern="t[o]/*.csv"), None, None)
    assert [reason for _, reason in found] == [f"lies behind a link to a folder, {here / 'to'}"] * 2


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[HandFed]:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    region = HandFed(place, tmp_path / "in")
    region.write("0", ["x"])
    region.add("0")
    region.drain()
    for name, age in (("old", 600.0), ("young", 1.0)):
        os.utime(region.write(name, ["1"]), (time.time() - age,) * 2)
    yield region
    place.registry.close()


def planned(fed: HandFed, pattern: str) -> backfill.Queueing:
    found = backfill.plan_queue(fed.workplace, fed.region, backfill.Wanted(pattern=str(fed.inbox / pattern)))
    return replace(found, settle=60.0)


@pytest.mark.parametrize(
    ("meanwhile", "reason"),
    [(lambda path: path.write_text("more"), "is being written"), (Path.unlink, "is not there any more")],
)
def test_a_file_that_is_still_written_while_backfill_waits_is_refused(
    fed: HandFed, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Path], Any], reason: str
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if (fed.inbox / "young").exists():
            meanwhile(fed.inbox / "young")

    monkeypatch.setattr(world, "sleep", sleep)
    moment = (fed.inbox / "young").stat().st_mtime + 1.0
    monkeypatch.setattr(world, "now", lambda: moment)
    alone, both = planned(fed, "young"), planned(fed, "[oy]*")
    assert slept == [], "a plan waits for nothing"
    assert "waits" in both.notice
    done = both.carry_out(fed.workplace)
    assert slept == [pytest.approx(59.0)]
    assert (done["queued"], done["files"]) == (1, [str(fed.inbox / "old")])
    assert done["refused"] == [{"file": str(fed.inbox / "young"), "reason": reason}]
    assert fed.workplace.registry.pending_count(fed.region) == 1
    with pytest.raises(UsageError, match=reason):
        alone.carry_out(fed.workplace)


def test_a_file_that_settles_is_queued_and_an_old_one_at_once(fed: HandFed, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(world, "sleep", slept.append)
    old = planned(fed, "old")
    assert (old.notice, old.carry_out(fed.workplace)["queued"], slept) == ("", 1, [])
    assert planned(fed, "young").carry_out(fed.workplace)["queued"] == 1
    assert len(slept) == 1
    order = orders.backfill(fed.workplace, fed.region, backfill.Wanted(pattern=str(fed.inbox / "*")))
    assert order.notice == "", "nothing is left to queue"
