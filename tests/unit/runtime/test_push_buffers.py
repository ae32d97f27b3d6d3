"""The buffer of a `ReplayableStart`: durable rows, sealed segments, crashes between steps (V146, E27)."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from drainmark.jobs.errors import InputMissing
from drainmark.jobs.failpoints import FailPoint, InjectedFailure, arm
from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.operators.sources.pushed.push_buffer import PUSHED_AT, PushBuffer, RowText, lines_of

FOR_EVER = 1e9
ROOT = Path(__file__).parents[3]


def numbers(buffer: PushBuffer) -> list[list[int]]:
    segments = [buffer.segment(number) for number, _ in buffer.sealed(0)]
    return [[json.loads(line)["n"] for line in path.read_text().splitlines()] for path in segments]


def row(number: int) -> dict[str, int]:
    return {"n": number}


def test_a_segment_is_sealed_when_it_is_full_or_old(tmp_path: Path) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=3, seconds=FOR_EVER)
    assert [buffer.push([row(n)]) for n in range(5)] == [1, 1, 1, 2, 2]
    assert numbers(buffer) == [[0, 1, 2]]
    PushBuffer(tmp_path / "b", rows=3, seconds=0.0).seal_if_due()
    assert numbers(buffer) == [[0, 1, 2], [3, 4]]
    assert buffer.push([row(n) for n in range(5, 12)]) == 3, "what is pushed together stays together"
    assert numbers(buffer)[2:] == [[5, 6, 7, 8, 9, 10, 11]]
    assert [number for number, _ in buffer.sealed(1)] == [2, 3]


def test_a_row_that_no_segment_can_hold_is_refused(tmp_path: Path) -> None:
    """The reader refuses a file with so long a line, and so all other rows of the segment."""
    buffer = PushBuffer(tmp_path / "b", rows=9, seconds=FOR_EVER)
    buffer.push([row(1)])
    text = "x" * CAPS.line_bytes
    with pytest.raises(ValueError, match=f"a row has at most {CAPS.line_bytes}"):
        buffer.push([row(2), {"n": text}])
    with pytest.raises(ValueError, match=f"a row has at most {CAPS.line_bytes}"):
        buffer.push([RowText(f'{{"n": "{text}"}}')])
    with pytest.raises(ValueError, match=f"a row has at most {CAPS.line_bytes}"):
        buffer.seal_with(1, [{"n": text}], b"")
    buffer.seal_all()
    assert numbers(buffer) == [[1]]


def test_rows_that_were_pushed_stay_when_the_start_gets_a_thread(tmp_path: Path) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=9, seconds=FOR_EVER)
    buffer.push([row(1)])
    assert buffer.newest_state() == (1, None)
    assert buffer.seal_with(2, [row(2)], b"after two")
    buffer.push([row(3)])  # the thread is gone for a time
    assert buffer.newest_state() == (3, b"after two")
    assert buffer.seal_with(4, [row(4)], b"after four")
    assert buffer.newest_state() == (4, b"after four")
    assert numbers(buffer) == [[1], [2], [3], [4]]


def test_the_state_of_a_cut_that_was_not_sealed_is_not_that_of_rows_that_were_pushed(tmp_path: Path) -> None:
    """The rows of that cut are gone: a start that went on from its state would never make them again."""
    buffer = PushBuffer(tmp_path / "b", rows=9, seconds=FOR_EVER)
    assert buffer.seal_with(1, [row(1)], b"after one")
    arm(f"{FailPoint.SEAL_BEFORE.value}:raise")
    with pytest.raises(InjectedFailure):
        buffer.seal_with(2, [row(2)], b"after two")
    arm("")
    buffer.push([row(3)])  # the thread is gone for a time
    assert buffer.newest_state() == (2, b"after one")
    assert numbers(buffer) == [[1], [3]]


def test_rows_that_are_pushed_while_a_start_has_a_thread_stay(tmp_path: Path) -> None:
    """A process with the code of before, in which the start had none, may still push."""
    buffer = PushBuffer(tmp_path / "b", rows=9, seconds=FOR_EVER)
    assert buffer.newest_state() == (0, None)
    assert buffer.push([row(1)]) == 1
    assert not buffer.seal_with(1, [row(2)], b"after two")
    assert buffer.newest_state() == (1, None)
    assert buffer.seal_with(2, [row(2)], b"after two")
    assert numbers(buffer) == [[1], [2]]


def test_rows_that_are_pushed_after_a_crash_of_a_cut_replace_no_segment(tmp_path: Path) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=1, seconds=FOR_EVER)
    assert buffer.seal_with(1, [row(1)], b"after one")
    arm(f"{FailPoint.SEAL_AFTER.value}:raise")
    with pytest.raises(InjectedFailure):
        buffer.seal_with(2, [row(2)], b"after two")
    arm("")
    assert buffer.push([row(3)]) == 3  # the thread is gone for a time
    assert buffer.newest_state() == (3, b"after two")
    assert numbers(buffer) == [[1], [2], [3]]


def test_a_row_that_is_none_leaves_nothing_behind(tmp_path: Path) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=1, seconds=0.0)
    for value in (float("nan"), float("inf"), [{"x": float("-inf")}]):
        with pytest.raises(ValueError, match=r"column 'y': Out of range .*: give null"):
            buffer.push([row(1), {"n": 1, "y": value}])
        with pytest.raises(ValueError, match=r"column 'y': Out of range .*: give null"):
            buffer.seal_with(1, [row(1), {"n": 1, "y": value}], b"")
    with pytest.raises(TypeError):
        buffer.push([row(1), 7])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=PUSHED_AT):
        buffer.push([row(1), {"n": 2, PUSHED_AT: "yesterday"}])
    for value in ({1}, object(), dt.timedelta(1), np.timedelta64(5, "ns"), 1j):
        with pytest.raises(TypeError, match=f"JSON has no {type(value).__name__}"):
            buffer.push([row(1), {"n": [value]}])
    assert not (tmp_path / "b").exists()


def test_values_of_python_and_of_numpy_are_those_of_json(tmp_path: Path) -> None:
    """A number stays one: as a text it would be a bad record, and in a column of texts nobody would notice."""
    given = {
        "n": np.int64(5), "x": np.float32(0.5), "is": np.bool_(True), "list": np.array([1, 2]), "m": Decimal("1.50"),
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "day": dt.date(2026, 1, 1), "b": b"\x00", "id": UUID(int=1),
        "ns": np.datetime64(7, "ns"), "days": np.array(["2026-01-01"], "datetime64[D]"),
    }  # fmt: skip
    wanted = {
        "n": 5, "x": 0.5, "is": True, "list": [1, 2], "m": "1.50", "at": "2026-01-01T00:00:00+00:00",
        "day": "2026-01-01", "b": "AA==", "id": str(UUID(int=1)),
        "ns": "1970-01-01T00:00:00.000000007", "days": ["2026-01-01"],
    }  # fmt: skip
    (line,) = lines_of([given], "now").splitlines()
    assert json.loads(line) == {PUSHED_AT: "now", **wanted}
    with pytest.raises(ValueError, match="Out of range"):
        lines_of([{"x": np.float64("nan")}])


@pytest.mark.parametrize(
    "text",
    [
        '{"id":1,"amount":0.123456789012345678,"b":123456789012345678.91}', '{"price":1.10,"tiny":1e-400}', "{}",
        ' { } ', '\t{ "a" : {"b": [1.0, 1E2]}, "long": 12345678901234567890123 }\r\n', '{"name": "caf\u00e9 \\u00e9"}',
    ],
)  # fmt: skip
def test_a_row_that_is_pushed_as_text_is_stored_in_its_own_characters(text: str) -> None:
    (line,) = lines_of([RowText(text)], "now").decode().splitlines()
    assert json.loads(line) == {PUSHED_AT: "now", **json.loads(text)}
    own = text.strip().removeprefix("{").removesuffix("}").strip()
    assert own in line, "no value is written in another way"


@pytest.mark.parametrize(
    "text",
    ['{"id":1,"id":2}', '{"a":{"b":1,"b":1}}', '{"a": NaN}', "[1]", "7", '{"a":1} {"a":2}', '{"a": "\\ud800"}', "",
     '{"_pushed_at": 1}', "[" * 100_000, '{"a":\r1}', '{"a":\n1}'],
)  # fmt: skip
def test_a_text_that_would_be_no_good_record_of_a_file_is_no_row(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        RowText(text)


def test_a_row_of_an_earlier_version_with_a_time_of_its_own_is_sealed(tmp_path: Path) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=100, seconds=FOR_EVER)
    buffer.push([row(1)])
    (path,) = (tmp_path / "b").glob("open-*")
    path.write_text(json.dumps({PUSHED_AT: "yesterday", "n": 0}) + "\n")
    assert buffer.push([row(2)]) == 1
    assert numbers(buffer) == [[0, 2]]


FULL = """
import resource, sys
from pathlib import Path
from drainmark.jobs.operators.sources.pushed.push_buffer import PushBuffer

