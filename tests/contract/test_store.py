"""The contract of a store of objects, over all kinds: memory, an S3 server, Azure's emulator."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier

import azurite
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_proxy import Fault, FaultProxy, fault_proxy

from drainmark.jobs.errors import ObjectChanged, ObjectMissing, Retry, StoreRefused, StoreUnavailable
from drainmark.jobs.tasks.bucket_clients import Patience
from drainmark.jobs.tasks.buckets import Bucket, StoredObject, can_be_named
from drainmark.jobs.tasks.places import BucketPlace
from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.object_store import ObjectStore
from drainmark.resources.storage.store_probe import DELETES_ANY

LARGE = bytes(range(256)) * 70_000
"""More than two pieces of 8 MiB."""

PASSING: tuple[Fault, ...] = ("500", "503", "timeout", "short body")

ODD = ["a b", "%41%", "ü/ß", "[1]{2}*?", "_x", ".x", "a:b", "a+b&c=d#e", "日本", "~a", "💧"]


@pytest.fixture(params=["memory", "s3", "azure"])
def address(request: pytest.FixtureRequest) -> str:
    """Return the address of a new bucket of one kind."""
    name = f"b{uuid.uuid4().hex[:12]}"
    if request.param == "memory":
        return f"memory://{name}"
    if request.param == "azure":
        return str(request.getfixturevalue("azure"))
    request.getfixturevalue("s3_credentials")
    ObjectStore(request.getfixturevalue("s3_server")).connection.client.create_bucket(Bucket=name)
    return f"s3://{name}"


@pytest.fixture
def store(request: pytest.FixtureRequest, address: str) -> ObjectStore:
    return ObjectStore(request.getfixturevalue("s3_server") if address.startswith("s3") else None)


@pytest.fixture
def bucket(store: ObjectStore, address: str) -> Bucket:
    return store.bucket(address)


def keys(store: ObjectStore, address: str, prefix: str = "", **asked: bool | str) -> list[str]:
    return [facts.key for page in store.pages(address, prefix, **asked) for facts in page]  # type: ignore[arg-type]


def put(store: ObjectStore, address: str, *names: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(address, name, name.encode()), names))


def test_an_object_goes_in_and_comes_out(store: ObjectStore, address: str, tmp_path: Path) -> None:
    etag = store.put(address, "in/a.txt", b"one\ntwo\n")
    facts = store.head(address, "in/a.txt")
    assert (facts.key, facts.size, facts.etag) == ("in/a.txt", 8, etag)
    assert '"' not in etag
    ((listed,),) = store.pages(address)
    assert (listed.key, listed.size, listed.etag) == ("in/a.txt", 8, etag), "of the same form in a listing"
    assert store.get(address, "in/a.txt") == b"one\ntwo\n"
    store.fetch(address, "in/a.txt", tmp_path / "copy", etag=etag, size=8)
    assert (tmp_path / "copy").read_bytes() == b"one\ntwo\n"
    store.delete(address, ["never/was", "in/a.txt", "nor/this"])
    for missing in (lambda: store.head(address, "in/a.txt"), lambda: store.get(address, "in/a.txt")):
        with pytest.raises(ObjectMissing):
            missing()


@pytest.mark.seed("D16")
@pytest.mark.parametrize("content", [b"", b"one", LARGE], ids=["empty", "small", "large"])
def test_an_object_comes_as_it_was_scanned_or_not_at_all(
    store: ObjectStore, bucket: Bucket, address: str, tmp_path: Path, content: bytes
) -> None:
    etag = store.put(address, "a", content)
    scanned = StoredObject(bucket=bucket, key="a", size=len(content), etag=store.head(address, "a").etag)
    assert b"".join(scanned.pieces()) == content == store.get(address, "a")
    assert not content or scanned.read(1, 3) == content[1:3]
    store.put(address, "a", b"after!")
    for read in (
        lambda: list(scanned.pieces()),
        lambda: scanned.read(0, 1),
        lambda: store.fetch(address, "a", tmp_path / "copy", etag=etag, size=len(content)),
    ):
        with pytest.raises(ObjectChanged):
            read()
    assert not (tmp_path / "copy").exists()
    store.delete(address, ["a"])
    with pytest.raises(ObjectMissing):
        list(scanned.pieces())


@pytest.mark.seed("FM-C2")
def test_one_of_racing_writers_puts_what_is_absent(store: ObjectStore, address: str) -> None:
    together = Barrier(16)

    def write(number: int) -> list[bytes]:
        together.wait()
        try:
            store.put(address, "lock", str(number).encode(), if_absent=True)
        except ObjectChanged:
            return []
        return [str(number).encode()]

    with ThreadPoolExecutor(16) as pool:
        winners = list(itertools.chain(*pool.map(write, range(16))))
    assert winners == [store.get(address, "lock")]


@pytest.mark.seed("D15")
def test_a_listing_is_whole_and_in_the_order_of_the_keys(store: ObjectStore, address: str) -> None:
    names = [f"in/{number:04d}" for number in range(1100)]
    put(store, address, *names, "in.x", "in/0500.d/below", "in0", "out")
    whole = sorted([*names, "in/0500.d/below"])
    assert keys(store, address, "in/") == whole
    assert keys(store, address, "in/", recursive=False) == names
    assert keys(store, address, "in/", start_after="in/1097") == ["in/1098", "in/1099"]
    assert keys(store, address, "in/10") == names[1000:]
    assert keys(store, address, "in/05", start_after="in/0598") == ["in/0599"]
    assert keys(store, address, "in/none") == keys(store, address, "none/") == []
    assert keys(store, address) == sorted([*whole, "in.x", "in0", "out"])
    assert set(store.names(address, "in/")) == {name.removeprefix("in/") for name in names} | {"0500.d"}


def test_odd_keys_are_keys(store: ObjectStore, address: str) -> None:
    put(store, address, *ODD)
    assert all(map(can_be_named, ODD))
    assert set(keys(store, address)) == set(ODD)
    assert [store.get(address, key).decode() for key in ODD] == ODD


@pytest.mark.seed("V153")
def test_an_object_is_copied_and_deleted_if_it_is_what_was_named(store: ObjectStore, address: str) -> None:
    etag = store.put(address, "in/a", b"1")
    with pytest.raises(ObjectChanged):
        store.copy(address, "in/a", address, "done/a", etag="another")
    store.copy(address, "in/a", address, "done/a", etag=etag)
    with pytest.raises(ObjectChanged):
        store.delete_same(address, "in/a", "another")
    store.delete_same(address, "in/a", etag)
    with pytest.raises(ObjectMissing):
        store.delete_same(address, "in/a", etag)
    with pytest.raises(ObjectMissing):
        store.copy(address, "in/a", address, "x")
    assert keys(store, address) == ["done/a"]
    assert store.get(address, "done/a") == b"1"


def test_many_objects_are_deleted_though_some_are_gone(store: ObjectStore, address: str) -> None:
    names = [f"in/{number:03d}" for number in range(300)]
    put(store, address, *names[::2])
    store.delete(address, names)
    assert keys(store, address) == []


def test_a_file_of_rows_goes_in_and_comes_out(bucket: Bucket) -> None:
    place, rows = BucketPlace(bucket, "lake/t"), pa.table({"n": list(range(50_000)), "k": ["x" * 300] * 50_000})
    with place.new_file("part/a.parquet") as sink:
        pq.write_table(rows, sink, compression="none", use_dictionary=False)
    assert place.stamp("part/a.parquet")[0] > 10 * 2**20, "it takes several parts"
    assert pq.read_table(place.opened("part/a.parquet"), columns=["n"]) == rows.select(["n"])
    for missing in (lambda: place.stamp("no"), lambda: place.opened("no")):
        with pytest.raises(FileNotFoundError, match=f"{bucket.address}/lake/t/no|no"):
            missing()


def test_a_file_whose_writer_fails_is_not_there(bucket: Bucket, store: ObjectStore, address: str) -> None:
    def write() -> None:
        with bucket.writer("a") as sink:
            sink.write(b"x" * 10 * 2**20)
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        write()
    assert keys(store, address) == []


def test_probes_find_nothing_wrong_and_leave_nothing(store: ObjectStore, address: str) -> None:
    folder = BucketFolder(store, address, "lake")
    folder.require_put_if_absent()
    found = folder.habits()
    assert found == ([] if address.startswith("s3") else [DELETES_ANY])
    assert keys(store, address) == []


@pytest.mark.parametrize("address", ["s3", "azure"], indirect=True)
def test_a_bucket_that_is_not_there_is_refused(store: ObjectStore, address: str) -> None:
    with pytest.raises(StoreRefused, match=f"{address}-none") as caught:
        keys(store, f"{address}-none")
    assert "create the bucket" in str(caught.value.remedy)
    with pytest.raises(StoreRefused):
        store.put(f"{address}-none", "a", b"")


# --- answers that are lost, cut or refused ------------------------------------------------------------------------


@pytest.fixture
def proxy(request: pytest.FixtureRequest, address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Yield a proxy before the server of the bucket; `through` makes a client that uses it."""
    is_azure = address.startswith("az")
    with fault_proxy(azurite.URL if is_azure else request.getfixturevalue("s3_server")) as served:
        if is_azure:
            monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", served.url)
        yield served


