"""Files of sequence ids in a bucket: the contract of folders, and the removal of files that come late (V147, X5)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from places import store_at
from stopped_publishers import Publisher, stopped_everywhere
from test_file_sinks import TWO, Folder

from drainmark.jobs.errors import ForeignTable, SplitBrain
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.resources.settings import Settings
from drainmark.resources.storage.object_store import ObjectStore

REQUESTS = [(ObjectStore, name) for name in ("put", "copy", "get", "delete", "names", "pages")]
CHANGES = REQUESTS[:2] + REQUESTS[3:4]
"""The requests that change objects: only these leave a trace if the publisher dies afterwards."""


class Bucket(Folder):
    """A new bucket with one prefix."""

    def __init__(self, root: Any, endpoint: str, **options: Any) -> None:
        self.bucket = f"s3://files-{uuid.uuid4().hex[:12]}"
        super().__init__(root, path=f"{self.bucket}/out", **options)
        self.settings = Settings(home=root / "home", project_root=root, s3_endpoint_url=endpoint)
        self.store = store_at(endpoint)
        self.store.connection.client.create_bucket(Bucket=self.bucket.removeprefix("s3://"))

    def names(self) -> list[str]:
        """Return the names that readers find: the first part of each key below the prefix."""
        return sorted({key.split("/")[1] for key in self._keys("out/")} - {"_drainmark", ""})

    def staged(self) -> list[str]:
        """Return the keys of the objects that wait to be copied; some stores keep the folder of those that left."""
        return self._keys("out/_drainmark/staged/")

    def _keys(self, prefix: str) -> list[str]:
        return [facts.key for page in self.store.pages(self.bucket, prefix) for facts in page]


@pytest.fixture
def make(tmp_path: Any, s3_server: str, s3_credentials: None) -> Callable[..., Bucket]:
    return lambda **options: Bucket(tmp_path, s3_server, **options)


def test_folders_that_somebody_made_by_hand_are_no_files(make: Callable[..., Bucket]) -> None:
    """A console makes an object with the name of the folder; some stores list such an object for an empty folder."""
    bucket = make(layout="folder")
    for folder in ("", "_drainmark/", "_drainmark/applied/", "_drainmark/epochs/", "p-0007/"):
        bucket.store.put(bucket.bucket, f"out/{folder}", b"")
    sink = bucket.made()
    sink.copy(txn_version(1, 1), [1], [bucket.rows((1, "a", 1))])
    assert (sink.newest_id(), sink.txn_version()) == (1, txn_version(1, 1))
    assert bucket.sink(2).copy(txn_version(1, 1), [1], []).done_before


@pytest.mark.seed("V147")
@pytest.mark.parametrize("layout", ["file", "folder"])
def test_each_id_has_a_file_that_a_rewind_withdraws(make: Callable[..., Bucket], layout: str) -> None:
    bucket = make(layout=layout)
    sink = bucket.made()
    sink.copy(txn_version(1, 3), range(1, 4), [bucket.rows((1, "a", 1), (3, "b", 2)), bucket.rows((1, "c", 3))])
    assert sink.copy(txn_version(1, 3), range(1, 4), []).done_before
    names = ["p-0001", "p-0003"] if layout == "folder" else ["p-0001.csv", "p-0003.csv"]
    assert bucket.names() == names
    assert (sink.newest_id(), sink.txn_version()) == (3, txn_version(1, 3))
    assert [row["_sequence_id"] for row in sink.read().to_pylist()] == [1, 1, 3]
    bucket.sink(2).rewind_rows(txn_version(2, 4), 1)
    assert bucket.names() == names[:1]
    assert bucket.sink(2).copy(txn_version(1, 3), range(1, 4), [bucket.rows((3, "b", 2))]).done_before
    assert bucket.names() == names[:1]


def test_a_prefix_of_another_sink_or_without_its_note_is_refused(make: Callable[..., Bucket]) -> None:
    bucket = make()
    sink = bucket.made()
    for other in (bucket.sink(region="shop/returns"), bucket.sink(identity="another")):
        with pytest.raises(ForeignTable):
            other.examine(TWO)
    for number in range(1, 5):
        sink.copy(txn_version(1, number), [number], [bucket.rows((number, "a", 1))])
    notes = [f"out/_drainmark/applied/{name}" for name in bucket.store.names(bucket.bucket, "out/_drainmark/applied/")]
    assert len(notes) == 2, "old notes go"
    bucket.store.delete(bucket.bucket, notes)
    with pytest.raises(SplitBrain):
        sink.copy(txn_version(1, 5), [5], [bucket.rows((5, "a", 1))])


def taken_over(bucket: Bucket) -> None:
    """Do the work of the next owner: roll forward, and withdraw."""
    bucket.sink(2).copy(txn_version(1, 3), [2, 3], [bucket.rows((2, "b", 2), (3, "c", 3))])
    bucket.sink(2).rewind_rows(txn_version(2, 4), 1)


@pytest.mark.slow
@pytest.mark.seed("X5", "H4")
@pytest.mark.parametrize("dies", [False, True], ids=["wakes", "dies"])
def test_a_publisher_stopped_before_any_of_its_requests_brings_nothing_back(
    make: Callable[..., Bucket], dies: bool
) -> None:
    """The publisher wakes after its successor has withdrawn the ids. It goes on, or changes one more object and dies.

    The default run shows this with a publisher of files on a disk.
    """

    def made(_: int) -> Publisher:
        bucket = make()
        bucket.made().copy(txn_version(1, 1), [1], [bucket.rows((1, "a", 1))])

        def check(label: str) -> None:
            if dies:
                assert set(bucket.names()) <= {"p-0001.csv", "p-0002.csv", "p-0003.csv"}
                bucket.sink(3).copy(txn_version(3, 5), [5], [])
            assert bucket.names() == ["p-0001.csv"], label

        return Publisher(
            lambda: bucket.sink(1).copy(txn_version(1, 3), [2, 3], [bucket.rows((2, "b", 2), (3, "c", 3))]),
            lambda: taken_over(bucket),
            check,
        )

    ends = stopped_everywhere(made, CHANGES if dies else REQUESTS, dead=REQUESTS if dies else ())
    assert len(ends) > (3 if dies else 6)
    assert ("killed" if dies else "fenced") in ends
