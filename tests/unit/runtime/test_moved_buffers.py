"""The buffer of a `ReplayableStart` moves to another place: no row is lost or read twice (E27)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import InputMissing
from drainmark.jobs.operators.sources.pushed import bucket_buffer
from drainmark.jobs.operators.sources.slices import Slice, SliceLimit
from drainmark.resources.storage.folder import LocalFolder

pytestmark = pytest.mark.seed("E27", "V146")

HOME = dm.ReplayableStart(schema="n bigint", seconds=0)
MOVED = replace(HOME, buffer="s3://bucket/pushed")


@dataclass(frozen=True, slots=True)
class Reaching:
    """A reach with a folder of this machine in place of a bucket."""

    folder: Path
    region: str = "little/rows"

    def buffer(self, source: str) -> Path:
        return self.folder / "home" / source

    def table(self, name: str) -> LocalFolder:
        return LocalFolder(self.folder / name.removeprefix("s3://"))


@pytest.fixture
def access(tmp_path: Path) -> Any:
    bucket_buffer._newest.clear()
    bucket_buffer._purged.clear()
    return Reaching(tmp_path)


def push(start: dm.ReplayableStart, access: Any, number: int) -> None:
    start.kept(access, "rows", start.buffer).push([{"n": number}])


def taken(start: dm.ReplayableStart, access: Any, after: Any, tmp_path: Path) -> tuple[list[int], list[Slice]]:
    """Return the rows after a position, and the slices that contain them."""
    found: list[int] = []
    slices: list[Slice] = []
    while (piece := start.next_slice(after, access, SliceLimit(source="rows"))) is not None:
        slices.append(Slice.from_json(json.loads(json.dumps(piece.to_json()))))
        found += rows_of(slices[-1], access, tmp_path)
        after = slices[-1].end
    return found, slices


def rows_of(piece: Slice, access: Any, tmp_path: Path) -> list[int]:
    """Return a slice's rows, independent of the place that the start declares now."""
    found: list[int] = []
    for number, part in enumerate(HOME.parts(piece, access, "rows")):
        target = tmp_path / f"placed-{number}"
        target.unlink(missing_ok=True)
        part.place(target)
        found += [json.loads(line)["n"] for line in target.read_text().splitlines()]
    return found


def test_there_and_back_each_row_is_read_once_and_can_be_replayed(access: Any, tmp_path: Path) -> None:
    rows, slices, after = [], [], None
    for number, start in enumerate((HOME, HOME, MOVED, MOVED, HOME, MOVED)):
        push(start, access, number)
        found, new = taken(start, access, after, tmp_path)
        rows, slices, after = rows + found, slices + new, new[-1].end
    assert rows == [0, 1, 2, 3, 4, 5]
    assert [rows_of(piece, access, tmp_path) for piece in slices] == [[number] for number in rows]
    labels = [HOME.label(piece, "rows", access) for piece in slices]
    assert len(set(labels)) == len(labels), "each is a file of its own to `trace` and `skip`"
    assert slices[0].end == {"segment": 1}, "as 0.3.0 has it"


@pytest.mark.parametrize(("before", "later"), [(HOME, MOVED), (MOVED, HOME)], ids=["away", "back"])
def test_what_is_not_read_yet_is_not_left_behind(
    access: Any, tmp_path: Path, before: dm.ReplayableStart, later: dm.ReplayableStart
) -> None:
    push(before, access, 1)
    _, slices = taken(before, access, None, tmp_path)
    push(replace(before, seconds=1e9), access, 2)
    push(later, access, 3)
    with pytest.raises(InputMissing, match="not read yet"):
        later.next_slice(slices[-1].end, access, SliceLimit(source="rows"))
    found, more = taken(before, access, slices[-1].end, tmp_path)
    assert found == [2]
    assert taken(later, access, more[-1].end, tmp_path)[0] == [3]
