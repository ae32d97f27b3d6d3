"""What Spark keeps of a large state between groups: every row once, each copied about as often as the state doubles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Window

from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.runtime.input.materialisation import Materialiser
from drainmark.jobs.state.cached_rows import CachedRows
from drainmark.resources.spark.session import SparkEngine

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
    changes = [file(number, 10) for number in range(1, 14)]
    cached = CachedRows(keys=("n",))
    for upto in range(len(changes) + 1):
        found = cached.rows(image, tuple(changes[:upto]), read)
        assert sorted(row.n for row in found.collect()) == list(range(upto + 1))
        assert len(cached.pieces) <= 9
    assert asked == list(range(14)), "no file twice"
    assert cached.pieces[0].size == 1_000, "the image is not copied for changes that are small beside it"
    cached.release()


def test_another_image_begins_anew(read: Read, asked: list[int]) -> None:
    cached = CachedRows(keys=("n",))
    cached.rows((file(0, 10),), (file(1, 10),), read)
    found = cached.rows((file(2, 10),), (), read)
    assert [row.n for row in found.collect()] == [2]
    assert len(cached.pieces) == 1
    cached.release()


@pytest.fixture
def on_disk(engine: SparkEngine, tmp_path: Path) -> Read:
    """Give a row a file, its id, from files; those of an image and of changes as a union, as a state reads them."""

    def written(files: Sequence[StagedFile]) -> DataFrame:
        for each in files:
            pq.write_table(pa.table({"n": pa.array([each.last_id], pa.int32())}), tmp_path / each.path)
        return engine.session.read.schema("n int").parquet(*(str(tmp_path / each.path) for each in files))

    def rows(image: Sequence[StagedFile], changes: Sequence[StagedFile]) -> DataFrame:
        frames = [written(files) for files in (image, changes) if files]
        return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])

    return rows


@pytest.mark.seed("H15", "H29")
def test_what_is_kept_needs_its_files_no_more(on_disk: Read, tmp_path: Path) -> None:
    """A union of unions is one flat union, which would read the files of those that are kept once more."""
    cached, image = CachedRows(keys=("n",)), (file(0, 10), file(1, 10))
    changes: tuple[StagedFile, ...] = (file(2, 10),)
    for number in range(3, 14):  # pieces are joined on the way
        found = cached.rows(image, changes, on_disk)
        assert sorted(row.n for row in found.collect()) == list(range(number))
        for path in tmp_path.glob("*.parquet"):
            path.unlink()
        changes = (*changes, file(number, 10))
    cached.release()


@pytest.mark.seed("H15", "H16")
def test_a_union_that_feeds_a_union_is_computed_once(engine: SparkEngine, on_disk: Read, tmp_path: Path) -> None:
    materialiser = Materialiser(session=engine.session, small=False)
    once = materialiser.once(on_disk((file(1, 10),), (file(2, 10),)))
    assert once.count() == 2
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    others = engine.session.createDataFrame([(3,)], "n int")
    assert sorted(row.n for row in once.unionByName(others).collect()) == [1, 2, 3]
    materialiser.release()


@pytest.mark.seed("H15", "N16")
def test_a_step_by_key_moves_no_row_of_what_is_kept(on_disk: Read, engine: SparkEngine) -> None:
    """The only exchange of a window over the state and a group's rows is that of the group's rows."""
    cached, image = CachedRows(keys=("n",)), (file(0, 256 << 20),)
    before = cached.rows(image, (), on_disk)
    before = cached.rows(image, (file(1, 10),), on_disk)
    assert cached.partitions == 4, "no partition of more than 64 MiB"
    assert before.count() == 2  # how they lie is known when they are there
    rows = cached.laid_out(engine.session.range(7).select(F.col("id").cast("int").alias("n")))
    both = before.withColumn("is_new", F.lit(False)).unionByName(rows.withColumn("is_new", F.lit(True)))
    numbered = both.withColumn("place", F.row_number().over(Window.partitionBy("n").orderBy("is_new")))
    lines = str(numbered._jdf.queryExecution().executedPlan()).splitlines()
    indents = [len(line) - len(line.lstrip(" :+-*")) for line in lines]
    kept = [number for number, line in enumerate(lines) if "InMemoryRelation" in line]
    inside = {
        number for start in kept for number in range(start + 1, len(lines))
        if all(indent > indents[start] for indent in indents[start + 1 : number + 1])
    }  # fmt: skip
    exchanges = [line for number, line in enumerate(lines) if "Exchange" in line and number not in inside]
    assert len(kept) == 2
    assert ["REPARTITION_BY_NUM" in line for line in exchanges] == [True], "\n".join(lines)
    assert numbered.count() == 9
    cached.release()
