"""Scans of large prefixes: keys added behind known keys are found at once, all others by the next round (D15)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import fault_proxy

from drainmark.jobs.errors import InputChanged, StoreUnavailable
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.triggers import BACKFILL, TriggerStatus
from drainmark.jobs.scan.bucket_objects import trigger_of_object
from drainmark.jobs.scan.findings import ScanResult
from drainmark.jobs.scan.index import ScanLimits, ScanNote
from drainmark.jobs.tasks.bucket_clients import Patience
from drainmark.orchestration.discovery.scan_recording import record_scan
from drainmark.resources.inputs.inputs import Inputs
from drainmark.resources.registry.registry import Registry
from drainmark.resources.registry.scan_queries import RegistryScans
from drainmark.resources.storage.object_store import ObjectStore

pytestmark = pytest.mark.usefixtures("s3_credentials")

REGION = "app/lines"
LIMITS = ScanLimits(whole=20, rest_seconds=1e12, share=1e9, slice_seconds=1e9)
"""A prefix of more than twenty keys is large; one scan does a whole round, if a round is due."""

ROUNDS = replace(LIMITS, rest_seconds=0.0)


class Scene:
    """A bucket and a registry; every call of `scan` is one scan."""

    def __init__(self, endpoint: str, root: Path) -> None:
        self.bucket = f"s3://bucket-{uuid.uuid4().hex[:12]}"
        self.store = ObjectStore(endpoint)
        self.store.connection.client.create_bucket(Bucket=self.bucket.removeprefix("s3://"))
        self.uri = f"{self.bucket}/in"
        self.registry = Registry(f"sqlite:///{root}/registry.db")
        self.requests: list[dict[str, Any]] = []
        self.start(LIMITS)

    def start(self, limits: ScanLimits, store: ObjectStore | None = None) -> None:
        """Begin a process that remembers nothing."""
        self.inputs = Inputs(store or self.store, limits=limits)

    def put(self, *names: str, text: str = "x") -> None:
        for name in names:
            self.store.put(self.bucket, f"in/{name}", text.encode())

    def scan(self, **source: Any) -> ScanResult:
        declared = {"recursive": True, **source}
        return record_scan(
            self.registry, REGION, self.inputs, self.uri, DirectoryScan(path=self.uri, **declared), now=time.time()
        )

    def names(self, found: ScanResult) -> list[str]:
        return [trigger.uri.removeprefix(f"{self.uri}/") for trigger in found.new]

    def listings(self, scan: Callable[[], ScanResult]) -> int:
        """Return the number of list requests that a scan makes."""
        before = len(self.requests)
        count = self.requests.append
        events = self.store.connection.client.meta.events
        events.register("before-call.s3.ListObjectsV2", lambda params, **_: count(params), unique_id="count")
        scan()
        events.unregister("before-call.s3.ListObjectsV2", unique_id="count")
        return len(self.requests) - before

    @property
    def note(self) -> ScanNote:
        found = ScanNote.from_text(RegistryScans(self.registry, REGION).load_note())
        assert found is not None
        return found


@pytest.fixture
def scene(s3_server: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(s3_server, tmp_path)
    yield made
    made.registry.close()


@pytest.fixture
def large(scene: Scene) -> Scene:
    """Return a scanned bucket of thirty keys in three folders."""
    scene.put(*(f"{'bdf'[number % 3]}/{number:02d}.txt" for number in range(30)))
    assert scene.scan().new_count == 30
    assert scene.note.is_large
    return scene


def test_a_small_prefix_is_compared_whole_by_every_scan(scene: Scene) -> None:
    scene.put(*(f"{number:02d}.txt" for number in range(10, 20)))
    assert scene.scan().new_count == 10
    scene.put("00.txt")
    assert scene.names(scene.scan()) == ["00.txt"]
    scene.put("15.txt", text="another")
    assert len(scene.scan().changed) == 1
    found = scene.scan()
    assert (found.new_count, len(found.changed), found.seen) == (0, 0, 11)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_sorts_behind_the_known_keys_of_any_folder_is_found_at_once(large: Scene, restarted: bool) -> None:
    """This holds also for new folders before, between and behind the known ones; no known key is taken twice."""
    large.put("a/new", "b/99", "c/new", "d/99", "e/new", "f/99", "g/new", "zz.txt")
    if restarted:
        large.start(LIMITS)
    assert sorted(large.names(large.scan())) == ["a/new", "b/99", "c/new", "d/99", "e/new", "f/99", "g/new", "zz.txt"]
    assert large.scan().new_count == 0
    assert large.registry.pending_count(REGION) == 38
    large.put("a/newer", "zzz.txt")
    assert large.names(large.scan()) == ["a/newer", "zzz.txt"]


def test_an_idle_scan_asks_once_a_folder(large: Scene) -> None:
    large.scan()
    assert large.listings(large.scan) == 4
    large.put(*(f"many/{number:03d}/x" for number in range(3)), *(f"{number:02d}/x" for number in range(70)))
    large.start(ROUNDS)
    large.scan()
    large.scan()
    large.start(LIMITS)
    assert large.note.greatest.endswith("many/002/x")
    assert large.listings(large.scan) == 1, "where folders are many only the greatest key is asked for"


def test_a_round_finds_keys_that_sort_before_known_ones_and_objects_put_over_others(large: Scene) -> None:
    large.put("b/000")
    large.put("d/01.txt", text="another")
    found = large.scan()
    assert (found.new_count, found.changed) == (0, ())
    large.start(ROUNDS)
    found = large.scan()
    assert large.names(found) == ["b/000"]
    assert [uri for uri, _, _ in found.changed] == [f"{large.uri}/d/01.txt"]
    found = large.scan()
    assert (found.new_count, found.changed) == (0, ())


def test_what_halts_is_said_by_every_scan(large: Scene) -> None:
    large.registry.progress.set_epoch(REGION, 1)
    (trigger,) = large.registry.triggers.by_uri(REGION, f"{large.uri}/d/01.txt")
    large.registry.triggers.settle(REGION, 1, [(trigger.order_index, 1)])
    large.put("d/01.txt", text="another")
    large.start(replace(ROUNDS, rest_seconds=3600.0))
    RegistryScans(large.registry, REGION).keep(large.note.token, replace(large.note, began=0.0).to_text())
    for _ in range(3):
        with pytest.raises(InputChanged):
            large.scan()


def test_an_object_that_was_superseded_is_found_anew_at_once(large: Scene) -> None:
    uri = f"{large.uri}/d/01.txt"
    large.registry.progress.set_epoch(REGION, 1)
    large.registry.triggers.mark(
        REGION, 1, [large.registry.triggers.by_uri(REGION, uri)[0].id], TriggerStatus.SUPERSEDED, "changed"
    )
    large.put("d/01.txt", text="another")
    large.scan()
    assert [trigger.status for trigger in large.registry.triggers.by_uri(REGION, uri)] == [
        TriggerStatus.SUPERSEDED, TriggerStatus.PENDING,
    ]  # fmt: skip


def standing(scene: Scene, name: str) -> list[TriggerStatus]:
    return [trigger.status for trigger in scene.registry.triggers.by_uri(REGION, f"{scene.uri}/{name}")]


@pytest.mark.seed("I2")
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("status", [TriggerStatus.SUPERSEDED, TriggerStatus.MISSING])
def test_an_object_that_is_back_as_it_was_scanned_is_read(
    scene: Scene, status: TriggerStatus, *, is_large: bool
) -> None:
    """When a group read it, the object was gone or another, unseen by a scan; the same bytes have the same etag."""
    names = [f"{number:02d}.txt" for number in range(30 if is_large else 3)]
    scene.put(*names)
    scene.scan()
    scene.scan()
    assert scene.note.is_large is is_large
    (trigger,) = scene.registry.triggers.by_uri(REGION, f"{scene.uri}/01.txt")
    scene.registry.progress.set_epoch(REGION, 1)
    scene.registry.triggers.mark(REGION, 1, [trigger.id], status, "not as scanned")
    scene.scan()
    assert standing(scene, "01.txt") == [TriggerStatus.PENDING]
    assert scene.registry.triggers.newest(REGION).uri.endswith("01.txt")  # type: ignore[union-attr]
    assert scene.scan().changed == ()


@pytest.mark.seed("I4")
def test_a_committed_object_that_is_back_before_the_other_was_read_is_no_change(scene: Scene) -> None:
    scene.put("a.txt")
    scene.scan()
    (first,) = scene.registry.triggers.pending(REGION, 1)
    scene.registry.progress.set_epoch(REGION, 1)
    scene.registry.triggers.settle(REGION, 1, [(first.order_index, 1)])
    scene.put("a.txt", text="another")
    scene.scan(on_change="reprocess")
    (second,) = scene.registry.triggers.pending(REGION, 1)
    scene.put("a.txt")
    scene.registry.triggers.mark(REGION, 1, [second.id], TriggerStatus.SUPERSEDED, "changed")
    assert scene.scan(on_change="halt").changed == ()
    assert standing(scene, "a.txt") == [TriggerStatus.COMMITTED, TriggerStatus.SUPERSEDED]


@pytest.mark.seed("I4")
def test_a_committed_object_that_is_back_after_another_is_processed_anew(scene: Scene) -> None:
    scene.registry.progress.set_epoch(REGION, 1)
    for number, text in enumerate(["x", "another", "x", "another"], start=1):
        scene.put("a.txt", text=text)
        for _ in range(2):
            scene.scan(on_change="reprocess")
        (trigger,) = scene.registry.triggers.pending(REGION, 5)
        scene.registry.triggers.settle(REGION, 1, [(trigger.order_index, number)])
    assert standing(scene, "a.txt") == [TriggerStatus.COMMITTED] * 4


@pytest.mark.seed("D15")
@pytest.mark.parametrize("order", [pytest.param("name", marks=pytest.mark.slow), "mtime"])
def test_a_first_look_that_fails_goes_on_where_it_was(
    scene: Scene, s3_server: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, the scan resumes; by time, nothing is recorded until everything is listed. A page has 100 keys."""
    monkeypatch.setattr("drainmark.jobs.scan.bucket_listing._PAGES_A_BATCH", 1)
    names = [f"{number:05d}" for number in range(110)]
    scene.put(*names)
    with fault_proxy(s3_server) as proxy:
        store = ObjectStore(proxy.url, patience=Patience(retries=0))
        store.connection.client.meta.events.register(
            "provide-client-params.s3.ListObjectsV2", lambda params, **_: {"MaxKeys": 100, **params}
        )
        scene.start(LIMITS, store)
        proxy.choose = lambda method, path, before: "503" if "start-after=in%2F00099" in path else None
        with pytest.raises(StoreUnavailable):
            scene.scan(order=order)
        assert scene.registry.pending_count(REGION) == (100 if order == "name" else 0)
        proxy.choose = lambda method, path, before: None
        assert scene.scan(order=order).new_count == (10 if order == "name" else 110)
    taken = [trigger.uri for trigger in scene.registry.triggers.pending(REGION, 9999)]
    assert (taken if order == "name" else sorted(taken)) == [f"{scene.uri}/{name}" for name in names]


