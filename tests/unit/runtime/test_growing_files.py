"""`FileSource`: offsets, complete lines, and files replaced by other files (V144, E25)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drainmark.jobs.errors import InputChanged
from drainmark.jobs.operators.sources.files.file_source import FileSource
from drainmark.jobs.operators.sources.slices import Slice, SliceLimit

OPEN = SliceLimit(source="lines")


class Here:
    """A reach with access to one folder."""

    region = "app/lines"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, path: str) -> Path:
        return self.folder / path


def cut(folder: Path, after: Any = None, source: FileSource | None = None, how: SliceLimit = OPEN) -> Slice | None:
    access: Any = Here(folder)
    return (source or FileSource(path="log")).next_slice(after, access, how)


def text_of(folder: Path, piece: Slice, source: FileSource | None = None) -> str:
    access: Any = Here(folder)
    (part,) = (source or FileSource(path="log")).parts(piece, access, "lines")
    target = folder / "copy"
    part.place(target)
    return target.read_text()


def test_a_slice_ends_behind_the_last_complete_line(tmp_path: Path) -> None:
    assert cut(tmp_path) is None
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthr")
    first = cut(tmp_path)
    assert first is not None
    assert (first.start, first.end["offset"], first.size_bytes) == (None, 8, 8)
    assert text_of(tmp_path, first) == "one\ntwo\n"
    assert cut(tmp_path, first.end) is None
    with log.open("a") as file:
        file.write("ee\nfour\n")
    second = cut(tmp_path, first.end)
    assert second is not None
    assert text_of(tmp_path, second) == "three\nfour\n"
    assert text_of(tmp_path, first) == "one\ntwo\n", "what was read can be read again, whatever was appended"


def test_a_line_is_never_divided(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\n" + "b" * 100 + "\nc\n")
    source = FileSource(path="log", slice_bytes=4)
    ends, after = [], None
    while (piece := cut(tmp_path, after, source)) is not None:
        ends.append(piece.end["offset"])
        after = piece.end
    assert ends == [2, 103, 105]
    whole = cut(tmp_path, None, source, SliceLimit(source="lines", is_periodic=True))
    assert whole is not None
    assert whole.end["offset"] == 105, "a period without a bound takes all that is there (K8)"


@pytest.mark.parametrize("most", [1, 5, 11, 12])
def test_a_header_that_is_longer_than_a_slice_holds_nothing_up(tmp_path: Path, most: int) -> None:
    options = {"header": "true"}
    source = FileSource(path="log", format="csv", schema="identifier string", options=options, slice_bytes=most)
    (tmp_path / "log").write_text("identifier\none\ntwo\n")
    first = cut(tmp_path, None, source)
    assert first is not None
    assert text_of(tmp_path, first, source).startswith("identifier\none\n")
    (tmp_path / "log").write_text("identifier\non")
    assert cut(tmp_path, None, source) is None, "no line behind it is whole"


def test_every_slice_of_a_file_with_a_header_has_it(tmp_path: Path) -> None:
    source = FileSource(path="log", format="csv", schema="a string", options={"header": "true"}, slice_bytes=4)
    (tmp_path / "log").write_text("a\n")
    assert cut(tmp_path, None, source) is None, "a header alone is no input"
    (tmp_path / "log").write_text("a\n1\n2\n3\n")
    first = cut(tmp_path, None, source)
    assert first is not None
    second = cut(tmp_path, first.end, source)
    assert second is not None
    assert text_of(tmp_path, first, source) == "a\n1\n"
    assert text_of(tmp_path, second, source) == "a\n2\n3\n"


def truncated(log: Path) -> None:
    os.truncate(log, 5)


def replaced(log: Path) -> None:
    other = log.with_name("other")
    other.write_bytes(log.read_bytes() + b"more\n")
    other.rename(log)


def overwritten(log: Path) -> None:
    with log.open("r+b") as file:
        file.seek(2)
        file.write(b"X")


def removed(log: Path) -> None:
    log.unlink()


@pytest.mark.parametrize("change", [truncated, replaced, overwritten, removed])
def test_another_file_halts_with_its_name_and_offset(tmp_path: Path, change: Callable[[Path], None]) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthree\n")
    first = cut(tmp_path)
    assert first is not None
    change(log)
    for look in (lambda: cut(tmp_path, first.end), lambda: text_of(tmp_path, first)):
        with pytest.raises(InputChanged) as caught:
            look()
        assert str(log) in caught.value.message
        assert "14" in caught.value.message
        assert caught.value.remedy


@pytest.mark.parametrize("lines", [2_000, 400_000], ids=["whole", "samples"])
def test_another_middle_between_equal_ends_halts(tmp_path: Path, lines: int) -> None:
    log = tmp_path / "log"
    log.write_text("".join("same\n" if number < 1000 else "one!\n" for number in range(lines)) + "same\n" * 300)
    first = cut(tmp_path)
    assert first is not None
    os.truncate(log, 0)
    log.write_text(log.read_text() + "same\n" * 1000 + "two!\n" * (lines - 1000) + "same\n" * 400)
    with pytest.raises(InputChanged) as caught:
        cut(tmp_path, first.end)
    assert caught.value.facts["offset"] == first.end["offset"]


def test_a_position_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\n" * 5000)
    first = cut(tmp_path)
    assert first is not None
    old = {name: value for name, value in first.end.items() if name != "between"}
    with log.open("a") as file:
        file.write("two\n")
    second = cut(tmp_path, old)
    assert second is not None
    assert text_of(tmp_path, second) == "two\n"
