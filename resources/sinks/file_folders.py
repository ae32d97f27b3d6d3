"""A folder on a POSIX file system that several owners may try to write to, but only the last owner can.

A file system cannot know which of two processes is the later owner, but a rename fails if its source is gone. So every
owner works in `_drainmark/work/<epoch>-<uuid>/` and renames from there, both the files and `applied.json`, which has
the version. Tasks write for the owner to `_drainmark/staged/<epoch>-<uuid>/`; it renames those files through its work
folder, too. A later owner first makes a mark of its epoch, then renames the work folders of earlier epochs away:

- A work folder that existed at that time is gone, so its owner can rename nothing from it any more.
- An earlier owner that makes its work folder afterwards looks for marks next, finds the mark, and is fenced.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drainmark.jobs.errors import Fenced, ForeignTable
from drainmark.jobs.errors.machine_faults import machine_fault
from drainmark.jobs.tasks.places import LocalPlace, sync_folder

CONTROL = "_drainmark"
STAGED = "staged"
ASIDE = "aside"
_EPOCHS = "epochs"
_APPLIED = "applied.json"


class FolderPlace:
    """A folder as the place of a sink's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = str(folder)
        self._control = folder / CONTROL

    def names(self) -> Iterator[str]:
        if self.folder.exists() and not self.folder.is_dir():
            raise ForeignTable(f"{self.folder} is a file, expected a folder", remedy="choose another path")
        return iter(os.listdir(self.folder) if self.folder.is_dir() else [])

    def get(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def note(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self._control / _APPLIED).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found

    def begin(self, note: dict[str, Any]) -> None:
        with _storing():
            self._control.mkdir(parents=True, exist_ok=True)
            first = self._control / f"first-{uuid.uuid4().hex}"
            write(first, json.dumps(note).encode())
            with contextlib.suppress(FileExistsError):  # another process was faster: its note counts
                os.link(first, self._control / _APPLIED)
            first.unlink()
            sync_folder(self._control)

    def withdrawn(self) -> Callable[[str], bool]:
        return lambda name: False

    def newest_epoch(self) -> int:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return max(map(int, os.listdir(self._control / _EPOCHS)), default=0)
        return 0

    @contextlib.contextmanager
    def writing(self, epoch: int) -> Iterator[FolderWriting]:
        """Yield the renames from the work folder of this owner; a later owner removes that folder."""
        place = self._control / "work"
        mine = place / f"{epoch}-{uuid.uuid4().hex}"
        staged = self._control / STAGED / mine.name
        with _storing():
            mine.mkdir(parents=True)
            try:
                self._keep_out_earlier(epoch, place)
                yield FolderWriting(folder=self.folder, work=mine, staged=staged)
            except FileNotFoundError as error:
                if mine.exists():
                    raise
                raise self._fenced() from error
            finally:
                shutil.rmtree(mine, ignore_errors=True)
                shutil.rmtree(staged, ignore_errors=True)

    def _keep_out_earlier(self, epoch: int, place: Path) -> None:
        marks = self._control / _EPOCHS
        marks.mkdir(exist_ok=True)
        (marks / str(epoch)).touch()
        sync_folder(marks)
        epochs = sorted(int(name) for name in os.listdir(marks))
        if epochs[-1] > epoch:
            raise self._fenced(epochs[-1])
        for name in os.listdir(place):
            if name.startswith("dead-") or int(name.partition("-")[0]) < epoch:
                _kill(place / name)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._control / STAGED):
                if int(name.partition("-")[0]) < epoch:
                    shutil.rmtree(self._control / STAGED / name, ignore_errors=True)
        for earlier in epochs[:-1]:
            (marks / str(earlier)).unlink(missing_ok=True)

    def _fenced(self, epoch: int | None = None) -> Fenced:
        later = "a later owner" if epoch is None else f"an owner of epoch {epoch}"
        return Fenced(f"{later} writes to {self.folder}", epoch=epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderWriting:
    """Renames from a work folder into the folder.

    Attributes:
        staged: folder to which tasks write. A late task may create it again, so its files reach their final names only
            through the work folder.
    """

    folder: Path
    work: Path
    staged: Path

    def staging(self) -> LocalPlace:
        return LocalPlace(str(self.staged))

    def bring(self, staged: str, name: str, inside: str | None) -> None:
        aside, target = self.work / name, self.folder / name
        if inside is not None:
            if target.exists():  # it has the same rows: an id is never used twice
                return
            aside.mkdir()
            os.rename(self.staged / staged, aside / inside)
            sync_folder(aside)
        else:
            os.rename(self.staged / staged, aside)
        os.rename(aside, target)

    def put(self, name: str, inside: str | None, data: bytes) -> None:
        aside, target = self.work / name, self.folder / name
        if inside is not None:
            if target.exists():  # it has the same rows: an id is never used twice
                return
            aside.mkdir()
            write(aside / inside, data)
            sync_folder(aside)
        else:
            write(aside, data)
        os.rename(aside, target)

    def withdraw(self, first: int, last: int, find: Callable[[], Collection[str]]) -> None:
        for name in find():
            _remove(self.folder / name)

    def readmit(self, ids: Collection[int]) -> None:
        """Do nothing: a rewind leaves no note of withdrawn ids here."""

    def set_aside(self, names: Collection[str]) -> None:
        aside = self.folder / CONTROL / ASIDE / uuid.uuid4().hex[:8]
        if names:
            aside.mkdir(parents=True)
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # moved before a crash
                os.rename(self.folder / name, aside / name)
        if names:
            sync_folder(aside)

    def finish(self, note: dict[str, Any]) -> None:
        sync_folder(self.folder)
        control = self.folder / CONTROL
        write(self.work / _APPLIED, json.dumps(note).encode())
        os.rename(self.work / _APPLIED, control / _APPLIED)
        sync_folder(control)


def write(path: Path, data: bytes) -> None:
    """Write a new file that is durable when this returns."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _kill(folder: Path) -> None:
    """Make a folder of a dead owner unusable at once, then delete it."""
    dead = folder if folder.name.startswith("dead-") else folder.with_name(f"dead-{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, dead)
    shutil.rmtree(dead, ignore_errors=True)


def _remove(path: Path) -> None:
    """Delete a file or a folder; readers see a folder whole or not at all."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    aside = path.parent / CONTROL / "work" / f"dead-{uuid.uuid4().hex}"
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def _storing() -> Iterator[None]:
    """Turn the error of a full, read-only or failing disk into Drainmark's error, which is retried."""
    try:
        yield
    except OSError as error:
        fault = machine_fault(error)
        if fault is None:
            raise
        raise fault from error