def through(proxy: FaultProxy, address: str, *, seconds: float = 30.0) -> ObjectStore:
    """Return a client that tries twice, and gives up a request after so many seconds: an answer takes a busy server a
    while."""
    return ObjectStore(proxy.url if address.startswith("s3") else None, patience=Patience(seconds, seconds, retries=1))


@pytest.mark.parametrize("address", ["s3", "azure"], indirect=True)
@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_tried_again(
    store: ObjectStore, address: str, proxy: FaultProxy, tmp_path: Path, fault: Fault
) -> None:
    """D13: each fault is one bad answer; the caller does not notice it."""
    etag = store.put(address, "a", b"x" * 5000)
    proxy.choose = lambda method, path, before: fault if before == 0 else None
    client = through(proxy, address, seconds=5.0 if fault == "timeout" else 30.0)
    client.fetch(address, "a", tmp_path / "copy", etag=etag, size=5000)
    assert (tmp_path / "copy").read_bytes() == b"x" * 5000
    assert client.get(address, "a") == b"x" * 5000
    assert keys(client, address) == ["a"]
    assert len(proxy.seen) > 2


@pytest.mark.parametrize("address", ["s3", "azure"], indirect=True)
@pytest.mark.parametrize("fault", [*PASSING, "truncated page"])
def test_what_does_not_pass_is_said_after_all_tries(
    store: ObjectStore, address: str, proxy: FaultProxy, tmp_path: Path, fault: Fault
) -> None:
    """D13: after bounded tries, an error with `Retry.WAIT` costs no attempt; a file that came short is never used."""
    etag = store.put(address, "a", b"x" * 5000)
    proxy.choose = lambda method, path, before: fault
    client = through(proxy, address, seconds=0.5 if fault == "timeout" else 30.0)
    with pytest.raises(StoreUnavailable) as caught:
        client.fetch(address, "a", tmp_path / "copy", etag=etag, size=5000)
    assert caught.value.retry is Retry.WAIT
    assert caught.value.remedy
    assert (1 if fault == "truncated page" else 2) <= len(proxy.seen) <= 4


@pytest.mark.parametrize("address", ["s3", "azure"], indirect=True)
def test_an_object_whose_reply_is_lost_is_there_and_is_nobody_elses(
    store: ObjectStore, address: str, proxy: FaultProxy
) -> None:
    client = through(proxy, address)
    proxy.choose = lambda method, path, before: "lost reply" if method == "PUT" and not before else None
    with suppress(ObjectChanged):  # the second try finds what the first has put
        client.put(address, "a", b"mine", if_absent=True)
    assert len(proxy.seen) > 1
    assert store.get(address, "a") == b"mine"
    with pytest.raises(ObjectChanged):
        client.put(address, "a", b"theirs", if_absent=True)
    assert store.get(address, "a") == b"mine"
