"""What Spark keeps of a large state between groups: every row once, each copied about as often as the state doubles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from jobs.protocol.manifest import StagedFile
from jobs.state.cached import CachedRows
from resources.spark import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Read = Callable[[Sequence[StagedFile], Sequence[StagedFile]], "DataFrame"]


def file(number: int, size: int) -> StagedFile:
    return StagedFile(path=f"{number}.parquet", size=size, rows=1, first_id=number, last_id=number)


@pytest.fixture
def asked() -> list[int]:
    return []


@pytest.fixture
def read(engine: SparkEngine, asked: list[int]) -> Read:
    """Give a row a file, its id, and note which files were asked for."""

    def rows(image: Sequence[StagedFile], changes: Sequence[StagedFile]) -> DataFrame:
        numbers = [each.last_id for each in (*image, *changes)]
        asked.extend(number for number in numbers if number is not None)
        return engine.session.createDataFrame([(number,) for number in numbers], "n int")

    return rows


@pytest.mark.seed("H29")
def test_files_are_read_once_and_pieces_stay_few(read: Read, asked: list[int]) -> None:
    image = (file(0, 1_000),)
    changes = [file(number, 10) for number in range(1, 41)]
    cached = CachedRows()
    for upto in range(len(changes) + 1):
        found = cached.rows(image, tuple(changes[:upto]), read)
        assert sorted(row.n for row in found.collect()) == list(range(upto + 1))
        assert len(cached.pieces) <= 9
    assert asked == list(range(41)), "no file twice"
    assert cached.pieces[0].size == 1_000, "the image is not copied for changes that are small beside it"
    cached.release()


def test_another_image_begins_anew(read: Read, asked: list[int]) -> None:
    cached = CachedRows()
    cached.rows((file(0, 10),), (file(1, 10),), read)
    found = cached.rows((file(2, 10),), (), read)
    assert [row.n for row in found.collect()] == [2]
    assert len(cached.pieces) == 1
    cached.release()
