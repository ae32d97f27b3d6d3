"""`FileSource` over files that are rotated by rename, by copy and truncation, and by both at random (V144, E25)."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drainmark.jobs.errors import InputChanged
from drainmark.jobs.operators.sources.files import rotated_names
from drainmark.jobs.operators.sources.files.file_source import FileSource
from drainmark.jobs.operators.sources.slices import Slice, SliceLimit

OPEN = SliceLimit(source="lines")
SOURCE = FileSource(path="log", rotated="log.*", rotate_wait=0)


class Here:
    """A reach with access to one folder."""

    region = "app/lines"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, path: str) -> Path:
        return self.folder / path


class Reader:
    """A reader that cuts and reads slices as scans and runs do: positions are converted to JSON and back."""

    def __init__(self, folder: Path, source: FileSource = SOURCE) -> None:
        self.access: Any = Here(folder)
        self.source = source
        self.slices: list[Slice] = []

    def cut(self) -> Slice | None:
        after = json.loads(json.dumps(self.slices[-1].end)) if self.slices else None
        piece = self.source.next_slice(after, self.access, OPEN)
        if piece is not None:
            self.slices.append(piece)
        return piece

    def scan(self) -> int:
        found = 0
        while self.cut() is not None:
            found += 1
        return found

    def text(self, piece: Slice) -> str:
        (part,) = self.source.parts(piece, self.access, "lines")
        target = self.access.folder / "copy"
        part.place(target)
        text = target.read_text()
        assert len(text) == part.size_bytes or self.source.options
        return text

    def texts(self) -> list[str]:
        return [self.text(piece) for piece in self.slices]


class Log:
    """A log as logrotate keeps it: `log.1` is the newest of the rotated files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "log"
        self.written = ""

    def write(self, *lines: str, end: str = "\n") -> None:
        text = "\n".join(lines) + end
        with self.path.open("a") as file:
            file.write(text)
        self.written += text

    def shift(self) -> None:
        for number in sorted((int(p.suffix[1:]) for p in self.folder.glob("log.*")), reverse=True):
            (self.folder / f"log.{number}").rename(self.folder / f"log.{number + 1}")

    def rename(self) -> None:
        self.shift()
        self.path.rename(self.folder / "log.1")

    def copytruncate(self) -> None:
        self.shift()
        shutil.copyfile(self.path, self.folder / "log.1")
        os.truncate(self.path, 0)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


@pytest.mark.parametrize("rotate", [Log.rename, Log.copytruncate])
def test_what_was_not_read_before_a_rotation_is_read_after_it(
    log: Log, reader: Reader, rotate: Callable[[Log], None]
) -> None:
    log.write("one", "two")
    assert reader.scan() == 1
    log.write("three")
    rotate(log)
    log.write("four")
    assert reader.scan() == 2
    assert reader.texts() == ["one\ntwo\n", "three\n", "four\n"]
    labels = [reader.source.label(piece, "lines", reader.access).rpartition("log")[2] for piece in reader.slices]
    assert labels == ["#0..8", "#8..14", "@1#0..5"], "offsets are those in the file"


@pytest.mark.parametrize("rotate", [Log.rename, Log.copytruncate])
def test_several_rotations_between_two_scans(log: Log, reader: Reader, rotate: Callable[[Log], None]) -> None:
    log.write("same first line", "a")
    assert reader.scan() == 1
    for name in "bcd":
        rotate(log)
        log.write("same first line", name)
    assert reader.scan() == 3
    assert "".join(reader.texts()) == log.written
    assert reader.scan() == 0


def test_what_is_there_at_first_is_read_from_the_oldest_on(log: Log, reader: Reader) -> None:
    for name in map(str, range(12)):
        log.write(name)
        log.rename()
    log.write("now")
    assert (log.folder / "log.10").exists(), "numbers are no texts"
    reader.scan()
    assert "".join(reader.texts()) == log.written


def test_dates_go_up(tmp_path: Path) -> None:
    source = FileSource(path="log", rotated="log-*", rotate_wait=0)
    for day in ("20260301", "20260228", "20260302"):
        (tmp_path / f"log-{day}").write_text(f"{day}\n")
    (tmp_path / "log").write_text("today\n")
    reader = Reader(tmp_path, source)
    reader.scan()
    assert reader.texts() == ["20260228\n", "20260301\n", "20260302\n", "today\n"]