@pytest.fixture
def altering(s3_server: str, scene: Scene) -> Iterator[Scene]:
    """Return a bucket that is listed by a server which writes U+FFFD for control characters."""
    with fault_proxy(s3_server) as proxy:
        proxy.alter = lambda method, path, page: page.replace(b"%0B", b"%EF%BF%BD") if "list-type" in path else page
        scene.start(LIMITS, ObjectStore(proxy.url))
        yield scene


@pytest.mark.seed("D15")
@pytest.mark.parametrize("many", [3, 40])
def test_an_object_that_is_listed_under_another_key_is_left_out_by_name(altering: Scene, many: int) -> None:
    """All other objects are taken, also those with U+FFFD in their own key, and new ones in later scans."""
    altering.put("\x0bnote.txt", "\ufffd.txt", "z\x0b", *(f"d/{number:02d}.txt" for number in range(many)))
    found = altering.scan(pattern="*.txt")
    assert [uri for uri, _ in found.refused] == [f"{altering.uri}/\ufffdnote.txt"]
    assert "without control characters" in found.refused[0][1]
    assert altering.names(found)[-1] == "\ufffd.txt"
    assert found.new_count == many + 1
    altering.put("d/99.txt", "e.txt")
    assert altering.names(altering.scan(pattern="*.txt")) == ["d/99.txt", "e.txt"]


