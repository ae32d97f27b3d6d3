"""Streamed files of sinks: the same files as from memory, the same fence against old owners, few rows in memory."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stopped_publishers import Publisher, stopped_everywhere
from test_bucket_files import CHANGES, REQUESTS, Bucket
from test_file_sinks import STEPS, Folder

from drainmark.jobs.errors import AccountingError, StoreUnavailable
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.tasks import exported_files
from drainmark.jobs.tasks.executor import Here, OnSpark
from drainmark.jobs.tasks.judged_rows import first_unfit
from drainmark.resources.delta.staging import Staging
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.object_store import ObjectStore

pytestmark = pytest.mark.seed("DX1", "V147")

FORMATS = ("csv", "json", "parquet", "text")
LINES = '{"type": "struct", "fields": [{"name": "_sequence_id", "type": "long", "nullable": true, "metadata": {}},'
LINES += '{"name": "k", "type": "string", "nullable": true, "metadata": {}}]}'


class Rows:
    """Staged files of a history, and the same rows in memory."""

    def __init__(self, folder: Folder, root: Path, *tables: pa.Table) -> None:
        self.staging = Staging(root / f"history-{uuid.uuid4().hex}", 1, "a")
        self.tables = list(tables)
        self.files: list[StagedFile] = [file for rows in tables for file in self.staging.write(rows, "rows")]
        self.place = self.staging.folder.place

    def publish(self, sink: Any, number: int, ids: range, session: Any = None) -> Any:
        executor = OnSpark(session) if session is not None else Here()
        return sink.copy_files(txn_version(1, number), ids, self.files, source=self.place, executor=executor)


def random_rows(folder: Folder, ids: range, count: int, seed: int) -> pa.Table:
    chance = random.Random(seed)
    values = [(chance.choice(ids), chance.choice(["a", 'ä,"\n;', "", None]), n) for n in range(count)]
    return folder.rows(*(value[: len(folder.schema.names)] for value in values))


@pytest.fixture(params=["here", pytest.param("tasks", marks=pytest.mark.spark)])
def session(request: pytest.FixtureRequest) -> Any:
    if request.param == "here":
        return None
    engine: SparkEngine = request.getfixturevalue("engine")
    return engine.session


@pytest.mark.parametrize("file_format", FORMATS)
def test_streamed_files_are_those_that_are_made_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: Any, file_format: str
) -> None:
    """There are more ids than a task takes, in several files, in any order; some have no rows. Few rows are held."""
    monkeypatch.setattr(exported_files, "_HELD_BYTES", 1000)
    more: dict[str, Any] = {"schema": LINES} if file_format == "text" else {}
    made = []
    for way in ("whole", "streamed"):
        (tmp_path / way).mkdir()
        folder = Folder(tmp_path / way, format=file_format, every_id=file_format == "csv", **more)
        ids = range(1, 41)
        rows = Rows(folder, tmp_path, *(random_rows(folder, range(1, 36, step), 300, step) for step in (1, 2, 3)))
        sink = folder.made()
        if way == "whole":
            sink.copy(txn_version(1, 40), ids, rows.tables)
        else:
            rows.publish(sink, 40, ids, session)
        made.append(folder)
    whole, streamed = made
    assert whole.names() == streamed.names()
    assert len(whole.names()) == (40 if file_format == "csv" else 35)
    for name in whole.names():
        if file_format == "parquet":
            assert pq.read_table(whole.path / name).equals(pq.read_table(streamed.path / name))
        else:
            assert (whole.path / name).read_bytes() == (streamed.path / name).read_bytes()
    assert streamed.left() == []
    assert os.listdir(streamed.path / "_drainmark" / "staged") == []


def test_a_bounded_number_of_rows_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One id has forty megabytes of rows; two of them are held at a time."""
    monkeypatch.setattr(exported_files, "_HELD_BYTES", 2 * 2**20)
    folder = Folder(tmp_path)
    chance = random.Random(7)
    texts = pa.array([chance.randbytes(500).hex() for _ in range(1000)])
    part = pa.table([pa.repeat(1, 1000), texts, pa.array(range(1000))], schema=folder.schema)
    rows = Rows(folder, tmp_path, *(pa.concat_tables([part] * 10) for _ in range(4)))
    assert sum(table.nbytes for table in rows.tables) > 40 * 10**6
    rows.tables.clear()
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        rows.publish(folder.made(), 1, range(1, 2))
    finally:
        pa.set_memory_pool(before)
    assert 10**6 < pool.max_memory() < 30 * 2**20
    (name,) = folder.names()
    assert len((folder.path / name).read_bytes().splitlines()) == 40_001