buffer = PushBuffer(Path(sys.argv[1]), rows=100, seconds=1e9)
buffer.push([{"n": 1}])
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
try:
    buffer.push([{"n": number} for number in range(2, 1000)])
except OSError:
    sys.exit(17)
"""


def test_of_rows_that_the_disk_did_not_take_none_is_there(tmp_path: Path) -> None:
    """The client gets an error and pushes all of them again."""
    died = subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "b")], cwd=ROOT, check=False)
    assert died.returncode == 17
    buffer = PushBuffer(tmp_path / "b", rows=3, seconds=FOR_EVER)
    buffer.push([row(2), row(3)])
    assert numbers(buffer) == [[1, 2, 3]]


def test_many_segments_are_not_listed_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a push and of a look does not grow with the horizon."""
    buffer = PushBuffer(tmp_path / "b", rows=1, seconds=0.0)
    for number in range(1, 6):
        buffer.push([row(number)])
    lists: list[str] = []
    glob = Path.glob

    def counted(self: Path, pattern: str) -> Iterator[Path]:
        lists.append(pattern)
        return glob(self, pattern)

    monkeypatch.setattr(Path, "glob", counted)
    assert buffer.push([row(6)]) == 6
    buffer.push([])
    buffer.seal_if_due()
    assert [number for number, _ in buffer.sealed(3)] == [4, 5, 6]
    assert list(buffer.sealed(6)) == []
    assert lists == []


