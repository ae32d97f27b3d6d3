"""What a disk has after a power loss: the names and bytes that were made durable, and nothing else.

POSIX keeps the name of a new file, or of a new folder, only after `fsync` of the folder that it is in. Most file
systems keep more; a test that pulls the plug of one of them would show nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from contract.test_checkpoint_table import claim, state

from drainmark.jobs.operators.sources.pushed.push_buffer import PushBuffer
from drainmark.jobs.tasks.places import LocalPlace, make_folder
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable
from drainmark.resources.checkpoints.data_stores import DirectoryDataStore
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.settings import Settings

REGION = "shop/orders"
SCHEMA = '{"type":"struct","fields":[{"name":"_sequence_id","type":"long","nullable":true,"metadata":{}}]}'


class Disk:
    """The names and files below a folder that were made durable, told by the calls of `fsync`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.names: set[Path] = set()
        self.files: dict[int, int] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._synced)

    def _synced(self, descriptor: int) -> None:
        self._fsync(descriptor)
        at = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if at.is_dir():
            self.names -= {name for name in self.names if name.parent == at}
            self.names |= set(at.iterdir())
        else:
            facts = os.fstat(descriptor)
            self.files[facts.st_ino] = facts.st_size

    def lose_power(self) -> None:
        """Take away what was not made durable."""
        for folder, _, names in os.walk(self.root, topdown=False):
            for name in names:
                file = Path(folder, name)
                if self.files.get(file.stat().st_ino) != file.stat().st_size or file not in self.names:
                    file.unlink()
            if Path(folder) != self.root and Path(folder) not in self.names:
                shutil.rmtree(folder)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    root = tmp_path / "disk"
    root.mkdir()
    return Disk(root, monkeypatch)


def test_a_disk_loses_what_nobody_made_durable(disk: Disk) -> None:
    (disk.root / "a" / "b").mkdir(parents=True)
    (disk.root / "a" / "b" / "c").write_text("c")
    with LocalPlace(str(disk.root / "a" / "b")).new_file("d") as file:
        file.write(b"d")
    disk.lose_power()
    assert list(disk.root.iterdir()) == [], "`d` is durable in folders whose names are not"


def _publish(root: Path) -> Callable[[], object]:
    table = ManagedTable(root / "lake" / "t", REGION)
    table.create(SCHEMA)
    staging = Staging(table.folder, 1, "attempt")
    table.publish(1, staging.write(pa.table({"_sequence_id": [1, 1]}), "rows"))
    return lambda: ManagedTable(root / "lake" / "t", REGION).read().column("_sequence_id").to_pylist() == [1, 1]


def _checkpoint(root: Path) -> Callable[[], object]:
    table = CheckpointTable(root / "checkpoints" / "shop" / "orders", REGION)
    table.create()
    table.claim(claim(1))
    table.append([state(1, 1)], sequence_id=1)
    return lambda: len(CheckpointTable(root / "checkpoints" / "shop" / "orders", REGION).rows()) == 2


def _push(root: Path) -> Callable[[], object]:
    def buffer() -> PushBuffer:
        return PushBuffer(root / "buffers" / "shop" / "orders", rows=1, seconds=0)

    buffer().push([{"n": 1}])
    return lambda: [path for path in buffer().folder.iterdir() if path.stat().st_size and b'"n"' in path.read_bytes()]


def _store(root: Path) -> Callable[[], object]:
    DirectoryDataStore(root / "far" / "away").create("a").put(b"k", b"v")
    return lambda: DirectoryDataStore(root / "far" / "away").create("a").get(b"k") == b"v"


def _home(root: Path) -> Callable[[], object]:
    Settings(home=root / "deep" / "home", project_root=root).make_home()
    return (root / "deep" / "home").is_dir


@pytest.mark.parametrize("write", [_publish, _checkpoint, _push, _store, _home])
def test_what_was_acknowledged_is_there_after_the_first_power_loss(
    disk: Disk, write: Callable[[Path], Callable[[], object]]
) -> None:
    """The first write makes folders, and a folder that is lost takes its files along."""
    is_there = write(disk.root)
    disk.lose_power()
    assert is_there()


def test_folders_are_made_durable_once(tmp_path: Path) -> None:
    grown = make_folder(tmp_path / "a" / "b")
    assert grown == [tmp_path / "a", tmp_path]
    assert make_folder(tmp_path / "a" / "b") == []
