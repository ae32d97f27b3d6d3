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
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced, ForeignTable
from drainmark.jobs.errors.machine_faults import machine_fault
from drainmark.jobs.tasks.places import LocalPlace, make_folder, sync_folder, write_durably
from drainmark.jobs.world import Seam, crosses

CONTROL = "_drainmark"
STAGED = "staged"
ASIDE = "aside"
_EPOCHS = "epochs"
_APPLIED = "applied.json"


class FolderTarget:
    """A folder as the target of a sink."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = str(folder)
        self._control = folder / CONTROL

    def names(self) -> Iterator[str]:
        if self.folder.exists() and not self.folder.is_dir():
            raise ForeignTable(f"{self.folder} is a file, expected a folder", remedy="choose another path")
        return iter(_names(self.folder))

    def get(self, name: str) -> bytes:
        return _read(self.folder / name)

    def note(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(_read(self._control / _APPLIED))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found

    def begin(self, note: dict[str, Any]) -> None:
        with _storing():
            _make_all(self._control)
            first = self._control / f"first-{world.token()}"
            _write(first, json.dumps(note).encode())
            with contextlib.suppress(FileExistsError):  # another process was faster: its note counts
                _link(first, self._control / _APPLIED)
            _unlink(first)
            _sync(self._control)

    def withdrawn(self) -> Callable[[str], bool]:
        return lambda name: False

    def newest_epoch(self) -> int:
        return max(map(int, _names(self._control / _EPOCHS)), default=0)

    def forget_aside(self) -> None:
        _delete(self._control / ASIDE)

    @contextlib.contextmanager
    def writing(self, epoch: int) -> Iterator[FolderWriting]:
        """Yield the renames from the work folder of this owner; a later owner removes that folder."""
        place = self._control / "work"
        mine = place / f"{epoch}-{world.token()}"
        staged = self._control / STAGED / mine.name
        with _storing():
            _make_all(mine)
            try:
                self._keep_out_earlier(epoch, place)
                yield FolderWriting(folder=self.folder, work=mine, staged=staged)
            except FileNotFoundError as error:
                if _is_there(mine):
                    raise
                raise self._fenced() from error
            finally:
                _delete(mine)
                _delete(staged)

    def _keep_out_earlier(self, epoch: int, place: Path) -> None:
        marks = self._control / _EPOCHS
        _mark(marks / str(epoch))
        epochs = sorted(int(name) for name in _names(marks))
        if epochs[-1] > epoch:
            raise self._fenced(epochs[-1])
        for name in _names(place):
            if name.startswith("dead-") or int(name.partition("-")[0]) < epoch:
                _kill(place / name)
        for name in _names(self._control / STAGED):
            if int(name.partition("-")[0]) < epoch:
                _delete(self._control / STAGED / name)
        for earlier in epochs[:-1]:
            _unlink(marks / str(earlier))

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
            if _is_there(target):  # it has the same rows: an id is never used twice
                return
            _make(aside)
            _move(self.staged / staged, aside / inside)
            _sync(aside)
        else:
            _move(self.staged / staged, aside)
        _move(aside, target)

    def put(self, name: str, inside: str | None, data: bytes) -> None:
        aside, target = self.work / name, self.folder / name
        if inside is not None:
            if _is_there(target):  # it has the same rows: an id is never used twice
                return
            _make(aside)
            _write(aside / inside, data)
            _sync(aside)
        else:
            _write(aside, data)
        _move(aside, target)

    def replace(self, name: str, inside: str | None, data: bytes) -> None:
        aside = self.work / f"again-{world.token()}"
        _write(aside, data)
        _move(aside, self.folder / name / inside if inside is not None else self.folder / name)

    def withdraw(self, first: int, last: int, find: Callable[[], Collection[str]]) -> None:
        for name in find():
            _remove(self.folder / name)

    def readmit(self, ids: Collection[int]) -> None:
        """Do nothing: a rewind leaves no note of withdrawn ids here."""

    def set_aside(self, names: Collection[str]) -> None:
        aside = self.folder / CONTROL / ASIDE / world.token()[:8]
        if names:
            _make_all(aside)
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # moved before a crash
                _rename(self.folder / name, aside / name)
        if names:
            _sync(aside)

    def finish(self, note: dict[str, Any]) -> None:
        _sync(self.folder)
        control = self.folder / CONTROL
        _write(self.work / _APPLIED, json.dumps(note).encode())
        _move(self.work / _APPLIED, control / _APPLIED)
        _sync(control)


@crosses(Seam.SINK_FILE)
def _names(folder: Path) -> Sequence[str]:
    """Return the names in a folder, none if there is no such folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ()


@crosses(Seam.SINK_FILE)
def _read(path: Path) -> bytes:
    return path.read_bytes()


@crosses(Seam.SINK_FILE)
def _is_there(path: Path) -> bool:
    return path.exists()


@crosses(Seam.SINK_FILE)
def _make(folder: Path) -> None:
    """Make a folder in one that exists: a work folder that is gone must not come again."""
    folder.mkdir(exist_ok=True)


@crosses(Seam.SINK_FILE)
def _make_all(folder: Path) -> None:
    sync_folder(*make_folder(folder))


@crosses(Seam.SINK_FILE)
def _mark(path: Path) -> None:
    """Write an empty file, which is durable when this returns."""
    path.parent.mkdir(exist_ok=True)
    path.touch()
    sync_folder(path.parent, path.parent.parent)


@crosses(Seam.SINK_FILE)
def _sync(folder: Path) -> None:
    sync_folder(folder)


@crosses(Seam.SINK_FILE)
def _rename(path: Path, target: Path) -> None:
    os.rename(path, target)


@crosses(Seam.SINK_FILE)
def _link(path: Path, target: Path) -> None:
    os.link(path, target)


@crosses(Seam.SINK_FILE)
def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _delete(folder: Path) -> None:
    """Delete a folder as far as it can be; a later owner deletes the rest."""
    with contextlib.suppress(OSError):
        world.across(Seam.SINK_FILE, lambda: shutil.rmtree(folder, ignore_errors=True), folder)


@crosses(Seam.SINK_FILE)
def _inode(path: Path) -> int | None:
    """Return what a file or folder keeps when it is renamed; None if there is none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _move(path: Path, target: Path) -> None:
    """Rename; if the path is gone, it may have been done: a network file system asks again if an answer is lost.

    Raises:
        FileNotFoundError: the path is gone, and the target is another one.
    """
    moved = _inode(path)
    try:
        _rename(path, target)
    except FileNotFoundError:
        if moved is None or _inode(target) != moved:
            raise


@crosses(Seam.SINK_FILE)
def _write(path: Path, data: bytes) -> None:
    """Write a file of a name that only this owner has; it is durable when this returns."""
    write_durably(path, data, mode="wb")  # not "xb": a call that is made twice finds its own file


def _kill(folder: Path) -> None:
    """Make a folder of a dead owner unusable at once, then delete it."""
    dead = folder if folder.name.startswith("dead-") else folder.with_name(f"dead-{world.token()}")
    with contextlib.suppress(FileNotFoundError):
        _rename(folder, dead)
    _delete(dead)


def _remove(path: Path) -> None:
    """Delete a file or a folder; readers see a folder whole or not at all."""
    if not path.is_dir():
        _unlink(path)
        return
    aside = path.parent / CONTROL / "work" / f"dead-{world.token()}"
    with contextlib.suppress(FileNotFoundError):
        _rename(path, aside)
    _delete(aside)


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