def test_what_other_processes_sealed_or_purged_meanwhile_is_found(tmp_path: Path) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=1, seconds=0.0)
    buffer.push([row(1)])
    other = "import sys; from pathlib import Path;"
    other += "from drainmark.jobs.operators.sources.pushed.push_buffer import PushBuffer as P;"
    other += "b = P(Path(sys.argv[1]), 1, 0.0); [b.push([{'n': n}]) for n in (2, 3)]; b.purge(int(sys.argv[2]))"
    for purged, next_number in ((1, 4), (6, 7)):
        subprocess.run([sys.executable, "-c", other, str(tmp_path / "b"), str(purged)], cwd=ROOT, check=True)
        assert [number for number, _ in buffer.sealed(0)] == list(range(purged + 1, next_number))
        assert buffer.push([row(9)]) == next_number
    (tmp_path / "b" / f"open-{8:012d}.jsonl").unlink()
    buffer.segment(7).unlink()
    assert buffer.push([row(9)]) == 1, "an empty folder begins anew, whatever was seen"


def test_a_line_that_a_crash_cut_off_is_no_row(tmp_path: Path) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=3, seconds=FOR_EVER)
    buffer.push([row(1)])
    (path,) = (tmp_path / "b").glob("open-*")
    with path.open("a") as file:
        file.write('{"n": 2, "half of')
    buffer.push([row(3)])
    buffer.push([row(4)])
    assert numbers(buffer) == [[1, 3, 4]]
    stored = json.loads(buffer.segment(1).read_text().splitlines()[0])
    assert set(stored) == {"n", PUSHED_AT}


@pytest.mark.parametrize("point", [FailPoint.SEAL_BEFORE, FailPoint.SEAL_AFTER])
def test_a_failure_around_sealing_loses_and_doubles_nothing(tmp_path: Path, point: FailPoint) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=2, seconds=FOR_EVER)
    buffer.push([row(1)])
    arm(f"{point.value}:raise")
    with pytest.raises(InjectedFailure):
        buffer.push([row(2)])
    buffer.push([row(3)])
    buffer.push([row(4)])
    PushBuffer(tmp_path / "b", rows=1, seconds=0.0).seal_if_due()
    assert [n for segment in numbers(buffer) for n in segment] == [1, 2, 3, 4]


