"""Odd file names: each is read, or refused with a reason; none is silently empty (I15, I16)."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from graphs import Build, any_name
from harness import LONG_AGO
from scene import Scene

from drainmark.jobs.scan.folder import uri_of

MakeScene = Callable[[Build], Scene]

NAMES: tuple[bytes, ...] = (
    b"_x",
    b"_SUCCESS",
    b".x",
    b"..x",
    b"x._COPYING_",
    b"a:b.log",
    b"10:30",
    b"[1]{}*",
    b"a?b",
    b"{a,b}",
    b"back\\slash",
    b"%2e",
    b"%",
    b"a b  c",
    b" leading and trailing ",
    b"it's",
    b'a "quoted" name',
    b"`tick`$HOME;ls|&",
    b"new\nline",
    b"tab\tand\x07bell",
    b"plus+comma,semicolon;equals=~#hash",
    b"file:",
    b"-rf",
    b"year=2005",
    b"\xff\xfe not utf-8",
    b"caf\xe9-latin1.txt",
    "größe-æøå.txt".encode(),
    "日本語のファイル".encode(),
    "مرحبا".encode(),
    "emoji-🦆".encode(),
    "e\u0301-combining vs é".encode(),
    b"n" * 200 + b".txt",
    b"255" * 85,
    b"no-extension",
    b"many.dots.in.name.v1.2",
    b"0000000000000000007.data",
)


@pytest.mark.seed("I15")
def test_every_name_is_read(build: MakeScene) -> None:
    scene = build(any_name)
    folder = os.fsencode(scene.folder / "in")
    os.makedirs(folder)
    for number, name in enumerate(NAMES):
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(b"content %d\n" % number)
        os.utime(path, (LONG_AGO, LONG_AGO))
    ended = scene.run_well(["scan"], ["run"])
    assert ended.steps("scan")[0] == {"step": "scan", "new": len(NAMES), "refused": []}
    found = {row["value"]: row["source_file"] for row in scene.rows("any_name")}
    wanted = {f"content {n}": uri_of(os.fsdecode(os.path.join(folder, name))) for n, name in enumerate(NAMES)}
    assert found == wanted
    history = scene.history
    assert {row.trigger_uri for row in history.states.values()} == set(wanted.values())
    assert {row.rows_in for row in history.states.values()} == {1}
    scene.assert_nothing_left()
    again = scene.run_well(["scan"], ["run"])
    assert again.steps("scan")[0]["new"] == 0, "a name is the same at the next scan"


@pytest.mark.seed("I16")
def test_what_is_no_readable_file_is_refused_with_a_reason(build: MakeScene) -> None:
    scene = build(any_name)
    folder = scene.folder / "in"
    scene.add(folder / "good.txt", "good\n")
    (folder / "folder.txt").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "dangling").symlink_to(folder / "nowhere")
    (folder / "device").symlink_to("/dev/zero")
    (folder / "link").symlink_to(folder / "folder.txt")
    ended = scene.run_well(["scan"], ["run"])
    refused = dict(ended.steps("scan")[0]["refused"])
    assert set(refused) == {str(folder / name) for name in ("pipe", "dangling", "device", "link")}
    assert all(refused.values())
    scene.assert_golden()