def test_a_key_that_ends_in_a_slash_is_left_out_by_name_if_it_has_content(scene: Scene) -> None:
    for key, text in (("a.txt/", b"rows"), ("marker.txt/", b""), ("other/", b"not of the pattern"), ("d/", b"")):
        scene.store.put(scene.bucket, f"in/{key}", text)
    scene.put("d/b.txt")
    found = scene.scan(pattern="*.txt")
    assert scene.names(found) == ["d/b.txt"]
    assert [uri for uri, _ in found.refused] == [f"{scene.uri}/a.txt/"]
    matching = {facts.key: reason for facts, reason in scene.inputs.matching(f"{scene.uri}/*.txt")}
    assert list(matching) == ["in/a.txt/"]
    assert "slash" in str(matching["in/a.txt/"])


def test_a_prefix_that_was_emptied_is_a_small_one_again(large: Scene) -> None:
    large.store.delete(large.bucket, [f"in/{'bdf'[number % 3]}/{number:02d}.txt" for number in range(5, 30)])
    large.start(ROUNDS)
    large.scan()
    assert not large.note.is_large
    large.put("a.txt")
    assert large.names(large.scan()) == ["a.txt"]


def test_a_scan_keeps_nothing_of_a_region_that_was_rebuilt_under_it(large: Scene) -> None:
    """H27: a note that comes back would hide from the next scan all that the repair has forgotten."""
    large.start(ROUNDS)
    large.put("b/99.txt")
    source = DirectoryScan(path=large.uri, recursive=True)
    batches = large.inputs.watched(RegistryScans(large.registry, REGION), large.uri, source, now=time.time())
    assert large.names(next(batches)) == ["b/99.txt"]
    large.registry.rebuild(REGION, epoch=1, next_id=1, triggers=[])
    assert list(batches) == []
    assert RegistryScans(large.registry, REGION).load_note() is None
    assert large.scan().new_count == 31