@pytest.mark.parametrize("point", [None, FailPoint.PURGE_BEFORE, FailPoint.PURGE_AFTER])
def test_numbers_go_on_when_every_segment_is_purged(tmp_path: Path, point: FailPoint | None) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=1, seconds=0.0)
    assert [buffer.push([row(n)]) for n in (1, 2)] == [1, 2]
    (path,) = (tmp_path / "b").glob("open-*")
    path.unlink()  # as after a crash between sealing a segment and opening the next one
    if point is not None:
        arm(f"{point.value}:raise")
        with pytest.raises(InjectedFailure):
            buffer.purge(2)
    buffer.purge(2)
    assert numbers(buffer) == []
    assert buffer.push([row(3)]) == 3


@pytest.mark.seed("V146")
def test_a_buffer_that_is_lost_gives_no_number_again_unnoticed(tmp_path: Path) -> None:
    """Rows in segments of numbers that were read before would never be read."""
    buffer = PushBuffer(tmp_path / "b", rows=1, seconds=0.0)
    assert [buffer.push([row(n)]) for n in (1, 2)] == [1, 2]
    (tmp_path / "b").rename(tmp_path / "lost")
    gone = "segment 2 and all that followed it are gone"
    with pytest.raises(InputMissing, match=gone):
        list(buffer.sealed(2))
    assert buffer.push([row(3)]) == 1
    with pytest.raises(InputMissing, match=gone) as raised:
        list(buffer.sealed(2))
    (tmp_path / "b").rename(tmp_path / "aside")
    (tmp_path / "b").mkdir()
    path = tmp_path / "b" / "open-000000000003.jsonl"
    assert str(path) in str(raised.value.remedy)
    path.touch()
    assert buffer.push([row(3)]) == 3
    assert [number for number, _ in buffer.sealed(2)] == [3]


def test_pushes_of_several_threads_are_all_there(tmp_path: Path) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=7, seconds=FOR_EVER)
    threads = [
        threading.Thread(target=lambda first=first: [buffer.push([row(n)]) for n in range(first, first + 20)])
        for first in (0, 100, 200)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    PushBuffer(tmp_path / "b", rows=1, seconds=0.0).seal_if_due()
    pushed = [n for segment in numbers(buffer) for n in segment]
    assert sorted(pushed) == [n for first in (0, 100, 200) for n in range(first, first + 20)]


def cut(buffer: PushBuffer, number: int) -> bool:
    """Seal the segment `number` with a row and a state; return False if it came too late."""
    return buffer.seal_with(number, [row(number)], b"after %d" % number)


@pytest.mark.seed("E21", "V124", "K2")
@pytest.mark.parametrize("point", [FailPoint.SEAL_BEFORE, FailPoint.SEAL_AFTER])
def test_rows_and_state_of_a_cut_are_both_there_or_none(tmp_path: Path, point: FailPoint) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=1, seconds=0.0)
    assert buffer.newest_state() == (0, None)
    assert cut(buffer, 1)
    arm(f"{point.value}:raise")
    with pytest.raises(InjectedFailure):
        cut(buffer, 2)
    arm("")
    buffer.seal_if_due()  # a scan
    is_there = point is FailPoint.SEAL_AFTER
    assert buffer.newest_state() == ((2, b"after 2") if is_there else (1, b"after 1"))
    assert numbers(buffer) == ([[1], [2]] if is_there else [[1]])
    assert cut(buffer, 3 if is_there else 2)


def test_of_two_who_cut_the_same_one_is_told_that_it_came_late(tmp_path: Path) -> None:
    """An owner that was stopped wakes up: only one of the two owners goes on from a state."""
    buffer = PushBuffer(tmp_path / "b", rows=1, seconds=0.0)
    assert cut(buffer, 1)
    assert not cut(buffer, 1)
    assert not cut(buffer, 3)
    assert buffer.newest_state() == (1, b"after 1")
    assert numbers(buffer) == [[1]]


@pytest.mark.seed("V146", "N29")
def test_the_newest_state_stays_when_its_segment_is_purged(tmp_path: Path) -> None:
    buffer = PushBuffer(tmp_path / "b", rows=1, seconds=0.0)
    for number in (1, 2):
        assert cut(buffer, number)
    arm(f"{FailPoint.SEAL_AFTER.value}:raise")
    with pytest.raises(InjectedFailure):
        cut(buffer, 3)
    arm("")
    buffer.purge(3)
    assert numbers(buffer) == []
    assert buffer.newest_state() == (3, b"after 3")
    assert cut(buffer, 4)
    assert sorted(path.name for path in (tmp_path / "b").glob("state-*")) == ["state-000000000004"]