def test_a_staged_file_that_is_gone_is_not_published_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)
    rows = Rows(folder, tmp_path, folder.rows((1, "a", 1), (2, "b", 2)))
    work = exported_files.ExportTask.work

    def losing(task: Any, share: Any) -> Iterator[Any]:
        for file in work(task, share):
            if file["first_id"] == 2:
                os.unlink(task.place.opened(file["name"]))
            yield file

    monkeypatch.setattr(exported_files.ExportTask, "work", losing)
    with pytest.raises(AccountingError):
        rows.publish(folder.made(), 2, range(1, 3))
    assert folder.names() == []
    monkeypatch.undo()
    rows.publish(folder.sink(), 2, range(1, 3))
    assert folder.names() == ["p-0001.csv", "p-0002.csv"]


@pytest.mark.parametrize("every_id", [False, True])
def test_rows_of_ids_before_the_group_have_files(tmp_path: Path, every_id: bool) -> None:
    """A stage brings such rows late. A sink with a file for every id fails unless it is told of these ids."""
    folder = Folder(tmp_path, every_id=every_id)
    rows = Rows(folder, tmp_path, folder.rows((1, "a", 1), (3, "b", 2)), folder.rows((4, "c", 3)))
    if every_id:
        with pytest.raises(AccountingError):
            rows.publish(folder.made(), 6, range(5, 7))
        assert folder.names() == []
    else:
        rows.publish(folder.made(), 6, range(5, 7))
        assert folder.names() == ["p-0001.csv", "p-0003.csv", "p-0004.csv"]


@pytest.mark.seed("X5", "H4")
@pytest.mark.parametrize("layout", ["file", "folder"])
def test_a_publisher_stopped_before_any_of_its_steps_brings_nothing_back(tmp_path: Path, layout: str) -> None:
    """Like a publisher with the rows in memory: its successor rolls forward and withdraws; then it wakes."""

    def made(step: int) -> Publisher:
        folder = Folder(tmp_path / str(step), layout=layout)
        folder.path.parent.mkdir()
        folder.made().copy(txn_version(1, 1), [1], [folder.rows((1, "a", 1))])

        def check(label: str) -> None:
            assert len(folder.names()) == 1, label
            assert folder.sink().txn_version() == txn_version(2, 3)
            folder.sink(3).copy(txn_version(3, 4), [4], [])
            staged = folder.path / "_drainmark" / "staged"
            assert not staged.exists() or os.listdir(staged) == [], label

        return streaming(folder, tmp_path, check)

    ends = stopped_everywhere(made, STEPS)
    assert len(ends) > 12
    assert set(ends) == {"done", "fenced"}


def streaming(folder: Folder, root: Path, check: Callable[[str], None]) -> Publisher:
    """Return a publisher of a second id; its successor publishes the same id, and withdraws it."""
    rows = Rows(folder, root, folder.rows((2, "b", 2)))

    def take_over() -> None:
        rows.publish(folder.sink(2), 2, range(2, 3))
        folder.sink(2).rewind_rows(txn_version(2, 3), 1)

    return Publisher(lambda: rows.publish(folder.sink(1), 2, range(2, 3)), take_over, check)


@pytest.fixture
def make(tmp_path: Path, s3_server: str, s3_credentials: None) -> Callable[..., Bucket]:
    return lambda **options: Bucket(tmp_path, s3_server, **options)


