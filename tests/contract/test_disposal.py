"""Processed input files are moved or deleted: objects, local files, and files of another disk (V153)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from drainmark.jobs import failpoints
from drainmark.jobs.errors import ObjectChanged, ObjectMissing
from drainmark.jobs.failpoints import FilePoint, InjectedFailure
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.triggers import VERSION
from drainmark.jobs.scan.bucket_objects import identity_of_object
from drainmark.jobs.scan.folder import identity_of
from drainmark.resources.inputs.disposal import dispose
from drainmark.resources.inputs.inputs import Inputs
from drainmark.resources.storage.object_store import ObjectStore

pytestmark = [pytest.mark.usefixtures("s3_credentials"), pytest.mark.seed("V153")]

ROOT = Path(__file__).parents[2]


def keys(store: ObjectStore, bucket: str) -> list[str]:
    return [facts.key for page in store.pages(bucket) for facts in page]


def scan_of(bucket: str, after: str) -> DirectoryScan:
    move_to = f"{bucket}/done" if after == "move" else None
    return DirectoryScan(path=f"{bucket}/in", after=after, move_to=move_to, after_when="checkpointed")  # type: ignore[arg-type]


def put(store: ObjectStore, bucket: str, *names: str) -> list[tuple[str, Mapping[str, Any], int]]:
    """Write objects; return them as files that were processed."""
    for name in names:
        store.put(bucket, name, name.encode())
    facts = [store.head(bucket, name) for name in names]
    return [
        (f"{bucket}/{name}", {**identity_of_object(fact), **({VERSION: fact.version} if fact.version else {})}, n)
        for n, (name, fact) in enumerate(zip(names, facts, strict=True), 1)
    ]


@pytest.mark.parametrize("after", ["move", "delete"])
def test_an_object_goes_if_it_is_the_one_that_was_processed(
    store: ObjectStore, bucket: str, tmp_path: Path, after: str
) -> None:
    files = put(store, bucket, "in/a.txt", "in/deep/b.txt", "in/changed.txt", "in/gone.txt")
    store.put(bucket, "in/changed.txt", b"another one")
    store.delete(bucket, ["in/gone.txt"])
    inputs, scan = Inputs(store, root=tmp_path), scan_of(bucket, after)
    assert inputs.dispose(files, scan) == 2
    moved = ["done/a.txt", "done/deep/b.txt"] if after == "move" else []
    assert keys(store, bucket) == [*moved, "in/changed.txt"]
    assert inputs.dispose(files, scan) == 0, "again is nothing"
    if after == "move":
        assert store.get(bucket, "done/deep/b.txt") == b"in/deep/b.txt"
    with pytest.raises(ObjectMissing):
        store.copy(bucket, "in/gone.txt", bucket, "x")


@pytest.mark.parametrize("when", [("move", "in/a.txt"), ("move", "in/b.txt"), ("delete", "in/a.txt")])
def test_an_object_that_is_replaced_meanwhile_stays(
    store: ObjectStore, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: tuple[str, str]
) -> None:
    """It is replaced while the object before it goes, or between its own copy and deletion: the new one is unread."""
    after, key_of_that = when
    files = put(store, bucket, "in/a.txt", "in/b.txt")
    verb = "copy" if after == "move" else "delete_same"
    asked = getattr(store, verb)

    def replacing(bucket: str, key: str, *further: Any, **options: Any) -> None:
        asked(bucket, key, *further, **options)
        if key == key_of_that:
            store.put(bucket, "in/b.txt", b"nobody has read this")

    monkeypatch.setattr(store, verb, replacing)
    assert Inputs(store, root=tmp_path).dispose(files, scan_of(bucket, after)) == 1
    assert store.get(bucket, "in/b.txt") == b"nobody has read this"


def test_a_store_is_asked_for_that_object_and_no_other(store: ObjectStore, bucket: str, tmp_path: Path) -> None:
    """A store that checks these conditions refuses an object that came after our look."""
    files = put(store, bucket, "in/a.txt")
    asked: list[str] = []
    events = store.connection.client.meta.events
    for call, condition in (("CopyObject", "CopySourceIfMatch"), ("DeleteObject", "IfMatch")):
        events.register(
            f"provide-client-params.s3.{call}", lambda params, name=condition, **_: asked.append(params.get(name))
        )
    assert Inputs(store, root=tmp_path).dispose(files, scan_of(bucket, "move")) == 1
    assert asked == [f'"{files[0][1]["etag"]}"'] * 2


def test_of_a_bucket_with_versions_only_the_newest_counts(store: ObjectStore, bucket: str, tmp_path: Path) -> None:
    """The version that was read stays in the bucket; but the key now names another object."""
    store.connection.client.put_bucket_versioning(
        Bucket=bucket.removeprefix("s3://"), VersioningConfiguration={"Status": "Enabled"}
    )
    files = put(store, bucket, "in/a.txt", "in/b.txt")
    assert VERSION in files[0][1]
    store.put(bucket, "in/a.txt", b"nobody has read this")
    assert Inputs(store, root=tmp_path).dispose(files, scan_of(bucket, "move")) == 1
    assert keys(store, bucket) == ["done/b.txt", "in/a.txt"]


def test_what_lies_in_the_archive_is_not_written_over(store: ObjectStore, bucket: str, tmp_path: Path) -> None:
    inputs = Inputs(store, root=tmp_path)
    for text in (b"first", b"second", b"third"):
        store.put(bucket, "in/a.txt", text)
        file = (f"{bucket}/in/a.txt", identity_of_object(store.head(bucket, "in/a.txt")), 7)
        assert inputs.dispose([file], scan_of(bucket, "move")) == 1
    assert keys(store, bucket) == ["done/a.txt", "done/a.txt.7", "done/a.txt.7.2"]
    assert [store.get(bucket, key) for key in keys(store, bucket)] == [b"first", b"second", b"third"]


def test_a_crash_between_copy_and_deletion_leaves_one_copy(store: ObjectStore, bucket: str, tmp_path: Path) -> None:
    files = put(store, bucket, "in/a.txt")
    inputs = Inputs(store, root=tmp_path)
    failpoints.arm(f"{FilePoint.COPIED.value}:raise")
    with pytest.raises(InjectedFailure):
        inputs.dispose(files, scan_of(bucket, "move"))
    assert keys(store, bucket) == ["done/a.txt", "in/a.txt"]
    assert inputs.dispose(files, scan_of(bucket, "move")) == 1
    assert keys(store, bucket) == ["done/a.txt"]


def test_an_object_is_deleted_if_it_is_what_was_named(store: ObjectStore, bucket: str) -> None:
    store.put(bucket, "a", b"1")
    with pytest.raises(ObjectChanged):
        store.delete_same(bucket, "a", "another")
    store.delete_same(bucket, "a", store.head(bucket, "a").etag)
    with pytest.raises(ObjectMissing):
        store.delete_same(bucket, "a", "gone")


# --- files of this machine ----------------------------------------------------------------------------------------


def written(path: Path, text: str, number: int = 1) -> tuple[str, Mapping[str, Any], int]:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path), identity_of(path.stat()), number


def disposed(folder: Path, *files: tuple[str, Mapping[str, Any], int], after: str = "move") -> int:
    move_to = str(folder / "done") if after == "move" else None
    return dispose(files, objects=ObjectStore(), location=str(folder / "in"), move_to=move_to)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def another_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each rename out of `in` fail, as across disks."""
    rename = Path.rename

    def refusing(self: Path, target: Path) -> Path:
        if self.parent.name == "in":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refusing)


