"""The S3 client of tasks against an S3 server, and against a proxy that answers wrongly."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import canary
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_proxy import Fault, FaultProxy, fault_proxy
from pyspark.sql.types import LongType, StringType

from drainmark.jobs.errors import ObjectChanged
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.operators.sources.pushed.bucket_buffer import BucketBuffer
from drainmark.jobs.tasks import file_ranges, read_files
from drainmark.jobs.tasks.buckets import Bucket, StoredObject
from drainmark.jobs.tasks.executor import OnSpark
from drainmark.jobs.tasks.file_ranges import END, FileRange, InputFile
from drainmark.jobs.tasks.parquet_files import WriteTask, frame_of_files, own_shares, written_files
from drainmark.jobs.tasks.places import BucketPlace, LocalPlace
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.object_store import ObjectStore

pytestmark = pytest.mark.usefixtures("s3_credentials")

LARGE = bytes(range(256)) * 70_000  # several pieces


@pytest.fixture
def store(s3_server: str) -> ObjectStore:
    return ObjectStore(s3_server)


@pytest.fixture
def bucket(store: ObjectStore) -> Bucket:
    name = f"s3://tasks-{uuid.uuid4().hex[:12]}"
    store.connection.client.create_bucket(Bucket=name.removeprefix("s3://"))
    return store.bucket(name)


@pytest.fixture
def proxy(s3_server: str) -> Iterator[FaultProxy]:
    with fault_proxy(s3_server) as served:
        yield served


def put(store: ObjectStore, bucket: Bucket, key: str, content: bytes) -> StoredObject:
    etag = store.put(bucket.address, key, content)
    return StoredObject(bucket=bucket, key=key, size=len(content), etag=etag)


@pytest.mark.parametrize("key", ["x//y", "/x", "a/../b", "a/./b", "a\nb", "a\tb", "a\x7fb"])
def test_what_the_client_cannot_name_is_said_before(store: ObjectStore, bucket: Bucket, key: str) -> None:
    assert not StoredObject(bucket=bucket, key=key, size=1, etag="e").can_be_named


def test_tasks_fetch_of_what_is_pushed_what_they_can_name(store: ObjectStore, bucket: Bucket) -> None:
    """Tasks cannot name objects below such a prefix: they would find nothing, and the slice would be lost."""
    prefixes = {"pushed/a": True, "pushed//a": False, "pushed/./a": False}
    if canary.CHECKS_SIGNATURES:  # SeaweedFS refuses such a key itself
        del prefixes["pushed/./a"]
    for prefix, can_be_named in prefixes.items():
        store.fenced.clear()  # so that writers race below each prefix
        buffer = BucketBuffer(BucketFolder(store, bucket.address, prefix))
        number = buffer.push([{"n": 1}])
        stored = buffer.stored(number)
        assert (stored is not None) == can_be_named
        assert stored is None or b"".join(stored.pieces()) == buffer.read(number)


def test_an_object_that_changes_midway_is_not_read_on(store: ObjectStore, bucket: Bucket) -> None:
    pieces = put(store, bucket, "a", LARGE).pieces()
    next(pieces)
    store.put(bucket.address, "a", LARGE[::-1])
    with pytest.raises(ObjectChanged):
        list(pieces)


@pytest.mark.seed("D16")
@canary.only_with_moto("a request without a header that was signed is refused")
def test_another_object_is_not_read_from_a_server_that_ignores_conditions(
    store: ObjectStore, bucket: Bucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Two ranges of one scanned object are of one object; so is the copy that the run makes."""
    proxy.choose = lambda method, path, before: "unconditional"
    through = ObjectStore(proxy.url)
    scanned = replace(put(store, bucket, "in/a", b"AAAABBBB"), bucket=through.bucket(bucket.address))
    assert scanned.read(0, 4) == b"AAAA"
    through.fetch(bucket.address, "in/a", tmp_path / "copy", etag=scanned.etag, size=8)
    store.put(bucket.address, "in/a", b"CCCCDDDD")
    for read in (
        lambda: scanned.read(4, 8),
        lambda: list(scanned.pieces()),
        lambda: through.fetch(bucket.address, "in/a", tmp_path / "other", etag=scanned.etag, size=8),
    ):
        with pytest.raises(ObjectChanged, match=f"{bucket.address}/in/a"):
            read()
    assert not (tmp_path / "other").exists()