@pytest.mark.parametrize("layout", ["file", "folder"])
def test_files_are_staged_in_the_bucket_and_copied_there(
    make: Callable[..., Bucket], tmp_path: Path, session: Any, layout: str
) -> None:
    bucket = make(layout=layout)
    rows = Rows(bucket, tmp_path, bucket.rows((1, "a", 1), (3, "b", 2)), bucket.rows((1, "c", 3)))
    sink = bucket.made()
    assert not rows.publish(sink, 3, range(1, 4), session).done_before
    assert rows.publish(sink, 3, range(1, 4), session).done_before
    ending = "/data.csv" if layout == "folder" else ".csv"
    assert bucket.store.get(bucket.bucket, f"out/p-0001{ending}") == b'"k","n"\n"a",1\n"c",3\n'
    assert [row["_sequence_id"] for row in sink.read().to_pylist()] == [1, 1, 3]
    assert bucket.staged() == []


@pytest.mark.seed("X5", "H4")
@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True], ids=["wakes", "dies"])
def test_a_publisher_stopped_before_any_of_its_requests_brings_nothing_back(
    make: Callable[..., Bucket], tmp_path: Path, dies: bool
) -> None:
    """The publisher wakes after its successor has withdrawn the id. It goes on, or changes one more object and dies."""

    def made(_: int) -> Publisher:
        bucket = make()
        bucket.made().copy(txn_version(1, 1), [1], [bucket.rows((1, "a", 1))])

        def check(label: str) -> None:
            assert set(bucket.names()) <= {"p-0001.csv", "p-0002.csv"}
            bucket.sink(3).copy(txn_version(3, 5), [5], [])
            assert bucket.names() == ["p-0001.csv"], label
            assert bucket.staged() == []

        return streaming(bucket, tmp_path, check)

    ends = stopped_everywhere(made, CHANGES if dies else REQUESTS, dead=REQUESTS if dies else ())
    assert len(ends) > (3 if dies else 6)
    assert ("killed" if dies else "fenced") in ends


def test_a_bucket_that_fails_is_told_as_a_store(
    make: Callable[..., Bucket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = make()
    rows = Rows(bucket, tmp_path, bucket.rows((1, "a", 1)))
    sink = bucket.made()
    monkeypatch.setattr(ObjectStore, "bucket", _elsewhere)
    with pytest.raises(StoreUnavailable):
        rows.publish(sink, 1, range(1, 2))
    monkeypatch.undo()
    rows.publish(sink, 1, range(1, 2))
    assert bucket.names() == ["p-0001.csv"]


def _elsewhere(store: ObjectStore, name: str) -> Any:
    from drainmark.jobs.tasks.buckets import Bucket as Reached

    connection = store.connection
    return Reached("s3://there-is-no-such-bucket", connection.address, connection.region_name, connection.profile or "")


@pytest.mark.spark
def test_tasks_tell_of_rows_that_no_file_can_hold(engine: SparkEngine) -> None:
    """Tasks tell only the first such row. A date beyond those of Python stops the formats whose readers lack it."""
    rows = engine.session.range(0, 100, 1, 3).selectExpr("id as _sequence_id", "'a' as k", "date'9999-12-31' as day")
    far = rows.selectExpr("_sequence_id", "k", "if(_sequence_id = 77, date_add(day, 1), day) as day")
    broken = rows.selectExpr("_sequence_id", "if(_sequence_id = 60, 'a\\nb', k) as k")
    nulls = rows.selectExpr("_sequence_id", "if(_sequence_id = 61, null, k) as k")
    tasks = OnSpark(engine.session)
    assert first_unfit(tasks, rows, file_format="json") is None
    assert first_unfit(tasks, far, file_format="parquet") is None
    assert first_unfit(tasks, broken, file_format="csv") is None
    given = ((far, "json", 77), (far, "csv", 77), (broken, "text", 60), (nulls, "text", 61), (nulls, "csv", 61))
    for frame, file_format, number in given:
        facts = first_unfit(tasks, frame, file_format=file_format) or {}
        assert (facts["first_id"], facts["rows"]) == (number, 1)
