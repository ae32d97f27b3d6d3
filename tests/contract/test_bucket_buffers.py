"""The buffer of a `ReplayableStart` in a bucket: no two pushes share a number, even after crashes and losses (E27)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from places import ON_A_DISK

from drainmark.jobs.errors import InputMissing
from drainmark.jobs.failpoints import FailPoint, InjectedFailure, arm
from drainmark.jobs.operators.sources.pushed import bucket_buffer
from drainmark.jobs.operators.sources.pushed.bucket_buffer import YOUNG_SECONDS, BucketBuffer
from drainmark.resources.storage.folder import Folder, LocalFolder

pytestmark = [ON_A_DISK, pytest.mark.seed("E27", "V146")]


@pytest.fixture(autouse=True)
def elsewhere() -> Iterator[None]:
    """Make each test a process that has seen no segment yet."""
    forget()
    yield
    arm("")


def forget() -> None:
    bucket_buffer._newest.clear()
    bucket_buffer._purged.clear()


def numbers(buffer: BucketBuffer, after: int = 0) -> list[int]:
    return [json.loads(line)["n"] for number, _ in buffer.sealed(after) for line in buffer.read(number).splitlines()]


def test_each_push_is_a_segment_and_the_next_process_goes_on(place: Folder) -> None:
    buffer = BucketBuffer(place)
    assert (buffer.push([]), list(buffer.sealed(0))) == (0, [])
    assert [buffer.push([{"n": 1}, {"n": 2}]), buffer.push([{"n": 3}])] == [1, 2]
    forget()
    assert BucketBuffer(place).push([{"n": 4}]) == 3
    assert numbers(buffer) == [1, 2, 3, 4]
    assert numbers(buffer, after=2) == [4]
    assert [number for number, _ in buffer.sealed(0)] == [1, 2, 3]
    assert all(buffer.size(number) == size for number, size in buffer.sealed(0))


@pytest.mark.parametrize("name", ["segment-000000000009.jsonl.tmp", "segment-copy.jsonl"])
def test_an_object_of_another_name_is_no_segment(place: Folder, name: str) -> None:
    buffer = BucketBuffer(place)
    assert buffer.push([{"n": 1}]) == 1
    place.write(name, pa.py_buffer(b"x"))
    forget()
    assert BucketBuffer(place).push([{"n": 2}]) == 2
    assert numbers(buffer) == [1, 2]


def test_pushes_at_the_same_time_share_no_number(place: Folder) -> None:
    buffer = BucketBuffer(place)
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(lambda n: buffer.push([{"n": n}]), range(24)))
    assert sorted(given) == list(range(1, 25))
    assert sorted(numbers(buffer)) == list(range(24))


class LosesReplies(LocalFolder):
    """A bucket that writes an object, and then answers that the object existed already."""

    def write(self, path: str, data: pa.Buffer) -> str:
        super().write(path, data)
        raise FileExistsError(path)


def test_a_push_whose_reply_was_lost_is_not_put_twice(place: Folder) -> None:
    if not isinstance(place, LocalFolder):
        pytest.skip("lost replies of a real store: tests/integration/test_pushed_rows.py")
    buffer = BucketBuffer(LosesReplies(place.path))
    assert [buffer.push([{"n": 1}]), buffer.push([{"n": 1}])] == [1, 2]
    assert numbers(buffer) == [1, 1], "two pushes of the same row are two"


@pytest.mark.parametrize("point", [FailPoint.SEAL_BEFORE, FailPoint.SEAL_AFTER])
def test_a_push_that_fails_is_there_whole_or_not_at_all(place: Folder, point: FailPoint) -> None:
    buffer = BucketBuffer(place)
    buffer.push([{"n": 1}])
    arm(f"{point.value}:raise")
    with pytest.raises(InjectedFailure):
        buffer.push([{"n": 2}, {"n": 3}])
    arm("")
    buffer.push([{"n": 4}])
    assert numbers(buffer) == ([1, 4] if point is FailPoint.SEAL_BEFORE else [1, 2, 3, 4])


@pytest.mark.parametrize("row", [[1], {"n": 1, "_pushed_at": 1}, {"n": float("nan")}], ids=["list", "time", "nan"])
def test_what_is_no_row_puts_nothing(place: Folder, row: Any) -> None:
    buffer = BucketBuffer(place)
    with pytest.raises((TypeError, ValueError)):
        buffer.push([{"n": 1}, row])
    assert list(buffer.sealed(0)) == []


@pytest.mark.seed("N29")
def test_a_purge_leaves_the_newest_and_the_young_and_no_number_is_used_again(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = BucketBuffer(place)
    for n in range(1, 5):
        buffer.push([{"n": n}])
    buffer.purge(3)
    assert numbers(buffer) == [1, 2, 3, 4], "all are young"
    monkeypatch.setattr(bucket_buffer, "YOUNG_SECONDS", -1.0)
    forget()
    buffer.purge(2)
    assert numbers(buffer) == [3, 4]
    assert buffer.size(2) is None
    forget()
    buffer.purge(4)
    assert numbers(buffer) == [4], "it says which number is next"
    assert numbers(buffer, after=4) == []
    bucket_buffer._newest[place.uri] = 2, time.monotonic() - YOUNG_SECONDS
    assert buffer.push([{"n": 5}]) == 5, "what was the newest long ago is not believed"
    forget()
    buffer.purge(5)
    assert numbers(buffer, after=4) == [5]


def test_a_buffer_that_lost_its_newest_segment_gives_no_number_in_silence(place: Folder) -> None:
    buffer = BucketBuffer(place)
    buffer.push([{"n": 1}])
    buffer.push([{"n": 2}])
    place.remove([f"segment-{2:012d}.jsonl"])
    with pytest.raises(InputMissing, match="segment 2"):
        list(buffer.sealed(2))