def test_a_version_is_read_whatever_was_put_over_it(store: ObjectStore, bucket: Bucket) -> None:
    store.connection.client.put_bucket_versioning(
        Bucket=bucket.address.removeprefix("s3://"), VersioningConfiguration={"Status": "Enabled"}
    )
    before = put(store, bucket, "a", b"before")
    version = store.head(bucket.address, "a").version
    store.put(bucket.address, "a", b"after!")
    found = StoredObject(bucket=bucket, key="a", size=before.size, etag=before.etag, version=version)
    assert b"".join(found.pieces()) == b"before"


def test_a_file_of_rows_goes_in_and_comes_out(store: ObjectStore, bucket: Bucket) -> None:
    place, rows = BucketPlace(bucket, "lake/t"), pa.table({"n": list(range(100_000))})
    with place.new_file("part/a.parquet") as sink:
        pq.write_table(rows, sink, row_group_size=1000)
    assert place.stamp("part/a.parquet") == (store.head(bucket.address, "lake/t/part/a.parquet").size, "")
    with pq.ParquetFile(place.opened("part/a.parquet")) as file:
        assert file.read() == rows
    with pytest.raises(FileNotFoundError, match=f"{bucket.address}/lake/t/part/b.parquet"):
        place.opened("part/b.parquet")


@canary.only_with_moto("to a condition it answers NoSuchKey, whatever is missing")
def test_a_missing_bucket_is_no_missing_object(store: ObjectStore, bucket: Bucket) -> None:
    gone = StoredObject(bucket=replace(bucket, address=f"{bucket.address}-gone"), key="a", size=1, etag="e")
    with pytest.raises(OSError, match="no such bucket"):
        list(gone.pieces())


def test_rows_come_in_batches_of_bounded_size(store: ObjectStore, bucket: Bucket) -> None:
    """The file has several row groups: each has few rows, and the rows have many bytes."""
    place, rows = BucketPlace(bucket, "t"), pa.table({"text": [str(n) * 1000 for n in range(100)]})
    with place.new_file("a.parquet") as sink:
        pq.write_table(rows, sink, row_group_size=10)
    (share,) = own_shares(place, ["a.parquet"], rows.schema, None)
    batches = list(share.rows())
    assert [batch.num_rows for batch in batches] == [10] * 10