def test_years_go_up_and_large_numbers_down(tmp_path: Path) -> None:
    names = rotated_names.RotatedNames(tmp_path / "log", "log-*")
    for year in (2025, 2026):
        (tmp_path / f"log-{year}").touch()
    assert [path.name for path in names.all()] == ["log-2025", "log-2026", "log"]
    (tmp_path / "log-999").touch()
    assert [path.name for path in names.all()] == ["log-2026", "log-2025", "log-999", "log"]


def test_slices_that_wait_are_read_from_where_their_lines_went(log: Log, reader: Reader) -> None:
    """The slices are cut before a rotation and read after it; and a rewind can read them again."""
    log.write("one")
    reader.cut()
    log.write("two")
    reader.cut()
    log.rename()
    log.write("three")
    reader.cut()
    log.copytruncate()
    assert reader.texts() == ["one\n", "two\n", "three\n"]
    for piece in reader.slices:
        reader.source.check(piece, reader.access, "lines")


def test_a_truncated_file_that_grew_past_the_offset_is_another_one(log: Log, reader: Reader) -> None:
    log.write("one")
    reader.scan()
    log.write("two")
    log.copytruncate()
    log.write("three", "four", "five")
    reader.scan()
    assert "".join(reader.texts()) == log.written


BEATS = ["beat"] * 4
RESTARTING = FileSource(path="log", rotated="log.*", rotate_wait=0, on_lost="restart")


def refilled(log: Log, *more: str) -> None:
    log.copytruncate()
    log.write(*BEATS, *more)


@pytest.mark.parametrize("unread", [[], ["unread"]])
@pytest.mark.parametrize("more", [[], ["beat"], ["other"]])
@pytest.mark.seed("B02")
def test_a_file_that_was_truncated_and_filled_with_equal_lines_halts_with_a_remedy_that_reads_all(
    log: Log, reader: Reader, more: list[str], unread: list[str]
) -> None:
    log.write(*BEATS)
    reader.scan()
    log.write(*unread) if unread else None
    refilled(log, *unread, *more)
    with pytest.raises(InputChanged) as caught:
        reader.scan()
    assert (str(log.path), caught.value.facts["offset"]) == (caught.value.facts["trigger"], 20)
    assert "log.1" in caught.value.message
    assert "".join(reader.texts()) == "beat\n" * 4, "a slice that waits is read all the same"
    reader.source = RESTARTING
    reader.scan()
    reader.source = SOURCE
    log.write("later")
    reader.scan()
    assert "".join(reader.texts()) == log.written


def test_a_file_that_was_only_copied_goes_on_when_the_copy_is_moved_away(log: Log, reader: Reader) -> None:
    log.write(*BEATS)
    reader.scan()
    shutil.copy2(log.path, log.folder / "log.1")
    assert reader.scan() == 0, "it was not written to since"
    time.sleep(0.01)  # a tick of the file system's clock
    log.write("later")
    with pytest.raises(InputChanged):
        reader.scan()
    (log.folder / "log.1").rename(log.folder / "copy of log")
    reader.scan()
    assert "".join(reader.texts()) == log.written


@pytest.mark.parametrize("seed", range(20))
def test_of_equal_lines_each_is_read_once_or_the_file_halts(tmp_path: Path, seed: int) -> None:
    """Writes of the same line, rotations of both kinds and scans in any order; a halt is answered as it says."""
    chance = random.Random(seed)
    log, reader = Log(tmp_path), Reader(tmp_path)
    for step in [chance.choice(["write", "write", "rename", "copytruncate", "scan"]) for _ in range(40)] + ["scan"]:
        if step == "write":
            log.write(*["beat"] * chance.randint(1, 4))
        elif step != "scan":
            getattr(log, step)() if log.path.exists() else None
        else:
            try:
                reader.scan()
            except InputChanged:
                reader.source = RESTARTING
                reader.scan()
                reader.source = SOURCE
    assert "".join(reader.texts()) == log.written


def test_a_rotated_file_with_a_time_in_the_future_does_not_hold_back_the_next(log: Log, reader: Reader) -> None:
    log.write("one")
    reader.scan()
    log.write("two")
    os.utime(log.path, (time.time() + 24 * 3600.0,) * 2)
    log.rename()
    log.write("three")
    reader.scan()
    assert "".join(reader.texts()) == log.written


def test_a_copy_that_is_made_is_waited_for(log: Log, tmp_path: Path) -> None:
    """Between the copy and the truncation both files have the lines already read, so reading now could repeat them."""
    reader = Reader(tmp_path, FileSource(path="log", rotated="log.*", rotate_wait=3600))
    log.write("one")
    reader.scan()
    shutil.copyfile(log.path, log.folder / "log.1")
    log.write("two")
    assert reader.scan() == 0
    (log.folder / "log.1").unlink()
    assert reader.scan() == 1