@pytest.mark.parametrize("key", ["archive/may.csv", "in/may.dat"])
def test_an_object_that_was_asked_for_and_was_overwritten_is_taken_again(scene: Scene, key: str) -> None:
    scene.store.put(scene.bucket, key, b"x")
    ((facts, _),) = scene.inputs.matching(f"{scene.bucket}/{key}")
    asked_for = trigger_of_object(scene.bucket, facts, output="", origin=BACKFILL)
    scene.registry.triggers.add(REGION, [asked_for])
    scene.registry.progress.set_epoch(REGION, 1)
    (trigger,) = scene.registry.triggers.by_uri(REGION, asked_for.uri)
    scene.registry.triggers.mark(REGION, 1, [trigger.id], TriggerStatus.SUPERSEDED, "changed")
    scene.store.put(scene.bucket, key, b"longer")
    assert len(scene.scan(pattern="*.txt").changed) == 1
    pending = [(each.uri, each.size_bytes, each.origin) for each in scene.registry.triggers.pending(REGION, 9)]
    assert (asked_for.uri, 6, BACKFILL) in pending


@pytest.mark.parametrize(
    ("glob", "meant"),
    [
        ("in/a[1].csv", ["in/a[1].csv"]),
        ("in/b[2]", ["in/b[2]/x"]),
        ("in/b[2]/", ["in/b[2]/x"]),
        ("in/c[3].csv", ["in/c3.csv"]),
        ("in/?[1].csv", ["in/a1.csv"]),
        ("in/what?", ["in/what?/y"]),
        ("in/nothing", []),
    ],
)
def test_an_address_is_first_the_name_of_what_is_there(scene: Scene, glob: str, meant: list[str]) -> None:
    scene.put("a[1].csv", "a1.csv", "b[2]/x", "b2/x", "b2", "c3.csv", "what?/y", "whats")
    assert [facts.key for facts, _ in scene.inputs.matching(f"{scene.bucket}/{glob}")] == meant
