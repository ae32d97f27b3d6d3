"""Batches that channels stage, on a disk or in a bucket: they come back unchanged (F24, F25, F6)."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from channel_parts import KINDS, ids_of
from places import BUCKET, folders, make_bucket
from unit.protocol.checkpoint_rows import claim

from drainmark.jobs import failpoints
from drainmark.jobs.errors import Fenced
from drainmark.jobs.failpoints import ChannelPoint, InjectedFailure
from drainmark.jobs.protocol.stage_flow import Half, InFlight, channels_folder, part_attempt
from drainmark.jobs.runtime.stages.channels.channel import Channel
from drainmark.jobs.runtime.stages.channels.rows import ArrowRows, Batch, ChannelRows, FileRows, Spool
from drainmark.resources.checkpoints.region_store import RegionTables
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.folder import Folder, LocalFolder

REGION = "app/start"
NAME = channels_folder(REGION)


@pytest.fixture(params=["disk", "bucket"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "disk":
        return LocalFolder(tmp_path)
    server, _ = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_credentials")
    return BucketFolder(make_bucket(server), BUCKET, uuid.uuid4().hex)


@pytest.fixture
def store(tables: Folder, tmp_path: Path) -> RegionTables:
    return RegionTables(tmp_path, REGION, tables)


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> type[Channel]:
    return KINDS[request.param]


def spool_at(store: RegionTables, epoch: int = 1) -> Spool:
    return Spool(store.staging(NAME, epoch, uuid.uuid4().hex), store.table(NAME).files)


def opened(kind: type[Channel], store: RegionTables, in_flight: tuple[InFlight, ...] = (), epoch: int = 1) -> Channel:
    channel = kind("a[x]->b", stream="a[x]", batches=8, bytes=10**9)
    channel.open(epoch, spool_at(store, epoch), in_flight)
    return channel


def table_of(first: int, last: int) -> pa.Table:
    ids = [number for number in range(first, last + 1) for _ in range(2)]
    position = pa.StructArray.from_arrays(
        [pa.array([0] * len(ids), pa.int64()), pa.array(range(len(ids)), pa.int64())], ["block", "row"]
    )
    moment = dt.datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
    return pa.table(
        {
            "word": pa.array([f"w{number}" if number % 3 else None for number in ids]),
            "at": pa.array([moment] * len(ids), pa.timestamp("us", tz="UTC")),
            "parts": pa.array([[number, None] for number in ids], pa.list_(pa.int64())),
            "_position": position,
            "_sequence_id": pa.array(ids, pa.int64()),
        }
    )


def put(channel: Channel, first: int, last: int) -> pa.Table:
    table = table_of(first, last)
    rows = ArrowRows(table)
    channel.writer(1).put(Batch(first_id=first, last_id=last, rows=rows))
    rows.release()
    return table


def checkpoint(channel: Channel, spool: Spool) -> tuple[InFlight, ...]:
    overtaken = channel.overtaken()
    found = tuple(each.stage(spool) for each in overtaken)
    for each in overtaken:
        each.release()
    return found


def as_rows(rows: ChannelRows) -> list[dict[str, Any]]:
    table = rows.table()
    assert table is not None
    found: list[dict[str, Any]] = table.sort_by([("_sequence_id", "ascending")]).to_pylist()
    return found


@pytest.mark.seed("F1", "F24", "F25", "F27", "V110")
def test_what_is_in_flight_comes_back_to_its_own_half(kind: type[Channel], store: RegionTables) -> None:
    channel = opened(kind, store)
    tables = [put(channel, 1, 3), put(channel, 4, 4), put(channel, 7, 9)]
    reader = channel.reader(1)
    taken = reader.take()
    found = checkpoint(channel, spool_at(store))
    assert [(each.first_id, each.last_id, each.rows, each.half) for each in found] == [
        (1, 3, 6, Half.INPUT), (4, 4, 2, Half.OUTPUT), (7, 9, 6, Half.OUTPUT),
    ]  # fmt: skip
    assert [InFlight.from_json(each.to_json()) for each in found] == list(found)
    store.verify(NAME, [file for each in found for file in each.files])
    again = opened(kind, store, found, epoch=2)
    with pytest.raises(Fenced):
        again.reader(1)
    reader = again.reader(2)
    for table in tables:
        item = reader.take()
        assert isinstance(item, Batch)
        assert as_rows(item.rows) == table.to_pylist()
        reader.done(item)
    assert again.is_empty
    assert isinstance(taken, Batch)
    assert as_rows(taken.rows) == tables[0].to_pylist(), "the old one still has what it took"


@pytest.mark.seed("F5", "E30")
def test_a_checkpoint_of_what_came_back_names_the_same_files(kind: type[Channel], store: RegionTables) -> None:
    channel = opened(kind, store)
    put(channel, 1, 3)
    put(channel, 4, 6)
    first = checkpoint(channel, spool_at(store))
    again = opened(kind, store, first, epoch=2)
    reader = again.reader(2)
    reader.done(reader.take())  # type: ignore[arg-type]
    assert checkpoint(again, spool_at(store, 2)) == first[1:]


@pytest.mark.seed("F28")
def test_a_batch_that_a_rewind_cut_has_no_rows_above(kind: type[Channel], store: RegionTables) -> None:
    channel = opened(kind, store)
    table = put(channel, 1, 5)
    (whole,) = checkpoint(channel, spool_at(store))
    cut = whole.up_to(3)
    assert cut is not None
    item = opened(kind, store, (cut,), epoch=2).reader(2).take()
    assert isinstance(item, Batch)
    assert as_rows(item.rows) == table.slice(0, 6).to_pylist()


def test_a_batch_without_rows_has_no_file(kind: type[Channel], store: RegionTables) -> None:
    channel = opened(kind, store)
    rows = ArrowRows(table_of(1, 1).slice(0, 0))
    channel.writer(1).put(Batch(first_id=1, last_id=2, rows=rows))
    (found,) = checkpoint(channel, spool_at(store))
    assert (found.files, found.rows) == ((), 0)
    item = opened(kind, store, (found,), epoch=2).reader(2).take()
    assert isinstance(item, Batch)
    assert (item.first_id, item.last_id, item.rows.table()) == (1, 2, None)


@pytest.mark.parametrize("point", [ChannelPoint.SPOOL_BEFORE, ChannelPoint.SPOOL_WRITTEN])
def test_a_batch_that_could_not_be_staged_is_not_in(store: RegionTables, point: ChannelPoint) -> None:
    channel = opened(KINDS["durable"], store)
    failpoints.arm(f"{point}:raise")
    with pytest.raises(InjectedFailure):
        put(channel, 1, 2)
    assert channel.is_empty
    put(channel, 1, 2)
    assert channel.batches == 1


@pytest.mark.parametrize("tables", ["disk", pytest.param("bucket", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.seed("F6")
def test_rows_that_spark_staged_are_read_by_spark(store: RegionTables, engine: SparkEngine) -> None:
    """Spark writes three partitions, like a large group, and reads any number; a rewind cuts the rows above its id."""
    session = engine.session
    frame = session.createDataFrame(table_of(1, 6))
    spool = spool_at(store)
    files = spool.staging.write_frame(frame.repartition(3), "large")
    assert len(files) > 1
    channel = opened(KINDS["memory"], store)
    rows = FileRows(files, reader=spool.reader, last_id=6)
    channel.writer(1).put(Batch(first_id=1, last_id=6, rows=rows))
    (found,) = checkpoint(channel, spool_at(store))
    assert (found.rows, found.half, found.files) == (12, Half.OUTPUT, files), "what is in files stays there"
    cut = found.up_to(4)
    assert cut is not None
    for batch, last in ((found, 6), (cut, 4)):
        item = opened(KINDS["memory"], store, (batch,), epoch=2).reader(2).take()
        assert isinstance(item, Batch)
        assert ids_of(item.rows) == sorted([*range(1, last + 1)] * 2)
        seen = item.rows.frame(session, frame.schema)
        expected = frame.where(f"_sequence_id <= {last}").orderBy("_position.row").collect()
        assert seen.orderBy("_position.row").collect() == expected


@pytest.mark.seed("H8")
def test_what_a_stage_staged_is_no_orphan_whoever_claims(store: RegionTables) -> None:
    """No row has the attempt of a stage; but rows of other attempts, such as that of an image, may name its files."""
    store.checkpoint.create()
    store.checkpoint.claim(claim(1, 1))
    rows = pa.table({"_sequence_id": pa.array([1], pa.int64())})
    for attempt in ("orphan", part_attempt("image")):
        store.staging("state/app/count", 1, attempt).write(rows, "rows")
    table = store.table("state/app/count")
    table.create('{"type":"struct","fields":[{"name":"_sequence_id","type":"long","nullable":true,"metadata":{}}]}')
    assert store.leftovers.collect_orphans(["state/app/count"], 2) == 1
    assert folders(table.folder, "_staged") == [f"1-{part_attempt('image')}"]