def test_a_last_line_without_end_is_taken_once_the_file_is_closed(log: Log, reader: Reader) -> None:
    log.write("one", "tw", end="")
    reader.scan()
    assert reader.texts() == ["one\n"]
    log.rename()
    log.write("three")
    reader.scan()
    assert reader.texts() == ["one\n", "tw", "three\n"]


def test_a_rotated_file_is_left_alone_for_a_while_first(log: Log, tmp_path: Path) -> None:
    reader = Reader(tmp_path, FileSource(path="log", rotated="log.*", rotate_wait=3600))
    log.write("one")
    reader.scan()
    log.rename()
    log.write("three")
    assert reader.scan() == 0
    with (log.folder / "log.1").open("a") as file:
        file.write("two\n")
    assert reader.scan() == 1, "what is written to it meanwhile is read"
    assert reader.texts() == ["one\n", "two\n"]


def test_what_is_written_to_a_file_after_it_was_left_is_not_lost_silently(log: Log, reader: Reader) -> None:
    log.write("one")
    log.rename()
    log.write("two")
    reader.scan()
    with (log.folder / "log.1").open("a") as file:
        file.write("late\n")
    with pytest.raises(InputChanged) as caught:
        reader.scan()
    assert "log.1" in caught.value.message
    assert "rotate_wait" in caught.value.message
    reader.source = FileSource(path="log", rotated="log.*", rotate_wait=0, on_lost="restart")
    log.write("three")
    assert reader.scan() == 1


def test_every_file_has_a_header_of_its_own(log: Log, tmp_path: Path) -> None:
    source = FileSource(
        path="log", rotated="log.*", rotate_wait=0, format="csv", schema="a string", options={"header": "true"}
    )  # fmt: skip
    reader = Reader(tmp_path, source)
    for text in ("a\n1\n", "a\n", "a\n2\n"):
        log.path.write_text(text)
        log.rename()
    log.path.write_text("a\n")
    assert reader.scan() == 2, "headers alone are no input"
    with log.path.open("a") as file:
        file.write("3\n")
    reader.scan()
    assert reader.texts() == ["a\n1\n", "a\n2\n", "a\n3\n"]


def compressed(log: Log) -> None:
    (log.folder / "log.1.gz").write_bytes(gzip.compress((log.folder / "log.1").read_bytes()))
    (log.folder / "log.1").unlink()


def gone(log: Log) -> None:
    (log.folder / "log.1").unlink()


def gap(log: Log) -> None:
    log.write("in the gap")
    log.rename()
    (log.folder / "log.1").unlink()


@pytest.mark.parametrize("loss", [compressed, gone, gap])
def test_what_is_lost_halts_or_is_passed_where_the_source_says_so(
    log: Log, tmp_path: Path, loss: Callable[[Log], None]
) -> None:
    reader = Reader(tmp_path)
    log.write("one", "two")
    reader.scan()
    log.rename()
    loss(log)
    log.write("new")
    with pytest.raises(InputChanged) as caught:
        reader.scan()
    assert caught.value.remedy
    reader.source = FileSource(path="log", rotated="log.*", rotate_wait=0, on_lost="restart")
    assert reader.scan() == 1
    assert reader.text(reader.slices[-1]) == "new\n"


@pytest.mark.parametrize("rotated", [None, "log.*"])
def test_a_truncated_file_halts_or_begins_anew(log: Log, tmp_path: Path, rotated: str | None) -> None:
    reader = Reader(tmp_path, FileSource(path="log", rotated=rotated, rotate_wait=0))
    log.write("old")
    log.rename()
    log.write("one", "two")
    reader.scan()
    os.truncate(log.path, 0)
    log.write("new")
    with pytest.raises(InputChanged) as caught:
        reader.scan()
    assert str(log.path) in caught.value.message
    assert caught.value.facts["offset"] == 8
    reader.source = FileSource(path="log", rotated=rotated, rotate_wait=0, on_lost="restart")
    assert reader.scan() == 1, "rotated files that were read are not begun again"
    assert reader.text(reader.slices[-1]) == "new\n"