@pytest.mark.seed("F6")
@pytest.mark.parametrize("megabytes", [0, 9, 70, 200])
def test_a_file_is_read_by_any_number_of_tasks(store: ObjectStore, bucket: Bucket, megabytes: int) -> None:
    """Each row is read once, in order. If there are more tasks than row groups, some tasks read nothing."""
    place, rows = BucketPlace(bucket, "t"), pa.table({"n": list(range(100))})
    with place.new_file("a.parquet") as sink:
        pq.write_table(rows, sink, row_group_size=10)
    shares = own_shares(place, ["a.parquet"], rows.schema, [megabytes * 2**20])
    assert len(shares) == max(1, -(-megabytes // 8))
    found = [list(share.rows()) for share in shares]
    assert sum(bool(batches) for batches in found) == min(len(shares), 10)
    assert [n for batches in found for batch in batches for n in batch.column(0).to_pylist()] == list(range(100))


@pytest.mark.spark
def test_rows_come_back_whose_types_say_that_no_member_of_a_struct_is_null(bucket: Bucket, engine: SparkEngine) -> None:
    """As Spark says of a constant, also where the whole struct is null: of the missing side of an outer join."""
    place = BucketPlace(bucket, "t")
    found = engine.session.sql("select id, lag(struct(true as a, id as b)) over (order by id) as old from range(3)")
    assert not found.schema["old"].dataType["a"].nullable
    facts = OnSpark(engine.session).run_over(found, WriteTask(place, "rows"))
    files = written_files(facts)
    rows = frame_of_files(engine.session, place, [file.name for file in files], found.schema)
    assert sorted(map(tuple, rows.collect())) == sorted(map(tuple, found.collect()))


def test_a_file_of_any_size_goes_into_so_many_tasks_as_a_driver_bears() -> None:
    assert len(own_shares(LocalPlace("/t"), ["a"], pa.schema([]), [4000 * 2**30])) == 4000


COLUMNS = (("text", StringType()), ("n", LongType()))


def write_lines(rows: pa.Table, path: Path) -> None:
    path.write_text("\n".join(map(json.dumps, rows.to_pylist())))


OBJECTS: dict[str, tuple[Expected, Callable[[pa.Table, Path], object]]] = {
    "parquet": (Expected(format="parquet", columns=COLUMNS), pq.write_table),
    "json": (Expected(format="json", columns=COLUMNS[:1], on_schema="rescue"), write_lines),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_task_fetches_an_object_once(
    store: ObjectStore, bucket: Bucket, proxy: FaultProxy, tmp_path: Path, kind: str
) -> None:
    """The task judges the object and writes its rows in one pass over its bytes."""
    rows = pa.table({"text": [f"row {n * n}" for n in range(60_000)], "n": list(range(60_000))})
    expected, write = OBJECTS[kind]
    write(rows, tmp_path / "object")
    stored = put(store, bucket, "in/a", (tmp_path / "object").read_bytes())
    through = replace(stored, bucket=ObjectStore(proxy.url).bucket(bucket.address))
    file = InputFile(number=1, path="/in/1.data", size=stored.size, stored=through)
    whole = FileRange(file=file, start=0, end=END, is_whole=True)
    (facts,) = read_files.ReadTask(expected, LocalPlace(str(tmp_path / "rows"))).work((whole,))
    assert [each["facts"]["records"] for each in facts["answers"]] == [rows.num_rows]
    assert sum(each["rows"] for each in facts["written"]) == rows.num_rows
    assert stored.size <= proxy.sent <= 1.1 * stored.size


@pytest.mark.seed("DX6", "I2")
def test_tasks_fetch_the_row_groups_of_their_ranges_of_the_object_that_was_scanned(
    store: ObjectStore, bucket: Bucket, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_ranges, "_PIECE_BYTES", 1 << 14)
    rows = pa.table({"text": [f"row {n * n}" for n in range(60_000)], "n": list(range(60_000))})
    pq.write_table(rows, tmp_path / "object", row_group_size=5000)
    stored = put(store, bucket, "in/a", (tmp_path / "object").read_bytes())
    through = replace(stored, bucket=ObjectStore(proxy.url).bucket(bucket.address))
    expected, place = Expected(format="parquet", columns=COLUMNS), LocalPlace(str(tmp_path / "rows"))
    file = InputFile(number=1, path="/in/1.data", size=stored.size, stored=through)
    ranges = file_ranges.ranges_of(file, expected, stored.size // 4 + 1)
    task, found = read_files.ReadTask(expected, place), []
    for number in range(4):
        if number == 3:
            store.put(bucket.address, "in/a", (tmp_path / "object").read_bytes()[::-1])
        sent = proxy.sent
        (told,) = task.work((ranges[number],))
        assert told["answers"][0]["lost"] == (None if number < 3 else "changed")
        assert proxy.sent - sent < 0.5 * stored.size
        found += [pq.read_table(place.opened(each["name"])) for each in told["written"]]
    read = pa.concat_tables(found)
    assert 0 < read.num_rows < rows.num_rows
    assert read.select(["text", "n"]).equals(rows.slice(0, read.num_rows).cast(read.select(["text", "n"]).schema))
    places = [(row["block"], row["row"]) for row in read["_position"].to_pylist()]
    assert places == sorted(set(places))
    assert {block for block, _ in places} == {each.start for each in ranges[:3]}


@pytest.mark.parametrize("fault", ["500", "503", "short body"])
def test_what_passes_is_tried_again(store: ObjectStore, bucket: Bucket, proxy: FaultProxy, fault: Fault) -> None:
    stored = put(store, bucket, "a", LARGE)
    proxy.choose = lambda method, path, before: fault if before == 0 else None
    found = StoredObject(
        bucket=ObjectStore(proxy.url).bucket(bucket.address), key="a", size=stored.size, etag=stored.etag
    )
    assert b"".join(found.pieces()) == LARGE


@pytest.mark.seed("Z5")
def test_a_refusal_tells_no_secret(store: ObjectStore, bucket: Bucket, proxy: FaultProxy) -> None:
    stored = put(store, bucket, "a", b"1")
    proxy.choose = lambda method, path, before: "403"
    proxy.error = ("InvalidAccessKeyId", f"<AWSAccessKeyId>{canary.ACCESS_KEY}</AWSAccessKeyId> {canary.SECRET}")
    found = StoredObject(bucket=ObjectStore(proxy.url).bucket(bucket.address), key="a", size=1, etag=stored.etag)
    place = BucketPlace(found.bucket, "t")

    def write() -> None:
        with place.new_file("b") as sink:
            sink.write(b"1")

    for use in (lambda: list(found.pieces()), write, lambda: place.opened("a").read()):
        with pytest.raises(OSError, match=f"{bucket.address}/") as caught:
            use()
        assert "403" in str(caught.value)
        assert canary.ACCESS_KEY not in str(caught.value)
        assert canary.SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