@pytest.mark.parametrize("after", ["move", "delete"])
def test_a_file_that_is_replaced_while_others_go_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    first, second = written(tmp_path / "in" / "a", "a"), written(tmp_path / "in" / "b", "b")
    verb = "rename" if after == "move" else "unlink"
    asked = getattr(Path, verb)

    def replacing(self: Path, *further: Any, **options: Any) -> Any:
        if self.name == "a":
            (tmp_path / "new").write_text("nobody has read this")
            os.replace(tmp_path / "new", tmp_path / "in" / "b")
        return asked(self, *further, **options)

    monkeypatch.setattr(Path, verb, replacing)
    assert disposed(tmp_path, first, second, after=after) == 1
    assert (tmp_path / "in" / "b").read_text() == "nobody has read this"


def test_what_lies_in_the_folder_is_not_written_over(tmp_path: Path) -> None:
    for text in ("first", "second", "third"):
        assert disposed(tmp_path, written(tmp_path / "in" / "a", text, 7)) == 1
    assert names(tmp_path) == ["done/a", "done/a.7", "done/a.7.2"]
    assert [(tmp_path / name).read_text() for name in names(tmp_path)] == ["first", "second", "third"]


@pytest.mark.usefixtures("another_disk")
def test_a_file_of_another_disk_is_copied_if_it_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disposed(tmp_path, written(tmp_path / "in" / "a", "a")) == 1
    assert names(tmp_path) == ["done/a"]
    file = written(tmp_path / "in" / "b", "b")
    fsync = os.fsync

    def replacing(descriptor: int) -> None:
        (tmp_path / "in" / "b").write_text("nobody has read this")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", replacing)
    assert disposed(tmp_path, file) == 0
    assert names(tmp_path) == ["done/a", "in/b"]


MOVING = """
import errno, os, sys
from pathlib import Path
from drainmark.jobs import failpoints
from drainmark.jobs.scan.folder import identity_of
from drainmark.resources.inputs.disposal import dispose
from drainmark.resources.storage.object_store import ObjectStore

folder = Path(sys.argv[1])
rename = Path.rename
def refusing(self, target):
    if self.parent.name == "in":
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return rename(self, target)
Path.rename = refusing
failpoints.arm(sys.argv[2])
path = folder / "in" / "a"
dispose([(str(path), identity_of(path.stat()), 1)], objects=ObjectStore(), location=str(folder / "in"),
        move_to=str(folder / "done"))
"""


@pytest.mark.usefixtures("another_disk")
def test_a_process_that_is_killed_between_copy_and_deletion_leaves_one_copy(tmp_path: Path) -> None:
    file = written(tmp_path / "in" / "a", "a")
    point = f"{FilePoint.COPIED.value}:kill"
    killed = subprocess.run([sys.executable, "-c", MOVING, str(tmp_path), point], cwd=ROOT, check=False)
    assert killed.returncode == -9
    assert names(tmp_path) == ["done/a", "in/a"]
    assert disposed(tmp_path, file) == 1
    assert names(tmp_path) == ["done/a"]


def test_a_second_name_of_a_file_is_no_copy_of_it(tmp_path: Path) -> None:
    file = written(tmp_path / "in" / "a", "a")
    (tmp_path / "done").mkdir()
    os.link(tmp_path / "in" / "a", tmp_path / "done" / "a")
    assert disposed(tmp_path, file) == 1
    assert names(tmp_path) == ["done/a", "done/a.1"]