def test_names_that_change_while_they_are_looked_at(log: Log, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotations between the listing of the folder and the opening of a file are not treated as a loss."""
    log.write("one")
    log.rename()
    log.write("two")
    assert reader.scan() == 2
    log.write("three")
    listed = rotated_names._listed

    def names(folder: Path) -> Iterator[str]:
        found = list(listed(folder))
        if len(found) < 6:
            log.rename()
            log.write(f"more {len(found)}")
        return iter(found)

    monkeypatch.setattr(rotated_names, "_listed", names)
    reader.scan()
    reader.scan()
    assert "".join(reader.texts()) == log.written


@pytest.mark.parametrize("when", range(12))
@pytest.mark.parametrize("is_begun", [True, False])
@pytest.mark.parametrize("dated", [True, False])
def test_a_rotation_at_any_moment_of_a_look_passes_no_file_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dated: bool, is_begun: bool, when: int
) -> None:
    """Right after one of the reader's listings, a rotation replaces the file that it is about to open."""
    log, dates = Log(tmp_path), iter(range(20260101, 20260199))
    reader = Reader(tmp_path, FileSource(path="log", rotated="log-*" if dated else "log.*", rotate_wait=0))

    def rotate() -> None:
        if dated:
            log.path.rename(tmp_path / f"log-{next(dates)}")
        else:
            log.rename()

    log.write("one")
    if is_begun:
        reader.scan()
    rotate()
    log.write("two")
    listed, looks = rotated_names._listed, iter(range(1000))

    def names(folder: Path) -> Iterator[str]:
        found = list(listed(folder))
        if next(looks) == when:
            rotate()
            log.write("three")
        return iter(found)

    monkeypatch.setattr(rotated_names, "_listed", names)
    for _ in range(3):
        reader.scan()
    if next(looks) <= when:
        pytest.skip("it makes fewer lists")
    assert "".join(reader.texts()) == log.written


@pytest.mark.parametrize("is_late", [False, True])
def test_a_restart_reads_no_rotated_file_again(log: Log, tmp_path: Path, is_late: bool) -> None:
    reader = Reader(tmp_path, FileSource(path="log", rotated="log.*", rotate_wait=0, on_lost="restart"))
    log.write("one")
    os.utime(log.path, ns=(1, 1))
    reader.scan()
    log.rename()
    log.write("two")
    reader.scan()
    if is_late:  # a writer still had the rotated file open: these lines are lost, like all other unread lines
        with (tmp_path / "log.1").open("a") as file:
            file.write("late\n")
    (tmp_path / "new").write_text("other\n")
    (tmp_path / "new").rename(log.path)  # as an editor saves a file
    reader.scan()
    assert [reader.text(piece) for piece in reader.slices[2:]] == ["other\n"]


def test_a_restart_reads_what_was_rotated_since(log: Log, tmp_path: Path) -> None:
    reader = Reader(tmp_path, FileSource(path="log", rotated="log.*", rotate_wait=0, on_lost="restart"))
    log.write("one")
    os.utime(log.path, ns=(1, 1))
    reader.scan()
    log.path.unlink()
    for name in ("two", "three"):
        log.write(name)
        log.rename()
    reader.scan()
    assert [reader.text(piece) for piece in reader.slices[1:]] == ["two\n", "three\n"]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_every_line_is_read_once_and_can_be_read_again(tmp_path: Path, seed: int) -> None:
    """Writes, rotations of both kinds and scans in any order; now and then a line is as long as a slice."""
    chance = random.Random(seed)
    log = Log(tmp_path)
    reader = Reader(tmp_path, FileSource(path="log", rotated="log.*", rotate_wait=0, slice_bytes=20))
    for step in range(60):
        match chance.choice(["write", "write", "rename", "copytruncate", "cut", "scan"]):
            case "write":
                log.write(*(f"{step}-{n}" * chance.choice([1, 1, 9]) for n in range(chance.randint(1, 4))))
            case "rename" if log.path.exists():
                log.rename()
            case "copytruncate" if log.path.exists():
                log.copytruncate()
            case "cut":
                reader.cut()
            case "scan":
                reader.scan()
    reader.scan()
    assert "".join(reader.texts()) == log.written


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"rotated": "log"}, "ROTATED"),
        ({"rotated": "*.*"}, "ROTATED"),
        ({"rotated": "old/log.*"}, "ROTATED"),
        ({"rotate_wait": -1}, "ROTATE_WAIT"),
        ({"on_lost": "ignore"}, "UNKNOWN_POLICY"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], rule: str) -> None:
    assert [found for found, _, _ in FileSource(path="log", **arguments).problems(None)] == [rule]
